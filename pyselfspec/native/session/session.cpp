#include "session/session.h"

#include "graph/checks.h"
#include "session/restored.h"

#include "ggml-backend.h"
#include "llama-context.h"
#include "llama-model.h"

#include <algorithm>
#include <tuple>

static constexpr int ALLOCATION_FAILED = -2; // llama_context::decode()

namespace {

// Sets the kind of attention of a causal context's passes, until the end of the scope.
class attention_of {
public:
    attention_of(llama_context & ctx, bool is_causal) : ctx(ctx), is_causal(is_causal) { set(is_causal); }
    ~attention_of() { set(true); }

    attention_of(const attention_of &) = delete;
    attention_of & operator=(const attention_of &) = delete;

private:
    void set(bool causal) const {
        if (!is_causal) {
            ctx.set_causal_attn(causal);
        }
    }

    llama_context & ctx;
    const bool      is_causal;
};

// Whether a backend other than the CPU's may compute with these weights: because they are in its memory, or because the
// scheduler gives it work on weights in other memory, which it then copies.
bool others_compute(const llama_model & model, const std::vector<ggml_backend_t> & backends, bool op_offload) {
    return std::any_of(backends.begin(), backends.end(), [&](ggml_backend_t backend) {
        const auto type = ggml_backend_dev_type(ggml_backend_get_device(backend));
        if (type == GGML_BACKEND_DEVICE_TYPE_CPU) {
            return false;
        }
        if (op_offload && type != GGML_BACKEND_DEVICE_TYPE_ACCEL) {
            return true;
        }
        return std::any_of(model.tensors_by_name.begin(), model.tensors_by_name.end(), [&](const auto & each) {
            const ggml_backend_buffer_t buffer = each.second->buffer;
            return buffer && ggml_backend_supports_buft(backend, ggml_backend_buffer_get_type(buffer));
        });
    });
}

// Whether each model's graphs can be computed with the other's weights.
bool same_sizes(const llama_model & a, const llama_model & b) {
    const auto sizes = [](const llama_model & model) {
        const auto & h = model.hparams;
        return std::make_tuple(model.arch, h.n_layer_all, h.n_embd, h.n_embd_head_k(), h.n_embd_head_v(), h.n_expert, model.vocab.n_tokens());
    };
    const auto by_block = [](const llama_model & model) {
        const auto & h = model.hparams;
        return std::tie(h.n_head_arr, h.n_head_kv_arr, h.n_ff_arr);
    };
    return sizes(a) == sizes(b) && by_block(a) == by_block(b);
}

// The head's weights; NULL if they are less than an eighth of the model's: a copy of them would not be worth its memory.
const ggml_tensor * large_head(const llama_model & model) {
    return model.output && 8*ggml_nbytes(model.output) >= model.size() ? model.output : nullptr;
}

} // namespace

selfspec_session::selfspec_session(llama_context * ctx) :
    ctx(ctx), model(ctx->get_model()), n_layer((int32_t) model.hparams.n_layer()), slots(*ctx),
    stop(*ctx, ctx->abort_callback, ctx->abort_callback_data), rollback(*ctx), batch(ctx),
    is_cpu_only(!others_compute(model, ctx->backend_ptrs, ctx->cparams.op_offload)),
    coarse_heads(is_cpu_only ? large_head(model) : nullptr), names_fault(selfspec_names_fault(model, ctx->get_memory())) {
    allow_moves();
}

int32_t selfspec_session::failed(int32_t status, const char * text) noexcept {
    try {
        error = text;
    } catch (...) {
        error.clear(); // no memory for the message
    }
    return status;
}

void selfspec_session::decode(const selfspec_decode_args & args) {
    const selfspec_facts known = facts();
    selfspec_request asked = selfspec_request_of(args);
    selfspec_add_parts(known, args, asked.pass);
    selfspec_require_rows(known, asked.rows);
    selfspec_require_pass(known, asked.rows, asked.states, asked.pass);
    if (asked.pass.weights && !same_sizes(model, *asked.pass.weights)) {
        selfspec_refuse("the weights are those of a model of another architecture or other sizes", SELFSPEC_UNSUPPORTED);
    }
    const auto spans = admit(known, asked);

    const int32_t n_outputs = asked.rows.n_outputs();
    if (n_outputs == 0) {
        asked.pass.head    = SELFSPEC_HEAD_LOGITS; // the pass does not run the head
        asked.pass.n_among = 0;
    }
    if (asked.pass.n_best > 0 && !asked.pass.weights && 0 < n_outputs && n_outputs <= SELFSPEC_EXACT_WIDTH) {
        asked.coarse_head = coarse_heads.of_pass(n_outputs);
        asked.head_inputs = coarse_heads.wanted_inputs();
    }
    asked.pass.coarse_head = asked.coarse_head.get();
    asked.pass.n_best      = asked.coarse_head ? asked.pass.n_best : 0;
    check_graph(asked.pass);
    fill(asked.rows);
    rollback.begin(spans, asked.pass);

    // the graph keeps all rows up to these states
    const selfspec_restored<bool> leave_nextn(ctx->cparams.embeddings_nextn, asked.pass.leaves(n_layer + 1));

    ggml_cgraph * graph = nullptr;
    run(asked, spans, n_outputs, &graph);
    rollback.ran(spans, graph);
    leave_best();
    if (asked.coarse_head) {
        coarse_heads.add(ctx->get_logits_ith(-1), model.vocab.n_tokens());
    }
}

