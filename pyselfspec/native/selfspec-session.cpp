#include "selfspec-session.h"

#include "selfspec-checks.h"
#include "selfspec-logits.h"

#include "ggml-backend.h"
#include "llama-arch.h"
#include "llama-context.h"
#include "llama-kv-cache-dsa.h"
#include "llama-kv-cache-iswa.h"
#include "llama-kv-cache.h"
#include "llama-model.h"

#include <algorithm>
#include <cmath>

static constexpr uint8_t SKIP_BLOCK = SELFSPEC_SKIP_ATTN | SELFSPEC_SKIP_FFN;

static constexpr int ALLOCATION_FAILED = -2; // llama_context::decode()

namespace {

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
    throw selfspec_failure { status, text };
}

std::string allowed(const char * name, int64_t value, int64_t first, int64_t last) {
    return std::string(name) + " is " + std::to_string(value) + ", allowed is " + std::to_string(first) + " to " + std::to_string(last);
}

std::string architecture(const llama_model & model) {
    return std::string("architecture ") + llm_arch_name(model.arch);
}

// Up to how many rows products with this model's weights promise the bits of one row.
int32_t exact_width_of(const llama_model & model) {
    const selfspec_width_function width_of = selfspec_width_of_weights();
    int32_t width = width_of ? SELFSPEC_EXACT_WIDTH : 0;
    for (const auto & [name, tensor] : model.tensors_by_name) {
        const ggml_backend_dev_t dev = tensor->buffer ? ggml_backend_buft_get_device(ggml_backend_buffer_get_type(tensor->buffer)) : nullptr;
        if (dev && ggml_backend_dev_type(dev) != GGML_BACKEND_DEVICE_TYPE_CPU) {
            return 0;
        }
        width = width > 0 ? std::min(width, width_of(tensor, false)) : 0;
    }
    return width;
}

} // namespace

selfspec_width_function selfspec_width_of_weights() {
    // asked by name, since the backend may be one of several libraries, loaded for the processor at hand
    const ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    const ggml_backend_reg_t reg = cpu ? ggml_backend_dev_backend_reg(cpu) : nullptr;
    return reg ? (selfspec_width_function) ggml_backend_reg_get_proc_address(reg, "selfspec_kernel_width") : nullptr;
}

int32_t selfspec_rows::n_outputs() const {
    return (int32_t) std::count_if(outputs, outputs + n, [](uint8_t wanted) { return wanted != 0; });
}

bool selfspec_rows::has_shared() const {
    return n_seq_ids && std::any_of(n_seq_ids, n_seq_ids + n, [](int32_t n_here) { return n_here > 1; });
}

selfspec_session::selfspec_session(llama_context * ctx) :
    ctx(ctx), model(ctx->get_model()), n_layer((int32_t) model.hparams.n_layer()), exact_width(exact_width_of(model)),
    slots(*ctx), batch(ctx),
    names_fault(selfspec_names_fault(model, ctx->get_memory())) {
    allow_moves();
}

int32_t selfspec_session::failed(int32_t status, const char * text) noexcept {
    try {
        error = text;
    } catch (...) {
        error.clear(); // no memory left to say why
    }
    return status;
}

//
// checks before anything is touched
//

void selfspec_session::require_seq(int32_t seq_id) const {
    if (seq_id < 0 || seq_id >= (int32_t) ctx->n_seq_max()) {
        refuse(allowed("seq_id", seq_id, 0, (int64_t) ctx->n_seq_max() - 1));
    }
}

