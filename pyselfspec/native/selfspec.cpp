#include "selfspec-hooks.h"
#include "selfspec-slots.h"

#include "llama-arch.h"
#include "llama-batch.h"
#include "llama-context.h"
#include "llama-kv-cache-dsa.h"
#include "llama-kv-cache-iswa.h"
#include "llama-kv-cache.h"
#include "llama-model.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <functional>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#ifndef PYSELFSPEC_BUILD_ID
#    error "PYSELFSPEC_BUILD_ID is set by pyselfspec/native/CMakeLists.txt"
#endif

static constexpr uint8_t SKIP_BLOCK = SELFSPEC_SKIP_ATTN | SELFSPEC_SKIP_FFN;

namespace {

// What the caller asked for, checked against the model and brought into the form that the hooks read.
struct request {
    llama_seq_id    seq_id;
    llama_pos       pos;
    int32_t         n_tokens;
    const int32_t * tokens;
    int32_t         outputs;

    selfspec_batch batch;
};

// Thrown inside this file only; every entry point turns it into a status and a sentence.
struct failure {
    int32_t     status;
    std::string text;
};

// Gives a value back when the scope is left, whichever way.
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

[[noreturn]] void refuse(const std::string & text, int32_t status = SELFSPEC_BAD_ARGUMENT) {
    throw failure { status, text };
}

} // namespace

struct selfspec_session {
    explicit selfspec_session(llama_context * ctx) :
        ctx(ctx), model(ctx->get_model()), n_layer((int32_t) model.hparams.n_layer()), slots(*ctx), batch(ctx) {}

    // Runs f and keeps what it has to say, so that no exception leaves the library.
    int32_t guarded(const std::function<int32_t()> & f) {
        try {
            error.clear();
            return f();
        } catch (const failure & e) {
            error = e.text;
            return e.status;
        } catch (const std::exception & e) {
            error = e.what();
            return SELFSPEC_FAILED;
        }
    }

    int32_t decode(request & req);

    uint8_t skippable(int32_t il);
    bool    can_enter(int32_t il);
    int32_t memory_bits() const;

    llama_context     * ctx;
    const llama_model & model;
    const int32_t       n_layer;
    std::string         error;
    selfspec_slots      slots;
    selfspec_best       best;          // of the last decode, if it asked for it
    int32_t             best_row = -1; // the token it follows

private:
    using plan = std::tuple<std::vector<uint8_t>, int32_t, int32_t, bool>; // mask, enter_at, hidden_at, has_tokens

    void check_batch(const request & req) const;
    void check_place(const request & req) const;
    void check_plan(const selfspec_batch & want);

    bool build_dry(const selfspec_batch_ptr & want);
    int  decode_with(const selfspec_batch_ptr & want);

    selfspec_batch prepared(selfspec_batch want) const {
        want.seen    .assign(n_layer, 0);
        want.seen_end.assign(n_layer, 0);
        return want;
    }

    llama_batch_ext batch; // reused, keeps its allocations
    std::set<plan>  plans; // masks and places that a dry build has shown to work
};

//
// checks before anything is touched
//

