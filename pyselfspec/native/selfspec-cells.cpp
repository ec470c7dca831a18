// Which cells of the K/V cache a batch writes.

#include "selfspec-batch.h"

#include "llama-batch.h"
#include "llama-kv-cells.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

bool selfspec_in_place(const selfspec_batch_ptr & batch) {
    return batch && batch->pass.in_place;
}

std::vector<uint32_t> selfspec_find_cells(const llama_ubatch & ubatch, const llama_kv_cells & cells, uint32_t i0, uint32_t n) {
    std::vector<uint32_t> idxs;
    idxs.reserve(n);

    for (uint32_t i = i0; i < i0 + n; ++i) {
        const auto & placed = cells.seq_pos_get(ubatch.seq_id[i][0]);

        const auto it = placed.lower_bound({ ubatch.pos[i], 0 });
        if (it == placed.end() || it->first != ubatch.pos[i]) {
            return {};
        }
        idxs.push_back(it->second);
    }
    return idxs;
}

namespace {

struct cell_run {
    uint32_t begin = 0;
    uint32_t size  = 0;
};

// Finds free cells row by row. A cell that one row was given is no longer free for the next.
class cell_finder {
public:
    cell_finder(const llama_ubatch & ubatch, const llama_kv_cells & cells) : ubatch(ubatch), cells(cells) {}

    std::optional<uint32_t> find(uint32_t i) {
        auto found = first_free(begin_of(i));
        if (!found) {
            found = first_free(0); // out of order, but better than no room
        }
        if (found) {
            taken.insert(*found);
            for (int32_t s = 0; s < ubatch.n_seq_id[i]; ++s) {
                next[ubatch.seq_id[i][s]] = *found + 1;
            }
        }
        return found;
    }

private:
    bool is_free(uint32_t cell) const { return cells.is_empty(cell) && !taken.count(cell); }

    std::optional<uint32_t> first_free(uint32_t begin) const {
        for (uint32_t cell = begin; cell < cells.size(); ++cell) {
            if (is_free(cell)) {
                return cell;
            }
        }
        return {};
    }

    // Where the cells of the row's sequences may begin: above all that they hold.
    uint32_t begin_of(uint32_t i) {
        uint32_t begin = 0;
        bool     holds = false;
        for (int32_t s = 0; s < ubatch.n_seq_id[i]; ++s) {
            const llama_seq_id seq_id = ubatch.seq_id[i][s];
            const auto & held = cells.seq_pos_get(seq_id);

            auto it = next.find(seq_id);
            if (it == next.end() && !held.empty()) {
                it = next.emplace(seq_id, held.rbegin()->second + 1).first;
            }
            if (it != next.end()) {
                begin = std::max(begin, it->second);
                holds = true;
            }
        }
        return holds ? begin : begin_of_new(ubatch.seq_id[i][0]);
    }

    // A sequence that begins beside others shares the longest run with the one before it: as much room below its rows
    // as above. Upstream's attention over many tokens works in tiles of cells, so a multiple of their size gives a prompt
    // the same bits as alone.
    uint32_t begin_of_new(llama_seq_id seq_id) const {
        if (cells.get_used() == 0 && taken.empty()) {
            return 0;
        }
        const cell_run run = longest_free_run();
        const uint32_t n   = rows_of(seq_id);
        if (n > run.size) {
            return 0; // it will be spread over several runs
        }
        const uint32_t begin = run.begin + (run.size - n)/2;
        for (const uint32_t unit : { 256u, 64u }) {
            const uint32_t aligned = begin/unit*unit;
            if (aligned >= run.begin) {
                return aligned;
            }
        }
        return begin;
    }

    cell_run longest_free_run() const {
        cell_run best, run;
        for (uint32_t cell = 0; cell < cells.size(); ++cell) {
            if (is_free(cell)) {
                run.size++;
            } else {
                run = { cell + 1, 0 };
            }
            if (run.size > best.size) {
                best = run;
            }
        }
        return best;
    }

    uint32_t rows_of(llama_seq_id seq_id) const {
        uint32_t n = 0;
        for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
            n += ubatch.seq_id[i][0] == seq_id;
        }
        return n;
    }

    const llama_ubatch   & ubatch;
    const llama_kv_cells & cells;

    std::set<uint32_t>               taken; // by rows of this batch
    std::map<llama_seq_id, uint32_t> next;  // above the last cell of the sequence
};

} // namespace

std::vector<uint32_t> selfspec_place_cells(const llama_ubatch & ubatch, const llama_kv_cells & cells) {
    std::vector<uint32_t> idxs;
    idxs.reserve(ubatch.n_tokens);

    cell_finder finder(ubatch, cells);
    for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
        const auto cell = finder.find(i);
        if (!cell) {
            return {};
        }
        idxs.push_back(*cell);
    }
    return idxs;
}