// What holds for the rows of any decode.
void selfspec_session::check_batch(const selfspec_rows & rows) const {
    if (rows.n < 1 || rows.n > (int32_t) ctx->n_batch()) {
        refuse("n_tokens is " + std::to_string(rows.n) + ", allowed is 1 to n_batch = " + std::to_string(ctx->n_batch()));
    }
    if (!rows.seq_ids || !rows.pos || !rows.outputs) {
        refuse("a batch needs a sequence, a position and an output mark for every row");
    }
    const int32_t n_vocab = (int32_t) model.vocab.n_tokens();
    for (int32_t i = 0; i < rows.n; ++i) {
        if (rows.n_sequences(i) < 1) {
            refuse("row " + std::to_string(i) + " is in no sequence");
        }
    }
    rows.each_sequence([&](int32_t, int32_t seq_id) { require_seq(seq_id); });
    for (int32_t i = 0; i < rows.n; ++i) {
        if (rows.tokens && (rows.tokens[i] < 0 || rows.tokens[i] >= n_vocab)) {
            refuse("token id " + std::to_string(rows.tokens[i]) + " is not in the vocabulary, allowed is 0 to " + std::to_string(n_vocab - 1));
        }
    }
}

void selfspec_session::check_rows(const selfspec_rows & rows) const {
    check_batch(rows);

    const auto & cparams = ctx->get_cparams();
    if (cparams.ctx_type != LLAMA_CONTEXT_TYPE_DEFAULT || !ctx->sampling.samplers.empty()) {
        refuse("the context is of a special type or samples by itself; make an ordinary one", SELFSPEC_UNSUPPORTED);
    }
    if (llama_model_has_encoder(&model) && llama_model_has_decoder(&model)) {
        refuse(architecture(model) + " has an encoder, whose output the decoder would read; decoder-only models work", SELFSPEC_UNSUPPORTED);
    }
    if ((!ctx->get_memory() || !cparams.causal_attn) && rows.n > (int32_t) ctx->n_ubatch()) {
        refuse("n_tokens is " + std::to_string(rows.n) + ", without K/V or causal attention at most n_ubatch = " +
            std::to_string(ctx->n_ubatch()));
    }
    const int32_t n_outputs = cparams.embeddings || !ctx->get_memory() ? rows.n : rows.n_outputs();
    if (std::max<uint32_t>(n_outputs, ctx->n_seq_max()) > cparams.n_outputs_max) {
        refuse(std::to_string(n_outputs) + " outputs and " + std::to_string(ctx->n_seq_max()) + " sequences, allowed is n_outputs_max = " +
            std::to_string(cparams.n_outputs_max));
    }
}

void selfspec_session::check_head(const selfspec_pass & pass) const {
    if (pass.head != SELFSPEC_HEAD_LOGITS && pass.head != SELFSPEC_HEAD_BEST) {
        refuse("head is " + std::to_string(pass.head) + ", allowed is 0 (logits) or 1 (best)");
    }
    if (pass.n_among != 0 && pass.head != SELFSPEC_HEAD_BEST) {
        refuse("some tokens only can be looked at for the best one, not for logits");
    }
}

void selfspec_session::check_pass(const selfspec_rows & rows, const selfspec_states & states, const selfspec_pass & pass) const {
    if (!rows.tokens && !states.in) {
        refuse("a batch needs token ids or hidden states");
    }
    check_head(pass);
    if (pass.head == SELFSPEC_HEAD_BEST && !ctx->get_memory()) {
        refuse(architecture(model) + " keeps no K/V: it has logits only", SELFSPEC_UNSUPPORTED);
    }
    const auto unknown = std::find_if(pass.mask.begin(), pass.mask.end(), [](uint8_t bits) { return bits > SKIP_BLOCK; });
    if (unknown != pass.mask.end()) {
        refuse("block " + std::to_string(unknown - pass.mask.begin()) + ": " + allowed("mask", *unknown, 0, SKIP_BLOCK));
    }
    if (states.in && (pass.enter_at < 1 || pass.enter_at >= n_layer)) {
        refuse("hidden states need a mask that skips the first blocks whole and leaves at least one block to enter");
    }
    for (const int32_t il : pass.hidden_at) {
        const int32_t last = model.hparams.n_layer_nextn > 0 ? n_layer + 1 : n_layer;
        if (il < 1 || il > last || !states.out) {
            refuse(allowed("hidden_at", il, 1, last) + " with a place to copy to");
        }
        if (il < pass.enter_at && !pass.has_tokens) {
            refuse("hidden_at is " + std::to_string(il) + ", below block " + std::to_string(pass.enter_at) +
                " where the given states enter; that needs token ids");
        }
    }
    if (pass.leaves(n_layer) && rows.n_outputs() < rows.n) {
        refuse("the states leaving the last block exist for tokens with outputs only, ask for outputs of all");
    }
}