void selfspec_session::check_batch(const request & req) const {
    if (req.n_tokens < 1 || req.n_tokens > (int32_t) ctx->n_batch()) {
        refuse("n_tokens is " + std::to_string(req.n_tokens) + ", allowed is 1 to n_batch = " + std::to_string(ctx->n_batch()));
    }
    if (req.seq_id < 0 || req.seq_id >= (int32_t) ctx->n_seq_max()) {
        refuse("seq_id is " + std::to_string(req.seq_id) + ", allowed is 0 to " + std::to_string(ctx->n_seq_max() - 1));
    }
    if (!req.tokens && !req.batch.hidden) {
        refuse("a batch needs token ids or hidden states");
    }
    if (ctx->get_cparams().ctx_type != LLAMA_CONTEXT_TYPE_DEFAULT || !ctx->sampling.samplers.empty()) {
        refuse("the context is of a special type or samples by itself; make an ordinary one", SELFSPEC_UNSUPPORTED);
    }
    if (!ctx->get_memory() && req.n_tokens > (int32_t) ctx->n_ubatch()) {
        refuse("n_tokens is " + std::to_string(req.n_tokens) + ", without K/V at most n_ubatch = " + std::to_string(ctx->n_ubatch()));
    }
    const int32_t n_vocab = (int32_t) model.vocab.n_tokens();
    for (int32_t i = 0; req.tokens && i < req.n_tokens; ++i) {
        if (req.tokens[i] < 0 || req.tokens[i] >= n_vocab) {
            refuse("token id " + std::to_string(req.tokens[i]) + " is not in the vocabulary, allowed is 0 to " + std::to_string(n_vocab - 1));
        }
    }
    if (req.outputs < SELFSPEC_OUTPUTS_NONE || req.outputs > SELFSPEC_OUTPUTS_BEST) {
        refuse("outputs is " + std::to_string(req.outputs) + ", allowed is 0 (none), 1 (last), 2 (all) or 3 (best)");
    }
    if (req.batch.best && req.n_tokens > (int32_t) ctx->n_ubatch()) {
        refuse("n_tokens is " + std::to_string(req.n_tokens) + ", for the best token at most n_ubatch = " + std::to_string(ctx->n_ubatch()));
    }

    const auto & want = req.batch;
    if (want.hidden && (want.enter_at < 1 || want.enter_at >= n_layer)) {
        refuse("hidden states need a mask that skips the first blocks whole and leaves at least one block to enter");
    }
    if (want.hidden_at != -1 && (want.hidden_at < 1 || want.hidden_at > n_layer || !want.hidden_out)) {
        refuse("hidden_at is " + std::to_string(want.hidden_at) + ", allowed is 1 to " + std::to_string(n_layer) + " with a place to copy to");
    }
    if (want.hidden_at != -1 && want.hidden_at < want.enter_at && !want.has_tokens) {
        refuse("hidden_at is " + std::to_string(want.hidden_at) + ", below block " + std::to_string(want.enter_at) +
            " where the given states enter; that needs token ids");
    }
    if (want.hidden_at == n_layer && req.outputs != SELFSPEC_OUTPUTS_ALL) {
        refuse("the states leaving the last block exist for tokens with outputs only, ask for outputs of all");
    }
}

void selfspec_session::check_place(const request & req) const {
    const auto * mem = ctx->get_memory();
    if (!mem) {
        // attention over the batch alone, as in diffusion models
        if (req.pos != 0 || req.batch.in_place || req.batch.hidden || req.batch.hidden_at != -1) {
            refuse(std::string("architecture ") + llm_arch_name(model.arch) + " keeps no K/V: it decodes whole batches from position 0, "
                "without hidden states", SELFSPEC_UNSUPPORTED);
        }
        return;
    }

    const llama_pos first = mem->seq_pos_min(req.seq_id);
    const llama_pos last  = mem->seq_pos_max(req.seq_id);
    const int64_t   end   = (int64_t) req.pos + req.n_tokens - 1;

    if (req.batch.in_place) {
        if (!(memory_bits() & SELFSPEC_MEMORY_IN_PLACE)) {
            refuse(std::string("architecture ") + llm_arch_name(model.arch) + ": K/V cannot be rewritten in place", SELFSPEC_UNSUPPORTED);
        }
        if (last < 0 || req.pos < first || end > last) {
            refuse("in place needs positions that sequence " + std::to_string(req.seq_id) + " holds: asked " + std::to_string(req.pos) +
                " to " + std::to_string(end) + ", held " + std::to_string(first) + " to " + std::to_string(last));
        }
    } else if (req.pos != last + 1) {
        refuse("sequence " + std::to_string(req.seq_id) + " ends at position " + std::to_string(last) + ", the next batch starts at " +
            std::to_string(last + 1) + ", not at " + std::to_string(req.pos));
    }
}

