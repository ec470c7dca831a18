// The sequences of a context: what they hold, how many of their tokens stay, copies, and checkpoints of recurrent states.

#include "session/architectures.h"
#include "session/session.h"

#include "llama-context.h"
#include "llama-kv-cache-dsa.h"
#include "llama-kv-cache-iswa.h"
#include "llama-kv-cache.h"
#include "llama-memory-hybrid-iswa.h"
#include "llama-memory-hybrid.h"
#include "llama-model.h"

#include <algorithm>

namespace {

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

// Returns the cache that cache_of() returns, or that of the attention beside recurrent states.
const llama_kv_cache * attention_cache_of(const llama_memory_i * memory) {
    if (const auto * hybrid = dynamic_cast<const llama_memory_hybrid *>(memory)) {
        return hybrid->get_mem_attn();
    }
    if (const auto * hybrid = dynamic_cast<const llama_memory_hybrid_iswa *>(memory)) {
        return hybrid->get_mem_attn()->get_base();
    }
    return cache_of(memory);
}

// Returns the cell of a position of the sequence, or -1 if the sequence does not hold it.
int64_t cell_of(const llama_kv_cells & cells, int32_t seq_id, int64_t pos) {
    const auto & placed = cells.seq_pos_get(seq_id);
    const auto   it     = placed.lower_bound({ (llama_pos) pos, 0 });
    return it != placed.end() && it->first == pos ? (int64_t) it->second : -1;
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

// Checks where the rows are, and the list of tokens. Returns the positions of each sequence.
std::vector<selfspec_span> selfspec_session::admit(const selfspec_facts & known, const selfspec_request & asked) const {
    selfspec_require_among(known, asked.among, asked.rows);
    const auto spans = selfspec_spans_of(asked.rows);
    selfspec_require_place(known, held_in(ctx->get_memory(), model.hparams), asked.rows, spans, asked.pass);
    return spans;
}

// Returns the position in RoPE of a row that continues a sequence at this position, in a model with M-RoPE. A cell remembers its
// positions in the second and third dimension, and a picture ends where the larger of them does.
llama_pos selfspec_session::rope_pos(int32_t seq_id, int64_t pos) const {
    const auto * cache = attention_cache_of(ctx->get_memory());
    if (!cache) {
        return (llama_pos) pos;
    }
    const auto  & cells = cache->get_cells(seq_id);
    const int64_t cell  = cell_of(cells, seq_id, pos - 1);
    if (cell < 0) {
        return (llama_pos) pos;
    }
    const auto & at = cells.ext_get((uint32_t) cell);
    return std::max(at.x, at.y) + 1;
}

// Returns what selfspec_batch::rope_shift is for these rows.
std::vector<int32_t> selfspec_session::rope_shifts(const selfspec_rows & rows, const std::vector<selfspec_span> & spans) const {
    if (model.hparams.n_pos_per_embd() == 1) {
        return {};
    }
    std::map<int32_t, int32_t> shifts;
    for (const auto & span : spans) {
        shifts[span.seq_id] = rope_pos(span.seq_id, span.first) - (llama_pos) span.first;
    }
    if (std::all_of(shifts.begin(), shifts.end(), [](const auto & each) { return each.second == 0; })) {
        return {};
    }
    std::vector<int32_t> of_rows(rows.n);
    rows.each_sequence([&](int32_t i, int32_t seq_id) { of_rows[i] = shifts[seq_id]; });
    return of_rows;
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
        selfspec_refuse(selfspec_architecture(model) + ": sequence " + std::to_string(seq_id) + " cannot be cut to " + std::to_string(n) +
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