void selfspec_session::check_among(const selfspec_among & among, const selfspec_rows & rows) const {
    if (!among.ids) {
        return;
    }
    const int32_t n_vocab = (int32_t) model.vocab.n_tokens();
    if (among.n < 1 || among.n > n_vocab) {
        refuse(allowed("n_among", among.n, 1, n_vocab));
    }
    for (int32_t i = 0; i < among.n; ++i) {
        if (among.ids[i] <= (i > 0 ? among.ids[i - 1] : -1) || among.ids[i] >= n_vocab) {
            refuse("the tokens to look at are ids from 0 to " + std::to_string(n_vocab - 1) + " in rising order, none twice");
        }
    }
    if (rows.n_outputs() > SELFSPEC_EXACT_WIDTH) {
        refuse(allowed("the number of outputs that look at some tokens only", rows.n_outputs(), 0, SELFSPEC_EXACT_WIDTH));
    }
}

// One span of positions per sequence.
std::vector<selfspec_session::span> selfspec_session::spans_of(const selfspec_rows & rows) {
    std::vector<span> spans;
    rows.each_sequence([&](int32_t i, int32_t seq_id) {
        const int64_t pos = rows.pos[i];

        const auto it = std::find_if(spans.begin(), spans.end(), [&](const span & s) { return s.seq_id == seq_id; });
        if (it == spans.end()) {
            spans.push_back({ seq_id, pos, pos });
        } else if (pos == it->last + 1) {
            it->last = pos;
        } else {
            refuse("positions of a sequence are consecutive: sequence " + std::to_string(seq_id) + " has " +
                std::to_string(pos) + " after " + std::to_string(it->last));
        }
    });
    return spans;
}

void selfspec_session::check_place(const selfspec_rows & rows, const selfspec_pass & pass) const {
    const auto spans = spans_of(rows);

    if (!ctx->get_memory()) {
        // attention over the batch alone, as in diffusion models
        const bool from_0 = std::all_of(spans.begin(), spans.end(), [](const span & s) { return s.first == 0; });
        if (!from_0 || pass.in_place || pass.enter_at != -1 || !pass.hidden_at.empty()) {
            refuse(architecture(model) + " keeps no K/V: it decodes whole batches from position 0, without hidden states",
                SELFSPEC_UNSUPPORTED);
        }
        return;
    }
    if (pass.in_place && !(memory_bits() & SELFSPEC_MEMORY_IN_PLACE)) {
        refuse(architecture(model) + ": K/V cannot be rewritten in place", SELFSPEC_UNSUPPORTED);
    }
    if (rows.has_shared() && (pass.in_place || !(memory_bits() & SELFSPEC_MEMORY_ROLLBACK))) {
        refuse(architecture(model) + ": rows of several sequences need a memory that takes tokens back, and fresh cells",
            SELFSPEC_UNSUPPORTED);
    }
    for (const auto & each : spans) {
        check_span(each, pass.in_place);
    }
}

