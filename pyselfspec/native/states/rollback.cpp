#include "states/rollback.h"

#include "session/architectures.h"

#include "llama-context.h"
#include "llama-kv-cache-dsa-iswa.h"
#include "llama-kv-cache-dsa.h"
#include "llama-kv-cache-iswa.h"
#include "llama-kv-cache-msa.h"
#include "llama-kv-cache.h"
#include "llama-memory-hybrid-idx.h"
#include "llama-memory-hybrid-iswa.h"
#include "llama-memory-hybrid.h"
#include "llama-memory-recurrent.h"
#include "llama-model.h"

#include <algorithm>
#include <cstdint>

static bool removes_any_tail(const llama_memory_i * memory) {
    // a cache of the window's size has overwritten cells before the window
    if (const auto * iswa = dynamic_cast<const llama_kv_cache_iswa *>(memory)) {
        return iswa->get_swa()->get_size() >= iswa->get_base()->get_size();
    }
    if (const auto * dsa = dynamic_cast<const llama_kv_cache_dsa_iswa *>(memory)) {
        return dsa->get_swa()->get_size() >= dsa->get_dsa()->get_mla()->get_size();
    }
    return dynamic_cast<const llama_kv_cache *>(memory) || dynamic_cast<const llama_kv_cache_dsa *>(memory) ||
        dynamic_cast<const llama_kv_cache_msa *>(memory);
}

static bool holds_states(const llama_memory_i * memory, const llama_model & model) {
    return !selfspec_has(model, SELFSPEC_TRAIT_MIXES_ROWS) && (dynamic_cast<const llama_memory_recurrent *>(memory) ||
        dynamic_cast<const llama_memory_hybrid *>(memory) || dynamic_cast<const llama_memory_hybrid_iswa *>(memory));
}

int64_t selfspec_state_bytes(const llama_model & model) {
    const auto & hparams  = model.hparams;
    const bool   in_all   = llm_arch_is_recurrent(model.arch) || selfspec_has(model, SELFSPEC_TRAIT_STATES_IN_ALL);
    const bool   in_some  = in_all || llm_arch_is_hybrid(model.arch);
    int64_t      n_floats = 0;
    for (uint32_t il = 0; in_some && il < hparams.n_layer(); ++il) {
        n_floats += in_all || hparams.is_recr(il) ? hparams.n_embd_r() + hparams.n_embd_s() : 0;
    }
    return n_floats*(int64_t) sizeof(float);
}

bool selfspec_replays(const llama_model & model) {
    return selfspec_has(model, SELFSPEC_TRAIT_REPLAYS);
}

// Returns the recurrent part of a memory whose states are all in it, else NULL.
static llama_memory_recurrent * states_of(llama_memory_i * memory, const llama_model & model) {
    if (!holds_states(memory, model) || dynamic_cast<llama_memory_hybrid_idx *>(memory)) {
        return nullptr;
    }
    if (auto * hybrid = dynamic_cast<llama_memory_hybrid *>(memory)) {
        return hybrid->get_mem_recr();
    }
    if (auto * hybrid = dynamic_cast<llama_memory_hybrid_iswa *>(memory)) {
        return hybrid->get_mem_recr();
    }
    return dynamic_cast<llama_memory_recurrent *>(memory);
}

// Removes the K/V of a hybrid memory from a position on.
static bool remove_kv(llama_memory_i * memory, int32_t seq_id, llama_pos from) {
    if (auto * hybrid = dynamic_cast<llama_memory_hybrid *>(memory)) {
        return hybrid->get_mem_attn()->seq_rm(seq_id, from, -1);
    }
    if (auto * hybrid = dynamic_cast<llama_memory_hybrid_iswa *>(memory)) {
        return hybrid->get_mem_attn()->seq_rm(seq_id, from, -1);
    }
    return true;
}

static constexpr int32_t MAX_REPLAY = 15; // the longest draft

static constexpr llama_state_seq_flags STATE_ONLY = LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY;

