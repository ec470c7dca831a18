// The choice of the K/V cells that a batch writes.

#include "kv/placement.h"

#include "graph/batch.h"

#include <algorithm>
#include <optional>

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

std::vector<uint32_t> selfspec_place_cells(const llama_ubatch & ubatch, const llama_kv_cells & cells, const selfspec_kv_reservations & room) {
    auto & planned = room.planned;
    if (planned.size() < ubatch.n_tokens) {
        return selfspec_place(cells, room, selfspec_rows_of(ubatch)).cells;
    }
    const auto end = planned.begin() + ubatch.n_tokens;
    std::vector<uint32_t> idxs(planned.begin(), end);
    planned.erase(planned.begin(), end);
    return idxs;
}

std::vector<selfspec_row> selfspec_rows_of(const llama_ubatch & ubatch) {
    std::vector<selfspec_row> rows(ubatch.n_tokens);
    for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
        rows[i] = { ubatch.seq_id[i], ubatch.n_seq_id[i] };
    }
    return rows;
}

bool selfspec_ascends(const llama_kv_cells & cells, llama_seq_id seq_id) {
    const auto & held = cells.seq_pos_get(seq_id);
    return std::is_sorted(held.begin(), held.end(), [](const auto & a, const auto & b) { return a.second < b.second; });
}

//
// needs of sequences
//

static constexpr uint32_t MIN_SOFT = 256; // llama.cpp computes attention over multiples of it

selfspec_needs::selfspec_needs(const llama_kv_cells & cells, const selfspec_kv_reservations & room, const std::vector<selfspec_row> & rows)
    : cells(cells), room(room) {
    for (const auto & row : rows) {
        pending[row.first()]++; // once for all sequences that share the row: their earlier tokens are equal
    }
    for (llama_seq_id s = 0; s < LLAMA_MAX_SEQ; ++s) {
        if (!cells.seq_pos_get(s).empty() || pending.count(s)) {
            active.push_back(s);
        }
    }
}

uint32_t selfspec_needs::n_pending(llama_seq_id seq_id) const {
    const auto it = pending.find(seq_id);
    return it == pending.end() ? 0 : it->second;
}

uint32_t selfspec_needs::firm(llama_seq_id seq_id) const {
    const auto     it   = n_placed.find(seq_id);
    const uint32_t held = (uint32_t) cells.seq_pos_get(seq_id).size() + (it == n_placed.end() ? 0 : it->second);
    const uint32_t want = is_known(seq_id) ? (uint32_t) room.of(seq_id) : 0;
    return std::max(want > held ? want - held : 0, n_pending(seq_id));
}

uint32_t selfspec_needs::soft(llama_seq_id seq_id) const {
    if (is_known(seq_id)) {
        return firm(seq_id);
    }
    return std::max({ MIN_SOFT, (uint32_t) cells.seq_pos_get(seq_id).size(), n_pending(seq_id) });
}

uint32_t selfspec_needs::total_firm() const {
    uint32_t total = 0;
    for (const llama_seq_id s : active) {
        total += firm(s);
    }
    return total;
}

void selfspec_needs::placed(const selfspec_row & row) {
    pending[row.first()]--;
    for (int32_t i = 0; i < row.n; ++i) {
        n_placed[row.seq_ids[i]]++;
    }
}

//
// finding free cells
//

namespace {

struct run {
    uint32_t begin = 0;
    uint32_t size  = 0;
    uint32_t end() const { return begin + size; }
};

// Finds free cells row by row. A cell given to one row is not free for the next.
class finder {
public:
    finder(const llama_kv_cells & cells, const selfspec_kv_reservations & room, const std::vector<selfspec_row> & rows, bool tightly)
        : cells(cells), tightly(tightly), needs(cells, room, rows) {}

    selfspec_placed place(const std::vector<selfspec_row> & rows) {
        for (const auto & row : rows) {
            const auto cell = find(row);
            if (!cell) {
                return {};
            }
            taken.emplace(*cell, row.first());
            for (int32_t i = 0; i < row.n; ++i) {
                last[row.seq_ids[i]] = *cell;
            }
            needs.placed(row);
            found.cells.push_back(*cell);
        }
        return std::move(found);
    }

private:
    // By the first cell of a run: the sequences that continue there.
    using fronts = std::map<uint32_t, std::vector<llama_seq_id>>;

    std::optional<uint32_t> find(const selfspec_row & row) {
        const llama_seq_id seq_id = row.first();
        const auto         above  = above_all(row);
        if (above) {
            const auto next = front(seq_id, *above);
            if (next && !is_contested(seq_id, *next)) {
                return next;
            }
        }
        const auto runs = free_runs(above.value_or(0));
        if (!runs.empty()) {
            const auto others = fronts_beside(seq_id);
            if (const auto cell = tightly ? tight(runs, others) : roomy(seq_id, runs, others)) {
                return cell;
            }
        }
        const auto anywhere = free_runs(0);
        if (anywhere.empty()) {
            return {};
        }
        found.disordered = true; // better than failing
        return anywhere.front().begin;
    }

    // The largest number of cells that other sequences claim at the beginning of a run; f(sequence): its claim.
    template <typename F> static uint32_t claimed(const run & r, const fronts & others, F f) {
        uint32_t most = 0;
        if (const auto it = others.find(r.begin); it != others.end()) {
            for (const llama_seq_id other : it->second) {
                most = std::max(most, f(other));
            }
        }
        return std::min(most, r.size);
    }