// Makes the batch of these rows. states: of n_embd values each, or NULL.
void selfspec_session::fill(const selfspec_rows & rows, const float * states, size_t n_embd) {
    batch.clear();
    rows.each_sequence([&](int32_t i, int32_t seq_id) {
        if (i == (int32_t) batch.tokens.size()) {
            batch.add_token(seq_id);
        } else {
            batch.add_seq(i, seq_id);
        }
    });
    for (int32_t i = 0; i < rows.n; ++i) {
        const llama_pos here = rows.pos[i];
        const llama_pos pos[GGML_MROPE_SECTIONS] = { here, here, here, here };

        if (rows.tokens || !states) {
            batch.set_token_id(i, rows.tokens ? rows.tokens[i] : 0);
        }
        if (states) {
            batch.set_token_embd(i, { states + i*n_embd, 1, n_embd });
        }
        batch.set_token_pos(i, pos);
        batch.set_output(i, rows.outputs[i] != 0);
    }
}

// Runs the pass over the batch. Finds the most likely tokens, and the logits of listed tokens, if it asks for them.
void selfspec_session::run(
        selfspec_request & asked, const std::vector<selfspec_span> & spans, int32_t n_outputs, ggml_cgraph ** graph) {
    const auto & pass = asked.pass;
    best.assign(pass.head == SELFSPEC_HEAD_BEST ? asked.rows.n : 0, {});
    listed_ids.assign(asked.among.ids, asked.among.ids + pass.n_among);
    listed.resize((size_t) asked.rows.n*pass.n_among);

    const auto want = std::make_shared<selfspec_batch>(std::move(asked.pass), n_layer);
    want->hidden     = asked.states.in;
    want->hidden_out = asked.states.out;
    want->best       = best.data();
    want->among      = asked.among.ids;
    want->listed     = listed.data();
    want->coarse_head = asked.coarse_head;
    want->head_inputs = asked.head_inputs;
    want->rope_shift = rope_shifts(asked.rows, spans);
    require_done(decode_in_slot(want, spans, n_outputs, graph), asked.rows.n, want->found.error);
    name_best(asked.among);
}

void selfspec_session::decode_states(const selfspec_picture_rows & rows) {
    const selfspec_facts known = facts();
    selfspec_require_seq(known, rows.seq_id);
    if (!rows.states || rows.n < 1 || rows.n > known.n_batch) {
        selfspec_refuse("a pass takes states of 1 to n_batch = " + std::to_string(known.n_batch) + " rows, got " + std::to_string(rows.n));
    }
    const auto * memory = ctx->get_memory();
    if (!memory || rows.pos != memory->seq_pos_max(rows.seq_id) + 1) {
        selfspec_refuse("rows of a picture continue a sequence, and position " + std::to_string(rows.pos) + " is not its next one");
    }
    const bool is_flat = model.hparams.n_pos_per_embd() == 1;
    if (is_flat == (rows.grid != nullptr)) {
        selfspec_refuse(is_flat ? "rows of a picture have no places in it in this model" : "rows of a picture need their places in it in this model");
    }
    const std::vector<selfspec_span> spans = { { rows.seq_id, rows.pos, rows.pos + rows.n - 1 } };
    selfspec_pass pass;
    rollback.begin(spans, pass);
    const auto      request = std::make_shared<selfspec_batch>(std::move(pass), n_layer);
    const size_t    width   = model.hparams.n_embd_inp();
    const llama_pos corner  = is_flat ? 0 : rope_pos(rows.seq_id, rows.pos - rows.n_before);
    batch.clear();
    for (int32_t i = 0; i < rows.n; ++i) {
        const int32_t * place = is_flat ? nullptr : rows.grid + 2*i;
        const llama_pos pos[GGML_MROPE_SECTIONS] = {
            rows.pos + i, is_flat ? 0 : corner + place[0], is_flat ? 0 : corner + place[1], corner };
        batch.add_token(rows.seq_id);
        batch.set_token_embd(i, { rows.states + i*width, 1, width });
        batch.set_token_pos(i, pos);
        batch.set_output(i, false);
    }
    if (!is_flat) {
        request->rope_shift.assign(rows.n, 0); // none: each row has all its positions
    }
    const attachment   attached(*this, request);
    const attention_of attention(*ctx, rows.is_causal);
    require_done(undone_if_failed({ { rows.seq_id, rows.pos } }, [&] { return ctx->decode(batch); }), rows.n, "");
    rollback.ran(spans, nullptr);
}