void selfspec_session::check_span(const span & rows, bool in_place) const {
    const std::string name  = "sequence " + std::to_string(rows.seq_id);
    const llama_pos   first = ctx->get_memory()->seq_pos_min(rows.seq_id);
    const llama_pos   last  = ctx->get_memory()->seq_pos_max(rows.seq_id);

    if (!in_place && rows.first != last + 1) {
        refuse(name + " ends at position " + std::to_string(last) + ", the next batch starts at " + std::to_string(last + 1) +
            ", not at " + std::to_string(rows.first));
    }
    if (in_place && (last < 0 || rows.first < first || rows.last > last)) {
        refuse("in place needs positions that " + name + " holds: asked " + std::to_string(rows.first) + " to " +
            std::to_string(rows.last) + ", held " + std::to_string(first) + " to " + std::to_string(last));
    }
    if (!holds_window(rows.seq_id, (llama_pos) rows.first)) {
        refuse(name + " no longer holds all that position " + std::to_string(rows.first) + " sees through its sliding window, "
            "it begins at " + std::to_string(first) + "; decode it anew", SELFSPEC_UNSUPPORTED);
    }
}

// A cache with a sliding window may let go of what lies outside. After a rollback the window reaches further back.
bool selfspec_session::holds_window(int32_t seq_id, llama_pos pos) const {
    const auto * mem = dynamic_cast<const llama_kv_cache_iswa *>(ctx->get_memory());
    if (!mem) {
        return true;
    }
    const auto    & hparams = model.hparams;
    const llama_pos first   = mem->seq_pos_min(seq_id);

    return first <= 0 || llama_hparams::is_masked_swa(hparams.n_swa, hparams.swa_type, first - 1, pos);
}

// Refuses what the architecture cannot do before any cell is written: builds the graph once, without computing it.
void selfspec_session::check_graph(const selfspec_pass & pass) {
    const bool asks = !pass.mask.empty() || !pass.hidden_at.empty() || pass.head == SELFSPEC_HEAD_BEST;
    if (!asks || works.count(pass)) {
        return;
    }
    if (llama_model_has_encoder(&model)) {
        refuse(architecture(model) + " is an encoder, masks work with decoder-only models", SELFSPEC_UNSUPPORTED);
    }
    if (!names_fault.empty()) {
        refuse(architecture(model) + ": " + names_fault, SELFSPEC_UNSUPPORTED);
    }
    const std::string fault = build_dry(pass);
    if (!fault.empty()) {
        refuse(fault, SELFSPEC_UNSUPPORTED);
    }
    works.insert(pass);
}

// Builds the graph of a pass without computing it. What is wrong with it, or nothing.
std::string selfspec_session::build_dry(const selfspec_pass & pass) {
    n_graph_checks++;

    ctx->synchronize();
    ctx->sched_reserve();

    const auto want = std::make_shared<const selfspec_batch>(pass, n_layer);
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
    const restored<bool>     leave_nextn(ctx->cparams.embeddings_nextn, pass.leaves(n_layer + 1));

    auto * res = ctx->gf_res_reserve.get();
    const auto decoder = ctx->cparams.ctx_type == LLAMA_CONTEXT_TYPE_MTP ? LLM_GRAPH_TYPE_DECODER_MTP : LLM_GRAPH_TYPE_DEFAULT;
    const auto gparams = ctx->graph_params(res, ubatch, mctx.get(), ctx->memory ? decoder : LLM_GRAPH_TYPE_ENCODER);
    res->reset();

    const bool ok = model.build_graph(gparams) && selfspec_finish_graph(model, ubatch, *res);

    ggml_backend_sched_reset(ctx->sched.get());

    if (!ok && want->found.error.empty()) {
        return architecture(model) + ": the graph of this pass cannot be built";
    }
    return want->found.error;
}

//
// decode
//

int32_t selfspec_session::decode(
        const selfspec_rows & rows, const selfspec_states & states, const selfspec_among & among, selfspec_pass pass) {
    check_rows(rows);
    check_pass(rows, states, pass);
    check_among(among, rows);
    check_place(rows, pass);

    const int32_t n_outputs = rows.n_outputs();
    if (n_outputs == 0) {
        pass.head    = SELFSPEC_HEAD_LOGITS; // there is no head
        pass.n_among = 0;
    }
    check_graph(pass);

    best.assign(pass.head == SELFSPEC_HEAD_BEST ? rows.n : 0, {});

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
    const auto want = std::make_shared<selfspec_batch>(std::move(pass), n_layer);
    want->hidden     = states.in;
    want->hidden_out = states.out;
    want->best       = best.data();
    want->among      = among.ids;

    require_done(decode_with(want, n_outputs), rows.n, want->found.error);
    name_best(among);
    return SELFSPEC_OK;
}

