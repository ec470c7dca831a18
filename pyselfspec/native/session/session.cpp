#include "session/session.h"

#include "graph/argmax.h"
#include "graph/checks.h"
#include "graph/width.h"

#include "ggml-backend.h"
#include "llama-arch.h"
#include "llama-context.h"
#include "llama-kv-cache-dsa-iswa.h"
#include "llama-kv-cache-dsa.h"
#include "llama-kv-cache-dsv4.h"
#include "llama-kv-cache-iswa.h"
#include "llama-kv-cache.h"
#include "llama-memory-hybrid-idx.h"
#include "llama-memory-hybrid-iswa.h"
#include "llama-memory-hybrid.h"
#include "llama-memory-recurrent.h"
#include "llama-model.h"

#include <algorithm>
#include <cmath>
#include <numeric>

static constexpr int ALLOCATION_FAILED = -2; // llama_context::decode()

namespace {

// Restores a value at the end of the scope, also after an exception.
template<typename T>
class restored {
public:
    restored(T & place, T value) : place(place), before(place) { place = value; }
    ~restored() { place = before; }

    restored(const restored &) = delete;
    restored & operator=(const restored &) = delete;

private:
    T & place;
    T   before;
};

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

template <typename... Kinds> bool is_any_of(const llama_memory_i * memory) {
    return (dynamic_cast<const Kinds *>(memory) || ...);
}

std::string architecture(const llama_model & model) {
    return std::string("architecture ") + llm_arch_name(model.arch);
}

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

// Returns up to how many rows products on the CPU with this model's weights give each row the bits that it has alone.
int32_t width_of_products(const llama_model & model) {
    const selfspec_width_function width_of = selfspec_width_of_weights();
    int32_t width = width_of ? SELFSPEC_EXACT_WIDTH : 0;
    for (const auto & [name, tensor] : model.tensors_by_name) {
        width = width > 0 ? std::min(width, width_of(tensor, false)) : 0;
    }
    return width;
}

// Whether the sums of a row are over its sequence, and not over the rows of its batch.
bool sums_by_row(const llama_model & model, const llama_memory_i * memory) {
    if (model.arch == LLM_ARCH_MINIMAX_01) {
        return false; // its linear attention multiplies the rows of a batch by each other
    }
    // an unknown class of memory may belong to any architecture; without a memory, attention is over the batch
    return is_any_of<llama_kv_cache, llama_kv_cache_iswa, llama_kv_cache_dsa, llama_kv_cache_dsa_iswa, llama_kv_cache_dsv4,
        llama_memory_recurrent, llama_memory_hybrid, llama_memory_hybrid_iswa, llama_memory_hybrid_idx>(memory);
}

// Returns the cache in which sequences share cells if the memory consists of such a cache only, else NULL.
const llama_kv_cache * cache_of(const llama_memory_i * memory) {
    if (const auto * pair = dynamic_cast<const llama_kv_cache_iswa *>(memory)) {
        return pair->get_base();
    }
    if (const auto * pair = dynamic_cast<const llama_kv_cache_dsa *>(memory)) {
        return pair->get_mla();
    }
    return dynamic_cast<const llama_kv_cache *>(memory);
}

// Returns the cell of a position of the sequence, or -1 if the sequence does not hold it.
int64_t cell_of(const llama_kv_cells & cells, int32_t seq_id, int64_t pos) {
    const auto & placed = cells.seq_pos_get(seq_id);
    const auto   it     = placed.lower_bound({ (llama_pos) pos, 0 });
    return it != placed.end() && it->first == pos ? it->second : -1;
}

// The selfspec_held of a context's memory.
class held_in : public selfspec_held {
public:
    held_in(const llama_memory_i * memory, const llama_hparams & hparams) : memory(memory), hparams(hparams) {}

    int64_t first(int32_t seq_id) const override { return memory->seq_pos_min(seq_id); }
    int64_t last (int32_t seq_id) const override { return memory->seq_pos_max(seq_id); }

    // A cache with a sliding window may free cells outside the window. After a rollback the window reaches further back.
    bool holds_window(int32_t seq_id, int64_t pos) const override {
        if (!dynamic_cast<const llama_kv_cache_iswa *>(memory)) {
            return true;
        }
        const llama_pos first = memory->seq_pos_min(seq_id);
        return first <= 0 || llama_hparams::is_masked_swa(hparams.n_swa, hparams.swa_type, first - 1, (llama_pos) pos);
    }