// Refuses what the architecture cannot do before any cell is written: builds the graph once, without computing it.
void selfspec_session::check_plan(const selfspec_batch & want) {
    if (want.mask.empty() && want.hidden_at == -1) {
        return;
    }
    const plan key { want.mask, want.enter_at, want.hidden_at, want.has_tokens };
    if (plans.count(key)) {
        return;
    }

    if (llama_model_has_encoder(&model)) {
        refuse(std::string("architecture ") + llm_arch_name(model.arch) + " has an encoder, masks work with decoder-only models", SELFSPEC_UNSUPPORTED);
    }

    const auto probe = std::make_shared<const selfspec_batch>(prepared(want));
    if (!build_dry(probe)) {
        refuse(probe->error, SELFSPEC_UNSUPPORTED);
    }
    plans.insert(key);
}

bool selfspec_session::build_dry(const selfspec_batch_ptr & want) {
    ctx->synchronize();
    ctx->sched_reserve();

    const auto mctx = ctx->memory ? ctx->memory->init_full() : nullptr;

    llama_batch_allocr balloc(model.hparams.n_pos_per_embd());
    // one token for every sequence, as llama_context::graph_reserve(): a full memory context spans all streams
    llama_ubatch ubatch = balloc.ubatch_reserve(1, ctx->n_seq_max());
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

    auto * res = ctx->gf_res_reserve.get();
    const auto gparams = ctx->graph_params(res, ubatch, mctx.get(), ctx->memory ? LLM_GRAPH_TYPE_DEFAULT : LLM_GRAPH_TYPE_ENCODER);
    res->reset();

    const bool ok = model.build_graph(gparams) && selfspec_finish_graph(model, ubatch, *res);

    ggml_backend_sched_reset(ctx->sched.get());

    return ok;
}

//
// decode
//

int32_t selfspec_session::decode(request & req) {
    check_batch(req);
    check_place(req);
    check_plan(req.batch);

    batch.clear();
    for (int32_t i = 0; i < req.n_tokens; ++i) {
        const llama_pos pos = req.pos + i;

        batch.add_token(req.seq_id);
        batch.set_token_id(i, req.tokens ? req.tokens[i] : 0);
        batch.set_token_pos(i, &pos);
        batch.set_output(i, req.outputs == SELFSPEC_OUTPUTS_ALL || (req.outputs != SELFSPEC_OUTPUTS_NONE && i == req.n_tokens - 1));
    }
    const auto want = std::make_shared<const selfspec_batch>(prepared(std::move(req.batch)));
    const int status = decode_with(want);
    const std::string & why = want->error;

    switch (status) {
        case 0:  return SELFSPEC_OK;
        case 1:  refuse("no free K/V cells for " + std::to_string(req.n_tokens) + " tokens, n_ctx is " + std::to_string(ctx->n_ctx()), SELFSPEC_FULL);
        case 2:  refuse("the computation was aborted", SELFSPEC_ABORTED);
        default: break;
    }
    if (!why.empty()) {
        refuse(why, SELFSPEC_UNSUPPORTED); // the graph of this batch differs from the one that was tried
    }
    refuse("llama.cpp could not decode the batch, status " + std::to_string(status), SELFSPEC_FAILED);
}

// Lends the request to the batch for one decode. The caller's arrays are free again afterwards, also after an exception.
int selfspec_session::decode_with(const selfspec_batch_ptr & want) {
    struct lease {
        selfspec_session & session;
        const bool         copies;

        ~lease() {
            if (copies) {
                session.ctx->synchronize();
            }
            session.batch.selfspec.reset();
        }
    } const lease { *this, want->hidden_at > 0 || want->best };

    // what asks for nothing takes upstream's way
    batch.selfspec = want->is_plain() ? nullptr : want;

    const auto n_outputs = std::count_if(batch.tokens.begin(), batch.tokens.end(), [](const auto & t) { return t.output; });
    const auto in_slot   = slots.use(batch.selfspec, (int32_t) batch.tokens.size(), (int32_t) n_outputs);

    const int status = ctx->decode(batch);
    if (want->best) {
        ctx->n_outputs = 0; // what lies in the buffer for logits is older
    }
    return status;
}