// Of places in a list to ids.
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
    if (own.empty() && model.d2t) {
        own.resize(ggml_nelements(model.d2t));
        ggml_backend_tensor_get(model.d2t, own.data(), 0, ggml_nbytes(model.d2t));
    }
    return own;
}

// why: what a graph build has found wrong, or nothing.
void selfspec_session::require_done(int status, int32_t n_tokens, const std::string & why) const {
    switch (status) {
        case 0:  return;
        case 1:  refuse("no free K/V cells for " + std::to_string(n_tokens) + " tokens, n_ctx is " + std::to_string(ctx->n_ctx()), SELFSPEC_FULL);
        case 2:  refuse("the computation was aborted", SELFSPEC_ABORTED);
        default: break;
    }
    if (!why.empty()) {
        refuse(why, SELFSPEC_UNSUPPORTED); // the graph of this batch differs from the one that was tried
    }
    refuse("llama.cpp could not decode the batch, status " + std::to_string(status), SELFSPEC_FAILED);
}

selfspec_session::lease::lease(selfspec_session & session, const std::shared_ptr<selfspec_batch> & lent) : session(session), lent(*lent) {
    // what asks for nothing takes upstream's way
    if (!lent->pass.is_plain()) {
        session.batch.selfspec = lent;
    }
}

selfspec_session::lease::~lease() {
    if (!lent.pass.hidden_at.empty() || lent.pass.head == SELFSPEC_HEAD_BEST) {
        session.ctx->synchronize(); // copies may be under way
    }
    lent.hidden     = nullptr;
    lent.hidden_out = nullptr;
    lent.best       = nullptr;
    lent.among      = nullptr;
    session.batch.selfspec.reset();
}

int selfspec_session::decode_with(const std::shared_ptr<selfspec_batch> & want, int32_t n_outputs) {
    const lease lent(*this, want);

    // the graph keeps all rows up to these states
    const restored<bool> leave_nextn(ctx->cparams.embeddings_nextn, want->pass.leaves(n_layer + 1));

    const auto decode_in_slot = [&] {
        const auto in_slot = slots.use(want->pass, (int32_t) batch.tokens.size(), n_outputs);
        return ctx->decode(batch);
    };
    int status = decode_in_slot();
    if (status < 0) {
        // a graph whose memory could not be had keeps the plan of it
        slots.drop(want->pass, (int32_t) batch.tokens.size(), n_outputs);
        ggml_backend_sched_forget_plan(ctx->sched.get());
    }
    if (status == ALLOCATION_FAILED && !want->pass.in_place) {
        status = ctx->decode(batch); // the context's own graph was reserved at its start
    }
    if (!best.empty()) {
        ctx->n_outputs = 0; // what lies in the buffer for logits is older
    }
    return status;
}

void selfspec_session::forget_outputs() noexcept {
    best.clear();
    ctx->n_outputs = 0;
}

const float * selfspec_session::logits_of(int32_t row) const {
    const float * logits = ctx->n_outputs > 0 ? llama_get_logits_ith(ctx, row) : nullptr;
    if (!logits) {
        refuse("there are no logits in row " + std::to_string(row));
    }
    return logits;
}

int32_t selfspec_session::sample(llama_sampler * chain, int32_t row) {
    const int32_t token = selfspec_draw(chain, logits_of(row), (int32_t) model.vocab.n_tokens(), candidates);
    if (token == SELFSPEC_NO_TOKEN) {
        refuse("no token is left to draw after row " + std::to_string(row) + ": the sampler's grammar and filters rule out all of "
            "the vocabulary", token);
    }
    if (token < 0) {
        refuse("the logits of row " + std::to_string(row) + " are not numbers", token);
    }
    return token;
}