    int64_t cell(int32_t seq_id, int64_t pos) const override { return cell_of(cache_of(memory)->get_cells(seq_id), seq_id, pos); }

private:
    const llama_memory_i * memory;
    const llama_hparams  & hparams;
};

} // namespace

selfspec_session::selfspec_session(llama_context * ctx) :
    ctx(ctx), model(ctx->get_model()), n_layer((int32_t) model.hparams.n_layer()), slots(*ctx),
    stop(*ctx, ctx->abort_callback, ctx->abort_callback_data), rollback(*ctx), batch(ctx),
    is_cpu_only(!others_compute(model, ctx->backend_ptrs, ctx->cparams.op_offload)),
    names_fault(selfspec_names_fault(model, ctx->get_memory())) {
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

selfspec_facts selfspec_session::facts() const {
    const auto & cparams = ctx->get_cparams();

    selfspec_facts facts;
    facts.architecture  = llm_arch_name(model.arch);
    facts.n_layer       = n_layer;
    facts.n_vocab       = (int32_t) model.vocab.n_tokens();
    facts.n_batch       = (int32_t) ctx->n_batch();
    facts.n_ubatch      = (int32_t) ctx->n_ubatch();
    facts.n_seq_max     = rollback.n_seq();
    facts.n_outputs_max = (int32_t) cparams.n_outputs_max;
    facts.memory_bits   = memory_bits();
    facts.has_memory    = ctx->get_memory() != nullptr;
    facts.leaves_last   = model.hparams.n_layer_nextn > 0 || model.arch == LLM_ARCH_GEMMA4;
    facts.has_encoder   = llama_model_has_encoder(&model);
    facts.has_decoder   = llama_model_has_decoder(&model);
    facts.is_special    = cparams.ctx_type != LLAMA_CONTEXT_TYPE_DEFAULT || !ctx->sampling.samplers.empty();
    facts.is_causal     = cparams.causal_attn;
    facts.embeds        = cparams.embeddings;
    facts.is_cpu_only   = is_cpu_only;
    return facts;
}

void selfspec_session::require_place(const selfspec_facts & known, const selfspec_rows & rows, const std::vector<selfspec_span> & spans,
        const selfspec_pass & pass) const {
    selfspec_require_place(known, held_in(ctx->get_memory(), model.hparams), rows, spans, pass);
}

// Refuses, before any cell is written, a pass that the architecture does not support: builds the graph without computing it.
void selfspec_session::check_graph(const selfspec_pass & pass) {
    const bool asks = !pass.mask.empty() || !pass.hidden_at.empty() || pass.head == SELFSPEC_HEAD_BEST;
    if (!asks || graphs().work.count(pass)) {
        return;
    }
    if (llama_model_has_encoder(&model)) {
        selfspec_refuse(architecture(model) + " is an encoder, masks work with decoder-only models", SELFSPEC_UNSUPPORTED);
    }
    if (!names_fault.empty()) {
        selfspec_refuse(architecture(model) + ": " + names_fault, SELFSPEC_UNSUPPORTED);
    }
    const std::string fault = build_dry(pass);
    if (!fault.empty()) {
        selfspec_refuse(fault, SELFSPEC_UNSUPPORTED);
    }
    graphs().work.insert(pass);
}

// Returns the findings about graphs with the present adapters. Others change the graphs.
selfspec_session::findings & selfspec_session::graphs() {
    ctx->sched_reserve(); // notices that adapters have changed
    if (found.generation != ctx->selfspec_generation) {
        found = {};
        found.generation = ctx->selfspec_generation;
    }
    return found;
}

// Builds the graph of a pass without computing it. Returns the fault that was found, or "".
std::string selfspec_session::build_dry(const selfspec_pass & pass, int32_t n_rows, const graph_check & check) {
    n_graph_checks++;

    rollback.forget_graph();
    ctx->synchronize();
    ctx->sched_reserve();

    const auto want = std::make_shared<const selfspec_batch>(pass, n_layer);
    const auto mctx = ctx->memory ? ctx->memory->init_full() : nullptr;

    llama_batch_allocr balloc(model.hparams.n_pos_per_embd());
    // tokens for every sequence, as llama_context::graph_reserve(): a full memory context spans all streams
    llama_ubatch ubatch = balloc.ubatch_reserve(n_rows, ctx->n_seq_max());
    ubatch.selfspec = want;

    // the callbacks of a build leave marks in the scheduler, so the graph that waits for reuse is dropped, as in graph_reserve()
    ggml_backend_sched_reset(ctx->sched.get());
    for (auto & res : ctx->gf_res_prev) {
        if (res) {
            res->reset();
        }
    }
    ctx->gf_res_prev_active = nullptr;

    const restored<uint32_t> n_outputs(ctx->n_outputs, ctx->n_seq_max());
    const restored<bool>     leave_nextn(ctx->cparams.embeddings_nextn, pass.leaves(n_layer + 1));

    auto * res = ctx->gf_res_reserve.get();
    const auto decoder = ctx->cparams.ctx_type == LLAMA_CONTEXT_TYPE_MTP ? LLM_GRAPH_TYPE_DECODER_MTP : LLM_GRAPH_TYPE_DEFAULT;
    const auto gparams = ctx->graph_params(res, ubatch, mctx.get(), ctx->memory ? decoder : LLM_GRAPH_TYPE_ENCODER);
    res->reset();

    const bool ok = model.build_graph(gparams) && selfspec_finish_graph(model, ubatch, *res) && check(res->get_gf());

    ggml_backend_sched_reset(ctx->sched.get());

    if (!ok && want->found.error.empty()) {
        return architecture(model) + ": the graph of this pass cannot be built";
    }
    return want->found.error;
}

void selfspec_session::replay_for(int32_t n_seq) {
    rollback.replay_for(n_seq);

    selfspec_pass pass;
    pass.keeps = true;
    const std::string fault = build_dry(pass, 2, [this](ggml_cgraph * graph) { return rollback.knows(graph, 2); });
    if (!fault.empty()) {
        rollback.stop_replay();
    }
}

//
// decode
//

int32_t selfspec_session::decode(const selfspec_decode_args & args) {
    const selfspec_facts known = facts();
    auto request = selfspec_request_of(args);
    const auto & rows   = request.rows;
    const auto & states = request.states;
    const auto & among  = request.among;
    auto       & pass   = request.pass;
    selfspec_add_parts(known, args, pass);
    selfspec_require_rows(known, rows);
    selfspec_require_pass(known, rows, states, pass);
    selfspec_require_among(known, among, rows);

    const auto spans = selfspec_spans_of(rows);
    require_place(known, rows, spans, pass);

    const int32_t n_outputs = rows.n_outputs();
    if (n_outputs == 0) {
        pass.head    = SELFSPEC_HEAD_LOGITS; // the pass does not run the head
        pass.n_among = 0;
    }
    check_graph(pass);

    batch.clear();
    rows.each_sequence([&](int32_t i, int32_t seq_id) {
        if (i == (int32_t) batch.tokens.size()) {
            batch.add_token(seq_id);
        } else {
            batch.add_seq(i, seq_id);
        }
    });
    for (int32_t i = 0; i < rows.n; ++i) {
        const llama_pos pos = rows.pos[i];

        batch.set_token_id(i, rows.tokens ? rows.tokens[i] : 0);
        batch.set_token_pos(i, &pos);
        batch.set_output(i, rows.outputs[i] != 0);
    }
    rollback.begin(spans, pass);
    const auto want = std::make_shared<selfspec_batch>(std::move(pass), n_layer);
    want->hidden     = states.in;
    want->hidden_out = states.out;
    find_best(*want, rows.n, among);

    // the graph keeps all rows up to these states
    const restored<bool> leave_nextn(ctx->cparams.embeddings_nextn, want->pass.leaves(n_layer + 1));

    ggml_cgraph * graph = nullptr;
    require_done(decode_in_slot(want, spans, n_outputs, &graph), rows.n, want->found.error);
    rollback.ran(spans, graph);
    if (!best.empty()) {
        ctx->n_outputs = 0; // the buffer for logits holds those of an earlier pass
    }
    name_best(among);
    return SELFSPEC_OK;
}

int32_t selfspec_session::decode_states(int32_t n_rows, const float * states, int32_t seq_id, int32_t pos, bool is_causal) {
    const selfspec_facts known = facts();
    selfspec_require_seq(known, seq_id);
    if (!states || n_rows < 1 || n_rows > known.n_batch) {
        selfspec_refuse("a pass takes states of 1 to n_batch = " + std::to_string(known.n_batch) + " rows, got " + std::to_string(n_rows));
    }
    const auto * memory = ctx->get_memory();
    if (!memory || pos != memory->seq_pos_max(seq_id) + 1) {
        selfspec_refuse("rows of a picture continue a sequence, and position " + std::to_string(pos) + " is not its next one");
    }
    std::vector<llama_pos>      positions(n_rows);
    std::vector<int32_t>        n_seq_ids(n_rows, 1);
    std::vector<llama_seq_id *> seq_ids(n_rows, &seq_id);
    std::vector<int8_t>         outputs(n_rows, 0);
    std::iota(positions.begin(), positions.end(), pos);
    const llama_batch rows = { n_rows, nullptr, const_cast<float *>(states), positions.data(), n_seq_ids.data(), seq_ids.data(), outputs.data() };

    const attention_of attention(*ctx, is_causal);
    require_done(undone_if_failed({ { seq_id, pos } }, [&] { return llama_decode(ctx, rows); }), n_rows, "");
    return SELFSPEC_OK;
}

// Makes room for the most likely tokens of n rows, and for the logits of listed tokens, if the pass finds them.
void selfspec_session::find_best(selfspec_batch & want, int32_t n, const selfspec_among & among) {
    best.assign(want.pass.head == SELFSPEC_HEAD_BEST ? n : 0, {});
    listed_ids.assign(among.ids, among.ids + want.pass.n_among);
    listed.resize((size_t) n*want.pass.n_among);

    want.best   = best.data();
    want.among  = among.ids;
    want.listed = listed.data();
}

// Replaces indices in the list of tokens by the ids of the tokens.
void selfspec_session::name_best(const selfspec_among & among) {
    const auto & own = own_tokens();
    for (auto & each : best) {
        if (among.ids && each.token >= 0 && each.token < among.n) {
            each.token = among.ids[each.token];
        } else if (each.token >= 0 && each.token < (int32_t) own.size()) {
            each.token = (int32_t) own[each.token];
        }
    }
}

const std::vector<int64_t> & selfspec_session::own_tokens() {
    if (own.empty() && model.d2t && model.arch == LLM_ARCH_EAGLE3) { // others spread their logits over the vocabulary of the target
        own.resize(ggml_nelements(model.d2t));
        ggml_backend_tensor_get(model.d2t, own.data(), 0, ggml_nbytes(model.d2t));
    }
    return own;
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
    if (!request->pass.is_plain()) {
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
    session.batch.selfspec.reset();
}

// Returns by sequence the position from which on its tokens are removed when a pass over these rows fails: those of the rows
// and, for a pass in place, of the sequences that share their cells.
selfspec_session::ends selfspec_session::ends_before(const std::vector<selfspec_span> & rows, bool in_place) const {
    ends kept;
    const auto from = [&](int32_t seq_id, int64_t pos) {
        const auto it = kept.emplace(seq_id, (llama_pos) pos).first;
        it->second = std::min(it->second, (llama_pos) pos);
    };
    for (const auto & span : rows) {
        from(span.seq_id, span.first);
        for (int64_t pos = span.first; in_place && pos <= span.last; ++pos) {
            const auto  & cells = cache_of(ctx->get_memory())->get_cells(span.seq_id);
            const int64_t cell  = cell_of(cells, span.seq_id, pos);
            for (int32_t seq_id = 0; cell >= 0 && seq_id < (int32_t) ctx->n_seq_max(); ++seq_id) {
                if (cells.seq_has((uint32_t) cell, seq_id)) {
                    from(seq_id, pos);
                }
            }
        }
    }
    return kept;
}

// Removes the rows of a failed pass. If the memory cannot remove them, its state belongs to no position any more and the
// sequence is emptied.
void selfspec_session::take_back(const ends & kept) noexcept {
    if (!ctx->get_memory()) {
        return;
    }
    for (const auto & [seq_id, end] : kept) {
        if (!rollback.removes_any() || !rollback.keep(seq_id, end)) {
            rollback.drop(seq_id);
        }
    }
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

void selfspec_session::forget_outputs() noexcept {
    best.clear();
    ctx->n_outputs = 0;
}

const float * selfspec_session::logits_of(int32_t row) const {
    ctx->synchronize(); // also without outputs: throws where a device is lost, see ContextHandle.close()
    const float * logits = ctx->n_outputs > 0 ? llama_get_logits_ith(ctx, row) : nullptr;
    if (!logits) {
        selfspec_refuse("there are no logits in row " + std::to_string(row));
    }
    return logits;
}

int32_t selfspec_session::copy_logits(int32_t row, float * out) const {
    const size_t n_vocab = model.vocab.n_tokens();
    if (listed_ids.empty() || !known_best(row)) {
        std::copy_n(logits_of(row), n_vocab, out);
        return SELFSPEC_OK;
    }
    std::fill_n(out, n_vocab, -INFINITY);
    for (size_t i = 0; i < listed_ids.size(); ++i) {
        out[listed_ids[i]] = listed[row*listed_ids.size() + i];
    }
    return SELFSPEC_OK;
}

int32_t selfspec_session::sample(llama_sampler * chain, int32_t row) {
    const int32_t token = selfspec_draw(chain, logits_of(row), (int32_t) model.vocab.n_tokens(), candidates);
    if (token == SELFSPEC_NO_TOKEN) {
        selfspec_refuse("no token is left to draw after row " + std::to_string(row) + ": the sampler's grammar and filters rule out all of "
            "the vocabulary", token);
    }
    if (token < 0) {
        selfspec_refuse("the logits of row " + std::to_string(row) + " are not numbers", token);
    }
    return token;
}

// Returns what a pass that looked for the most likely token has found after a row; NULL: nothing.
const selfspec_best * selfspec_session::known_best(int32_t row) const {
    // a llama_decode() after ours has outputs of its own
    const bool is_known = ctx->n_outputs == 0 && row >= 0 && row < (int32_t) best.size() && best[row].token >= 0;
    return is_known ? &best[row] : nullptr;
}

int32_t selfspec_session::argmax(int32_t row, float * p) const {
    const std::string name = "row " + std::to_string(row);

    if (const selfspec_best * known = known_best(row)) {
        if (!std::isfinite(known->p)) {
            selfspec_refuse("the logits of " + name + " are not numbers", SELFSPEC_FAILED);
        }
        if (p) {
            *p = known->p;
        }
        return known->token;
    }

    const float * logits  = logits_of(row);
    const int32_t n_vocab = (int32_t) model.vocab.n_tokens();
    const float   max     = selfspec_max(logits, n_vocab);
    const int32_t found   = (int32_t) (std::find(logits, logits + n_vocab, max) - logits);
    if (found == n_vocab) {
        selfspec_refuse("the logits of " + name + " are not numbers", SELFSPEC_FAILED);
    }
    if (p) {
        *p = 1.0f/selfspec_sum_exp(logits, n_vocab, max);
    }
    return found;
}

//
// abilities of the architecture
//

uint8_t selfspec_session::skippable(int32_t il) {
    uint8_t bits = 0;
    for (const uint8_t part : { SELFSPEC_SKIP_ATTN, SELFSPEC_SKIP_FFN }) {
        if (!(selfspec_parts_of(model, il) & part)) {
            continue;
        }
        selfspec_pass pass;
        pass.mask.assign(n_layer, 0);
        pass.mask[il] = part;

        if (build_dry(pass).empty()) {
            bits |= part;
        }
    }
    return bits;
}

const std::vector<uint8_t> & selfspec_session::mask_support() {
    if (support.empty()) {
        std::vector<uint8_t> bits(n_layer, 0);
        for (int32_t il = 0; il < n_layer && !llama_model_has_encoder(&model); ++il) {
            bits[il] = skippable(il);
        }
        support = std::move(bits);
    }
    return support;
}

bool selfspec_session::can_shorten() {
    auto & shorten = graphs().shorten;
    if (!shorten) {
        selfspec_pass pass;
        pass.head    = SELFSPEC_HEAD_BEST;
        pass.n_among = 1;
        shorten = ctx->get_memory() && is_cpu_only && build_dry(pass).empty();
    }
    return *shorten;
}

bool selfspec_session::can_enter(int32_t il) {
    if (il < 1 || il >= n_layer || !(memory_bits() & SELFSPEC_MEMORY_IN_PLACE) || llama_model_has_encoder(&model)) {
        return false;
    }
    auto & enter_at = graphs().enter_at;
    const auto known = enter_at.find(il);
    if (known != enter_at.end()) {
        return known->second;
    }

    selfspec_pass leave;
    leave.hidden_at = { il };

    selfspec_pass enter;
    enter.enter_at = il;
    enter.mask.assign(n_layer, 0);
    std::fill_n(enter.mask.begin(), il, SELFSPEC_SKIP_BLOCK);

    return enter_at[il] = build_dry(leave).empty() && build_dry(enter).empty();
}

bool selfspec_session::has_exact_prompts() const {
    const auto * mem = ctx->get_memory();
    // where an indexer or a compressed memory selects the cells for attention, wide sums are over the rows of a batch
    if (exact_width() == 0 || dynamic_cast<const llama_memory_hybrid_idx *>(mem) ||
            !is_any_of<llama_kv_cache, llama_kv_cache_iswa, llama_memory_recurrent, llama_memory_hybrid, llama_memory_hybrid_iswa>(mem)) {
        return false;
    }
    const auto width_of = selfspec_width_of_weights();
    return std::all_of(model.tensors_by_name.begin(), model.tensors_by_name.end(), [&](const auto & named) {
        return width_of(named.second, false) == INT32_MAX;
    });
}

int32_t selfspec_session::exact_width() const {
    return is_cpu_only && sums_by_row(model, ctx->get_memory()) ? width_of_products(model) : 0;
}

int32_t selfspec_session::memory_bits() const {
    const auto * mem = ctx->get_memory();

    // flash attention sums cells one after another, other attention in vector lanes
    ctx->sched_reserve();
    const int32_t scatter = ctx->get_cparams().flash_attn ? SELFSPEC_MEMORY_SCATTER : 0;

    if (is_any_of<llama_kv_cache, llama_kv_cache_iswa>(mem)) {
        return rollback.removes_any() ? SELFSPEC_MEMORY_ROLLBACK | SELFSPEC_MEMORY_IN_PLACE | scatter : 0;
    }
    if (dynamic_cast<const llama_kv_cache_dsa *>(mem)) {
        return SELFSPEC_MEMORY_ROLLBACK | SELFSPEC_MEMORY_IN_PLACE;
    }
    if (rollback.has_states()) {
        // each sequence has a state of its own; an indexer selects cells of all sequences
        const bool apart = is_any_of<llama_memory_recurrent>(mem) || (scatter && !is_any_of<llama_memory_hybrid_idx>(mem));
        return SELFSPEC_MEMORY_STATES | (apart ? SELFSPEC_MEMORY_SCATTER : 0);
    }
    return rollback.removes_any() ? SELFSPEC_MEMORY_ROLLBACK : 0;
}

int32_t selfspec_session::can_keep(int32_t seq_id, int32_t n) const {
    selfspec_require_seq(facts(), seq_id);

    const auto    * mem  = ctx->get_memory();
    const llama_pos last = mem ? mem->seq_pos_max(seq_id) : -1;
    if (n > last) {
        return last + 1;
    }
    return n > 0 && rollback.can_keep(seq_id, n) && held_in(mem, model.hparams).holds_window(seq_id, n) ? n : 0;
}

void selfspec_session::keep(int32_t seq_id, int32_t n) {
    const selfspec_interrupt::removal removal(stop);
    if (can_keep(seq_id, n) < n || !rollback.keep(seq_id, n)) {
        selfspec_refuse(architecture(model) + ": sequence " + std::to_string(seq_id) + " cannot be cut to " + std::to_string(n) +
            " tokens", SELFSPEC_UNSUPPORTED);
    }
}

void selfspec_session::fork(int32_t seq_id, int32_t copy) {
    selfspec_require_seq(facts(), seq_id);
    selfspec_require_seq(facts(), copy);
    if (!ctx->get_memory() || seq_id == copy || ctx->get_memory()->seq_pos_max(copy) >= 0) {
        selfspec_refuse("sequence " + std::to_string(seq_id) + " cannot be copied to " + std::to_string(copy) +
            ": that one is not empty, or the model keeps no K/V");
    }
    rollback.fork(seq_id, copy);
}

int64_t selfspec_session::state_size(int32_t seq_id) const {
    selfspec_require_seq(facts(), seq_id);
    return (int64_t) rollback.state_size(seq_id);
}

void selfspec_session::save_state(int32_t seq_id, uint8_t * out, int64_t size) const {
    if (size != state_size(seq_id) || !rollback.save(seq_id, out, (size_t) size)) {
        selfspec_refuse("the state of sequence " + std::to_string(seq_id) + " cannot be saved", SELFSPEC_FAILED);
    }
}

void selfspec_session::load_state(int32_t seq_id, const uint8_t * state, int64_t size, int32_t n) {
    selfspec_require_seq(facts(), seq_id);
    if (!ctx->get_memory() || n < 1 || n > ctx->get_memory()->seq_pos_max(seq_id) + 1) {
        selfspec_refuse("sequence " + std::to_string(seq_id) + " does not hold " + std::to_string(n) + " tokens");
    }
    if (size < 0 || !rollback.load(seq_id, state, (size_t) size, n)) {
        selfspec_refuse("the state of sequence " + std::to_string(seq_id) + " cannot be restored; the sequence is empty now", SELFSPEC_FAILED);
    }
}