selfspec_rollback::selfspec_rollback(llama_context & ctx) :
    ctx(ctx), is_cache(removes_any_tail(ctx.get_memory())), is_recurrent(holds_states(ctx.get_memory(), ctx.get_model())),
    tails(ctx.n_seq_max()), pending(ctx.n_seq_max()), states(states_of(ctx.get_memory(), ctx.get_model())), n_texts((int32_t) ctx.n_seq_max()) {}

int32_t selfspec_rollback::limit() const {
    return is_cache ? INT32_MAX : replay ? MAX_REPLAY : (int32_t) ctx.get_cparams().n_rs_seq;
}

void selfspec_rollback::replay_for(int32_t n_seq) {
    if (!states || n_seq < 1 || n_seq > (int32_t) ctx.n_seq_max()/2) {
        selfspec_refuse("the context cannot keep a state before a pass for each of " + std::to_string(n_seq) + " sequences");
    }
    n_texts = n_seq;
    replay  = std::make_unique<selfspec_replay>(ctx, *states);
}

bool selfspec_rollback::knows(ggml_cgraph * graph, int32_t n_rows) {
    return replay->knows(graph, { n_rows, 1, 0, 0 });
}

static int64_t rows_of(const selfspec_span & span) {
    return span.last - span.first + 1;
}

// Whether the inputs of the last pass are still in memory, and no fork shares the state after it.
bool selfspec_rollback::can_replay(int32_t seq_id) const {
    return last_graph && generation == replay->generation() && states->cells[cell_of(seq_id)].seq_id.size() == 1;
}

int32_t selfspec_rollback::cell_of(int32_t seq_id) const {
    return states->cells[seq_id].tail;
}

// Whether the state before such a pass is kept: where more than one row for each sequence, all in one ubatch, may be removed.
bool selfspec_rollback::is_kept(const std::vector<selfspec_span> & spans) const {
    const int64_t n = spans.empty() ? 0 : rows_of(spans[0]);
    return replay && n > 1 && n <= MAX_REPLAY + 1 && n*spans.size() <= ctx.n_ubatch() &&
        std::all_of(spans.begin(), spans.end(), [&](const auto & span) { return rows_of(span) == n; });
}

void selfspec_rollback::begin(const std::vector<selfspec_span> & spans, selfspec_pass & pass) {
    if (is_cache) {
        return;
    }
    std::fill(tails.begin(), tails.end(), tail());
    last_graph = nullptr;
    if (!replay || spans.empty()) {
        return;
    }
    for (int32_t seq_id = 0; seq_id < n_texts; ++seq_id) {
        states->seq_rm(n_texts + seq_id, -1, -1);
    }
    pass.cell  = cell_of(spans[0].seq_id);
    pass.keeps = is_kept(spans);
    for (const auto & span : spans) {
        if (pass.keeps) {
            states->seq_cp(span.seq_id, n_texts + span.seq_id, -1, -1);
        }
    }
}

void selfspec_rollback::ran(const std::vector<selfspec_span> & spans, ggml_cgraph * graph) {
    if (is_cache) {
        return;
    }
    if (replay) {
        last_graph = is_kept(spans) ? graph : nullptr;
        generation = replay->generation();
    }
    // llama.cpp evaluates sequences with different numbers of rows one after another; the later ones may move the state of
    // the earlier ones without their snapshots
    const bool together = std::all_of(spans.begin(), spans.end(), [&](const auto & span) { return rows_of(span) == rows_of(spans[0]); });

    std::fill(tails.begin(), tails.end(), tail());
    for (const auto & span : spans) {
        tails[span.seq_id]   = { span.last, together ? (int32_t) rows_of(span) : 0 };
        pending[span.seq_id] = false;
    }
}