uint8_t selfspec_session::skippable(int32_t il) {
    uint8_t bits = 0;
    if (llama_model_has_encoder(&model)) {
        return bits;
    }
    for (const uint8_t part : { SELFSPEC_SKIP_ATTN, SELFSPEC_SKIP_FFN }) {
        if (!(selfspec_parts_of(model, il) & part)) {
            continue;
        }
        selfspec_batch want;
        want.mask.assign(n_layer, 0);
        want.mask[il] = part;

        if (build_dry(std::make_shared<const selfspec_batch>(prepared(std::move(want))))) {
            bits |= part;
        }
    }
    return bits;
}

bool selfspec_session::can_enter(int32_t il) {
    if (il < 1 || il >= n_layer || !(memory_bits() & SELFSPEC_MEMORY_IN_PLACE) || llama_model_has_encoder(&model)) {
        return false;
    }
    selfspec_batch leave;
    leave.hidden_at = il;

    selfspec_batch enter;
    enter.enter_at = il;
    enter.mask.assign(n_layer, 0);
    std::fill_n(enter.mask.begin(), il, SKIP_BLOCK);

    return build_dry(std::make_shared<const selfspec_batch>(prepared(std::move(leave)))) &&
           build_dry(std::make_shared<const selfspec_batch>(prepared(std::move(enter))));
}

int32_t selfspec_session::memory_bits() const {
    const auto * mem = ctx->get_memory();

    if (dynamic_cast<const llama_kv_cache *>(mem) || dynamic_cast<const llama_kv_cache_dsa *>(mem)) {
        return SELFSPEC_MEMORY_ROLLBACK | SELFSPEC_MEMORY_IN_PLACE;
    }
    if (const auto * iswa = dynamic_cast<const llama_kv_cache_iswa *>(mem)) {
        // a cache of the window's size has overwritten what lies before the window
        const bool full = iswa->get_swa()->get_size() >= iswa->get_base()->get_size();
        return full ? SELFSPEC_MEMORY_ROLLBACK | SELFSPEC_MEMORY_IN_PLACE : 0;
    }
    // recurrent, hybrid and compressed memories
    return 0;
}

//
// C interface
//

// Loops over logits in a form that compilers turn into vector code: no calls, no branches, sixteen independent lanes.
// With the standard functions they would take a tenth of a small model's draft where the vocabulary is large.
static constexpr int32_t N_LANES = 16;

static float max_of(const float * x, int32_t n) {
    float lanes[N_LANES];
    std::fill_n(lanes, N_LANES, -INFINITY);

    const int32_t n_whole = n - n % N_LANES;
    for (int32_t i = 0; i < n_whole; i += N_LANES) {
        for (int32_t lane = 0; lane < N_LANES; ++lane) {
            lanes[lane] = x[i + lane] > lanes[lane] ? x[i + lane] : lanes[lane];
        }
    }
    float best = *std::max_element(lanes, lanes + N_LANES);
    for (int32_t i = n_whole; i < n; ++i) {
        best = x[i] > best ? x[i] : best;
    }
    return best;
}

// exp(x) for x <= 0 with a relative error below 5e-6. exp(x) = 2^k * exp(f*ln 2), k the integer nearest to x/ln 2.
static inline float exp_of_negative(float x) {
    const float z = (x > -87.0f ? x : -87.0f)*1.44269504f;
    const int   k = (int) (z - 0.5f);
    const float f = (z - (float) k)*0.69314718f;
    const float e = 1.0f + f*(1.0f + f*(1.0f/2 + f*(1.0f/6 + f*(1.0f/24 + f*(1.0f/120 + f*(1.0f/720))))));

    const int32_t bits = (k + 127) << 23;
    float scale;
    std::memcpy(&scale, &bits, sizeof(scale));

    return scale*e;
}

static float sum_exp(const float * x, int32_t n, float max) {
    float lanes[N_LANES] = {};

    const int32_t n_whole = n - n % N_LANES;
    for (int32_t i = 0; i < n_whole; i += N_LANES) {
        for (int32_t lane = 0; lane < N_LANES; ++lane) {
            lanes[lane] += exp_of_negative(x[i + lane] - max);
        }
    }
    for (int32_t i = n_whole; i < n; ++i) {
        lanes[i - n_whole] += exp_of_negative(x[i] - max);
    }
    return std::accumulate(lanes, lanes + N_LANES, 0.0f);
}