int32_t selfspec_session::argmax(int32_t row, float * p) const {
    const std::string name = "row " + std::to_string(row);

    // a stock decode after ours leaves outputs of its own
    if (ctx->n_outputs == 0 && row >= 0 && row < (int32_t) best.size() && best[row].token >= 0) {
        const auto & known = best[row];
        if (!std::isfinite(known.p)) {
            refuse("the logits of " + name + " are not numbers", SELFSPEC_FAILED);
        }
        if (p) {
            *p = known.p;
        }
        return known.token;
    }

    const float * logits  = logits_of(row);
    const int32_t n_vocab = (int32_t) model.vocab.n_tokens();
    const float   max     = selfspec_max(logits, n_vocab);
    const int32_t found   = (int32_t) (std::find(logits, logits + n_vocab, max) - logits);
    if (found == n_vocab) {
        refuse("the logits of " + name + " are not numbers", SELFSPEC_FAILED);
    }
    if (p) {
        *p = 1.0f/selfspec_sum_exp(logits, n_vocab, max);
    }
    return found;
}

//
// what the architecture can do
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
    if (shortens < 0) {
        selfspec_pass pass;
        pass.head    = SELFSPEC_HEAD_BEST;
        pass.n_among = 1;
        shortens = ctx->get_memory() && build_dry(pass).empty();
    }
    return shortens;
}

bool selfspec_session::can_enter(int32_t il) {
    if (il < 1 || il >= n_layer || !(memory_bits() & SELFSPEC_MEMORY_IN_PLACE) || llama_model_has_encoder(&model)) {
        return false;
    }
    const auto known = can_enter_at.find(il);
    if (known != can_enter_at.end()) {
        return known->second;
    }

    selfspec_pass leave;
    leave.hidden_at = { il };

    selfspec_pass enter;
    enter.enter_at = il;
    enter.mask.assign(n_layer, 0);
    std::fill_n(enter.mask.begin(), il, SKIP_BLOCK);

    return can_enter_at[il] = build_dry(leave).empty() && build_dry(enter).empty();
}

int32_t selfspec_session::memory_bits() const {
    const auto * mem = ctx->get_memory();

    // flash attention adds up cells one after another, other attention in lanes
    ctx->sched_reserve();
    const int32_t scatter = ctx->get_cparams().flash_attn ? SELFSPEC_MEMORY_SCATTER : 0;

    if (dynamic_cast<const llama_kv_cache *>(mem)) {
        return SELFSPEC_MEMORY_ROLLBACK | SELFSPEC_MEMORY_IN_PLACE | scatter;
    }
    if (dynamic_cast<const llama_kv_cache_dsa *>(mem)) {
        return SELFSPEC_MEMORY_ROLLBACK | SELFSPEC_MEMORY_IN_PLACE;
    }
    if (const auto * iswa = dynamic_cast<const llama_kv_cache_iswa *>(mem)) {
        // a cache of the window's size has overwritten what lies before the window
        const bool full = iswa->get_swa()->get_size() >= iswa->get_base()->get_size();
        return full ? SELFSPEC_MEMORY_ROLLBACK | SELFSPEC_MEMORY_IN_PLACE | scatter : 0;
    }
    // recurrent, hybrid and compressed memories
    return 0;
}

int32_t selfspec_session::can_keep(int32_t seq_id, int32_t n) const {
    require_seq(seq_id);

    const auto    * mem  = ctx->get_memory();
    const llama_pos last = mem ? mem->seq_pos_max(seq_id) : -1;
    if (n > last) {
        return last + 1;
    }
    return n > 0 && (memory_bits() & SELFSPEC_MEMORY_ROLLBACK) && holds_window(seq_id, n) ? n : 0;
}
