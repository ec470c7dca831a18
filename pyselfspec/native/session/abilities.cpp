// What a context and its architecture support: facts, and graphs that are built without being computed.

#include "graph/checks.h"
#include "graph/weights.h"
#include "session/architectures.h"
#include "session/restored.h"
#include "session/session.h"

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

namespace {

template <typename... Kinds> bool is_any_of(const llama_memory_i * memory) {
    return (dynamic_cast<const Kinds *>(memory) || ...);
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
    // an unknown class of memory may belong to any architecture; without a memory, attention is over the batch
    return !selfspec_has(model, SELFSPEC_TRAIT_MIXES_ROWS) && is_any_of<llama_kv_cache, llama_kv_cache_iswa, llama_kv_cache_dsa,
        llama_kv_cache_dsa_iswa, llama_kv_cache_dsv4, llama_memory_recurrent, llama_memory_hybrid, llama_memory_hybrid_iswa,
        llama_memory_hybrid_idx>(memory);
}

} // namespace

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
    facts.leaves_last   = model.hparams.n_layer_nextn > 0 || selfspec_has(model, SELFSPEC_TRAIT_LEAVES_LAST);
    facts.has_encoder   = llama_model_has_encoder(&model);
    facts.has_decoder   = llama_model_has_decoder(&model);
    facts.is_special    = cparams.ctx_type != LLAMA_CONTEXT_TYPE_DEFAULT || !ctx->sampling.samplers.empty();
    facts.is_causal     = cparams.causal_attn;
    facts.embeds        = cparams.embeddings;
    facts.is_cpu_only   = is_cpu_only;
    return facts;
}

// Refuses, before any cell is written, a pass that the architecture does not support: builds the graph without computing it.
void selfspec_session::check_graph(const selfspec_pass & pass) {
    const bool asks = !pass.mask.empty() || !pass.hidden_at.empty() || pass.head == SELFSPEC_HEAD_BEST || pass.weights;
    if (!asks || graphs().work.count(pass)) {
        return;
    }
    if (llama_model_has_encoder(&model)) {
        selfspec_refuse(selfspec_architecture(model) + " is an encoder, masks work with decoder-only models", SELFSPEC_UNSUPPORTED);
    }
    if (!names_fault.empty()) {
        selfspec_refuse(selfspec_architecture(model) + ": " + names_fault, SELFSPEC_UNSUPPORTED);
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

    const selfspec_restored<uint32_t> n_outputs(ctx->n_outputs, ctx->n_seq_max());
    const selfspec_restored<bool>     leave_nextn(ctx->cparams.embeddings_nextn, pass.leaves(n_layer + 1));

    auto * res = ctx->gf_res_reserve.get();
    const auto decoder = ctx->cparams.ctx_type == LLAMA_CONTEXT_TYPE_MTP ? LLM_GRAPH_TYPE_DECODER_MTP : LLM_GRAPH_TYPE_DEFAULT;
    const auto gparams = ctx->graph_params(res, ubatch, mctx.get(), ctx->memory ? decoder : LLM_GRAPH_TYPE_ENCODER);
    res->reset();

    const bool ok = selfspec_weights_of(model, ubatch).build_graph(gparams) && selfspec_finish_graph(model, ubatch, *res) && check(res->get_gf());

    ggml_backend_sched_reset(ctx->sched.get());

    if (!ok && want->found.error.empty()) {
        return selfspec_architecture(model) + ": the graph of this pass cannot be built";
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
    if (exact_width() == 0 || !ctx->get_cparams().causal_attn || dynamic_cast<const llama_memory_hybrid_idx *>(mem) ||
            !is_any_of<llama_kv_cache, llama_kv_cache_iswa, llama_memory_recurrent, llama_memory_hybrid, llama_memory_hybrid_iswa>(mem)) {
        return false;
    }
    const auto is_exact = [width_of = selfspec_width_of_weights()](const ggml_tensor * t) { return width_of(t, false) == INT32_MAX; };
    // an embedding is looked up only, unless it is the head as well
    const ggml_tensor * looked_up = model.output && is_exact(model.output) ? model.tok_embd : nullptr;
    return std::all_of(model.tensors_by_name.begin(), model.tensors_by_name.end(), [&](const auto & named) {
        return named.second == looked_up || is_exact(named.second);
    });
}

int32_t selfspec_session::exact_width() const {
    const int32_t width = is_cpu_only && sums_by_row(model, ctx->get_memory()) ? width_of_products(model) : 0;
    return ctx->get_cparams().causal_attn ? width : std::min(width, 1);
}

int32_t selfspec_session::memory_bits() const {
    return operations() | (ctx->get_cparams().causal_attn ? SELFSPEC_MEMORY_CAUSAL : 0);
}

// The bits of memory_bits() for what can be done with the memory.
int32_t selfspec_session::operations() const {
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