const char * selfspec_build_id(void) {
    return PYSELFSPEC_BUILD_ID;
}

selfspec_session * selfspec_init(llama_context * ctx) {
    if (!ctx) {
        return nullptr;
    }
    try {
        return new selfspec_session(ctx);
    } catch (const std::exception &) {
        return nullptr;
    }
}

void selfspec_free(selfspec_session * session) {
    delete session;
}

const char * selfspec_error(const selfspec_session * session) {
    return session ? session->error.c_str() : "no session";
}

int32_t selfspec_mask_support(selfspec_session * session, uint8_t * out, int32_t n_layer) {
    return session->guarded([&]() -> int32_t {
        if (!out || n_layer != session->n_layer) {
            refuse("the model has " + std::to_string(session->n_layer) + " blocks, not " + std::to_string(n_layer));
        }
        for (int32_t il = 0; il < n_layer; ++il) {
            out[il] = session->skippable(il);
        }
        return SELFSPEC_OK;
    });
}

int32_t selfspec_can_enter(selfspec_session * session, int32_t il) {
    return session->guarded([&]() -> int32_t { return session->can_enter(il); });
}

int32_t selfspec_memory(const selfspec_session * session) {
    return session->memory_bits();
}

size_t selfspec_graph_bytes(const selfspec_session * session) {
    return session->slots.n_bytes();
}

int32_t selfspec_decode(
        selfspec_session * session,
                 int32_t   seq_id,
                 int32_t   pos,
                 int32_t   n_tokens,
           const int32_t * tokens,
             const float * hidden,
           const uint8_t * mask,
                 int32_t   n_layer,
                 int32_t   hidden_at,
                   float * hidden_out,
                 int32_t   outputs,
                    bool   in_place) {
    return session->guarded([&]() -> int32_t {
        if (mask && n_layer != session->n_layer) {
            refuse("the mask is for " + std::to_string(n_layer) + " blocks, the model has " + std::to_string(session->n_layer));
        }

        request req { seq_id, pos, n_tokens, tokens, outputs, {} };
        if (mask && std::any_of(mask, mask + n_layer, [](uint8_t bits) { return bits != 0; })) {
            req.batch.mask.assign(mask, mask + n_layer);
        }
        if (hidden) {
            const auto & m = req.batch.mask;
            req.batch.enter_at = (int32_t) (std::find_if(m.begin(), m.end(), [](uint8_t bits) { return bits != SKIP_BLOCK; }) - m.begin());
        }
        req.batch.hidden     = hidden;
        req.batch.hidden_at  = hidden_at;
        req.batch.hidden_out = hidden_out;
        req.batch.in_place   = in_place;
        req.batch.has_tokens = tokens != nullptr;

        session->best     = {};
        session->best_row = n_tokens - 1;
        req.batch.best    = outputs == SELFSPEC_OUTPUTS_BEST ? &session->best : nullptr;

        return session->decode(req);
    });
}

int32_t selfspec_argmax(selfspec_session * session, int32_t i, float * p) {
    return session->guarded([&]() -> int32_t {
        const auto & known = session->best;
        if (known.token >= 0 && i == session->best_row) {
            if (!std::isfinite(known.p)) {
                refuse("the logits of row " + std::to_string(i) + " are not numbers", SELFSPEC_FAILED);
            }
            if (p) {
                *p = known.p;
            }
            return known.token;
        }
        const float * logits = llama_get_logits_ith(session->ctx, i);
        if (!logits) {
            refuse("there are no logits in row " + std::to_string(i));
        }
        const int32_t n_vocab = (int32_t) session->model.vocab.n_tokens();
        const float   max     = max_of(logits, n_vocab);
        const int32_t best    = (int32_t) (std::find(logits, logits + n_vocab, max) - logits);
        if (best == n_vocab) {
            refuse("the logits of row " + std::to_string(i) + " are not numbers", SELFSPEC_FAILED);
        }
        if (p) {
            *p = 1.0f/sum_exp(logits, n_vocab, max);
        }
        return best;
    });
}