    std::optional<uint32_t> roomy(llama_seq_id seq_id, const std::vector<run> & runs, const fronts & others) {
        const uint32_t need = needs.firm(seq_id);
        const auto     soft = [&](llama_seq_id s) { return needs.soft(s); };
        const auto     firm = [&](llama_seq_id s) { return needs.firm(s); };

        for (const run & r : runs) {
            const uint32_t n = claimed(r, others, soft);
            if (r.size - n >= need) {
                return r.begin + n;
            }
        }
        for (const run & r : runs) {
            if (r.size - claimed(r, others, firm) >= need) {
                return r.end() - need; // as far as possible from a sequence that may grow up to it
            }
        }
        found.crowded |= needs.is_known(seq_id);

        // near to another sequence, so that passes over both read few cells
        const run      best   = *std::max_element(runs.begin(), runs.end(), [](const run & a, const run & b) { return a.size < b.size; });
        const uint32_t n_near = std::max(MIN_SOFT, claimed(best, others, soft)/2);
        const uint32_t n_last = best.size - std::min(best.size, std::max(1u, needs.n_pending(seq_id)));
        return best.begin + std::min({ n_near, best.size/2, n_last });
    }

    // The first free cell that no row of another sequence will need to continue there.
    std::optional<uint32_t> tight(const std::vector<run> & runs, const fronts & others) const {
        for (const run & r : runs) {
            const uint32_t n = claimed(r, others, [&](llama_seq_id s) { return needs.n_pending(s); });
            if (n < r.size) {
                return r.begin + n;
            }
        }
        return {};
    }

    std::optional<uint32_t> last_of(llama_seq_id seq_id) const {
        if (const auto it = last.find(seq_id); it != last.end()) {
            return it->second;
        }
        const auto & held = cells.seq_pos_get(seq_id);
        return held.empty() ? std::nullopt : std::make_optional(held.rbegin()->second);
    }

    // The first cell above all cells of the row's sequences; nothing if they hold none.
    std::optional<uint32_t> above_all(const selfspec_row & row) const {
        std::optional<uint32_t> above;
        for (int32_t i = 0; i < row.n; ++i) {
            if (const auto cell = last_of(row.seq_ids[i])) {
                above = std::max(above.value_or(0), *cell + 1);
            }
        }
        return above;
    }

    // The free cell in which a sequence can continue, past cells of drafts that were forked from it.
    std::optional<uint32_t> front(llama_seq_id seq_id, uint32_t begin) const {
        for (uint32_t cell = begin; cell < cells.size(); ++cell) {
            if (is_free(cell)) {
                return cell;
            }
            if (!may_pass(seq_id, cell)) {
                break;
            }
        }
        return {};
    }

    // Whether another sequence would continue in this cell as well, as do two that share a prompt.
    bool is_contested(llama_seq_id seq_id, uint32_t cell) const {
        const auto & held = cells.seq_pos_get(seq_id);
        if (last.count(seq_id) || !needs.is_known(seq_id) || held.empty() || cells.seq_count(held.rbegin()->second) == 1) {
            return false;
        }
        return fronts_beside(seq_id).count(cell);
    }

    bool may_pass(llama_seq_id seq_id, uint32_t cell) const {
        if (const auto it = taken.find(cell); it != taken.end()) {
            return are_draft_and_text(seq_id, it->second);
        }
        const auto & holders = cells.seq_get_all(cell);
        const auto & all     = needs.sequences();
        return std::all_of(all.begin(), all.end(), [&](llama_seq_id other) {
            return other == seq_id || !holders.test(other) || are_draft_and_text(seq_id, other);
        });
    }

    // Whether one of them is a fork of the other without a reservation: a draft, whose cells will soon be free again.
    bool are_draft_and_text(llama_seq_id a, llama_seq_id b) const {
        return !(needs.is_known(a) && needs.is_known(b)) && (holds_last_of(a, b) || holds_last_of(b, a));
    }

    bool holds_last_of(llama_seq_id seq_id, llama_seq_id other) const {
        const auto & held = cells.seq_pos_get(other);
        return !held.empty() && cells.seq_has(held.rbegin()->second, seq_id);
    }

    bool is_free(uint32_t cell) const { return cells.is_empty(cell) && !taken.count(cell); }

    std::vector<run> free_runs(uint32_t above) const {
        std::vector<run> runs;
        bool             open = false;
        for (uint32_t cell = above; cell < cells.size(); ++cell) {
            const bool free = is_free(cell);
            if (free && !open) {
                runs.push_back({ cell, 0 });
            }
            if (free) {
                runs.back().size++;
            }
            open = free;
        }
        return runs;
    }

    fronts fronts_beside(llama_seq_id seq_id) const {
        fronts others;
        for (const llama_seq_id other : needs.sequences()) {
            const auto cell = last_of(other);
            if (other == seq_id || !cell || are_draft_and_text(seq_id, other)) {
                continue;
            }
            if (const auto at = front(other, *cell + 1)) {
                others[*at].push_back(other);
            }
        }
        return others;
    }

    const llama_kv_cells & cells;
    const bool             tightly;
    selfspec_needs         needs;

    std::map<uint32_t, llama_seq_id> taken; // cells given to rows of this batch
    std::map<llama_seq_id, uint32_t> last;  // by sequence: the last of these cells
    selfspec_placed                  found;
};

} // namespace

bool selfspec_needs_moves(const selfspec_placed & placed, const llama_kv_cells & cells, const selfspec_needs & needs) {
    return placed.disordered || (placed.crowded && needs.total_firm() <= cells.size() - cells.get_used());
}

selfspec_placed selfspec_place(const llama_kv_cells & cells, const selfspec_kv_reservations & room, const std::vector<selfspec_row> & rows) {
    selfspec_placed placed = finder(cells, room, rows, false).place(rows);
    return placed.disordered ? finder(cells, room, rows, true).place(rows) : placed;
}