void selfspec_session::embed(int32_t n_tokens, const int32_t * tokens) {
    if (!tokens || n_tokens < 1 || n_tokens > facts().n_batch) {
        selfspec_refuse("a text has 1 to n_batch = " + std::to_string(facts().n_batch) + " tokens, got " + std::to_string(n_tokens));
    }
    const llama_batch    rows   = llama_batch_get_one(const_cast<int32_t *>(tokens), n_tokens);
    const llama_memory_t memory = llama_get_memory(ctx);
    if (memory) {
        llama_memory_clear(memory, false);
    }
    require_done(memory ? llama_decode(ctx, rows) : llama_encode(ctx, rows), n_tokens, "");
    ctx->synchronize(); // throws where a device is lost, which llama_get_embeddings() must not
}

// Throws unless the status is success. why: the fault that a graph build has found, or "".
void selfspec_session::require_done(int status, int32_t n_tokens, const std::string & why) const {
    switch (status) {
        case 0:  return;
        case 1:  selfspec_refuse("no free K/V cells for " + std::to_string(n_tokens) + " tokens, n_ctx is " + std::to_string(ctx->n_ctx()), SELFSPEC_FULL);
        case 2:  selfspec_refuse("the pass was stopped; its tokens were removed from the context", SELFSPEC_ABORTED);
        default: break;
    }
    if (!why.empty()) {
        selfspec_refuse(why, SELFSPEC_UNSUPPORTED); // the graph of this batch differs from the one that was tried
    }
    selfspec_refuse("llama.cpp could not decode the batch, status " + std::to_string(status), SELFSPEC_FAILED);
}

selfspec_session::attachment::attachment(selfspec_session & session, const std::shared_ptr<selfspec_batch> & request) :
    session(session), request(*request) {
    // a plain pass is decoded as upstream does
    if (!request->pass.is_plain() || !request->rope_shift.empty() || request->head_inputs) {
        session.batch.selfspec = request;
    }
}

selfspec_session::attachment::~attachment() {
    if (!request.pass.hidden_at.empty() || request.pass.head == SELFSPEC_HEAD_BEST) {
        try {
            session.ctx->synchronize(); // copies may be under way
        } catch (...) {
            // a lost device copies nothing, and the pass has failed already or fails when its results are read
        }
    }
    request.hidden     = nullptr;
    request.hidden_out = nullptr;
    request.best       = nullptr;
    request.listed     = nullptr;
    request.among      = nullptr;
    request.head_inputs = nullptr;
    session.batch.selfspec.reset();
}

template <typename F> int selfspec_session::undone_if_failed(const ends & kept, F decode) {
    try {
        const int status = decode();
        if (status == SELFSPEC_ABORTED || status <= ALLOCATION_FAILED) {
            take_back(kept);
        }
        return status;
    } catch (...) {
        take_back(kept);
        throw;
    }
}

// Decodes the batch in the slot of its pass or, if memory for the slot cannot be allocated, in the context's own graph, whose
// memory is reserved when the context is created. After a failure the memory holds none of the batch's rows, and the slot
// with its unallocated plan is dropped.
int selfspec_session::decode_in_slot(
        const std::shared_ptr<selfspec_batch> & want, const std::vector<selfspec_span> & rows, int32_t n_outputs, ggml_cgraph ** graph) {
    const attachment attached(*this, want);
    const ends    kept     = ends_before(rows, want->pass.in_place);
    const int32_t n_tokens = (int32_t) batch.tokens.size();

    const auto drop_slot = [&] {
        slots.drop(want->pass, n_tokens, n_outputs);
        ggml_backend_sched_forget_plan(ctx->sched.get());
    };
    int status = undone_if_failed(kept, [&] {
        try {
            const auto in_slot = slots.use(want->pass, n_tokens, n_outputs);
            const int  result  = ctx->decode(batch);
            if (graph && ctx->gf_res_prev_active) {
                *graph = ctx->gf_res_prev_active->get_gf();
            }
            return result;
        } catch (...) {
            drop_slot();
            throw;
        }
    });
    if (status < 0) {
        drop_slot();
    }
    // a memory that cannot remove a tail has lost its sequences by now
    if (status == ALLOCATION_FAILED && !want->pass.in_place && (memory_bits() & SELFSPEC_MEMORY_ROLLBACK)) {
        status = undone_if_failed(kept, [&] { return ctx->decode(batch); });
    }
    return status;
}