bool selfspec_rollback::can_keep(int32_t seq_id, int64_t n_keep) const {
    if (n_keep <= 0 || is_cache) {
        return true;
    }
    const auto  & found = tails[seq_id];
    const int64_t last  = ctx.get_memory()->seq_pos_max(seq_id);
    const int64_t n     = last + 1 - n_keep;
    if (replay && n > 0 && !can_replay(seq_id)) {
        return false;
    }
    return n <= 0 || (last == found.last && !pending[seq_id] && n <= std::min(limit(), found.n_rows - 1));
}

bool selfspec_rollback::keep(int32_t seq_id, int64_t n_keep) {
    auto * memory = ctx.get_memory();
    if (!can_keep(seq_id, n_keep)) {
        return false;
    }
    if (!memory || n_keep > memory->seq_pos_max(seq_id)) {
        return true;
    }
    if (replay && n_keep > 0) {
        replay_to(seq_id, (int32_t) n_keep);
        return true;
    }
    if (!memory->seq_rm(seq_id, n_keep <= 0 ? -1 : (llama_pos) n_keep, -1)) {
        return false;
    }
    tails[seq_id]   = {};
    pending[seq_id] = n_keep > 0;
    return true;
}

void selfspec_rollback::replay_to(int32_t seq_id, int32_t n_keep) {
    auto        & found  = tails[seq_id];
    const int32_t n_cut  = (int32_t) (found.last + 1 - n_keep);
    const int32_t before = cell_of(n_texts + seq_id);
    const int32_t after  = cell_of(seq_id);
    const bool    done   = replay->run(last_graph, { found.n_rows, found.n_rows - n_cut, before, after });
    found = {};
    if (done) {
        states->cells[after].pos = n_keep - 1;
    }
    if (!done || !remove_kv(ctx.get_memory(), seq_id, n_keep)) {
        ctx.get_memory()->seq_rm(seq_id, -1, -1);
        selfspec_refuse("the state of sequence " + std::to_string(seq_id) + " after " + std::to_string(n_keep) +
            " tokens could not be computed again; the sequence is empty now", SELFSPEC_FAILED);
    }
}

void selfspec_rollback::drop(int32_t seq_id) {
    keep(seq_id, 0);
}

void selfspec_rollback::fork(int32_t seq_id, int32_t copy) {
    auto * memory = ctx.get_memory();
    // what a removal has left is a snapshot, which a copy of the sequence would not see
    std::vector<uint8_t> state(is_recurrent && pending[seq_id] ? state_size(seq_id) : 0);
    if (!state.empty() && !save(seq_id, state.data(), state.size())) {
        selfspec_refuse("the state of sequence " + std::to_string(seq_id) + " cannot be copied", SELFSPEC_FAILED);
    }
    const int64_t n = memory->seq_pos_max(seq_id) + 1;
    memory->seq_cp(seq_id, copy, -1, -1);
    tails[copy]   = {};
    pending[copy] = false;
    if (!state.empty() && !load(copy, state.data(), state.size(), n)) {
        selfspec_refuse("the state of sequence " + std::to_string(seq_id) + " cannot be copied", SELFSPEC_FAILED);
    }
}

size_t selfspec_rollback::state_size(int32_t seq_id) const {
    return is_recurrent ? ctx.state_seq_get_size(seq_id, STATE_ONLY) : 0;
}

bool selfspec_rollback::save(int32_t seq_id, uint8_t * out, size_t size) const {
    return is_recurrent && ctx.state_seq_get_data(seq_id, out, size, STATE_ONLY) == size;
}

bool selfspec_rollback::load(int32_t seq_id, const uint8_t * state, size_t size, int64_t n_keep) {
    auto     * memory = ctx.get_memory();
    const bool done   = is_recurrent && size > 0 && ctx.state_seq_set_data(seq_id, state, size, STATE_ONLY) == size &&
        memory->seq_rm(seq_id, (llama_pos) n_keep, -1) && memory->seq_pos_max(seq_id) == n_keep - 1;
    tails[seq_id]   = {};
    pending[seq_id] = false;
    if (!done) {
        memory->seq_rm(seq_id, -1, -1);
    }
    return done;
}
