// Which cells of the K/V cache a batch writes.

#include "selfspec-cells.h"

#include "selfspec-batch.h"

#include <algorithm>

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

std::vector<uint32_t> selfspec_place_cells(const llama_ubatch & ubatch, const llama_kv_cells & cells, const selfspec_room & room) {
    return selfspec_cell_finder(cells, room, selfspec_rows_of(ubatch)).find_all();
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
// what sequences need
//

static constexpr uint32_t MIN_SOFT = 256; // llama.cpp computes attention over multiples of it

selfspec_needs::selfspec_needs(const llama_kv_cells & cells, const selfspec_room & room, const std::vector<selfspec_row> & rows)
    : cells(cells), room(room) {
    for (const auto & row : rows) {
        pending[row.first()]++; // sequences that share a row hold the same until then
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

selfspec_cell_finder::selfspec_cell_finder(const llama_kv_cells & cells, const selfspec_room & room, std::vector<selfspec_row> rows)
    : cells(cells), rows(std::move(rows)), needs(cells, room, this->rows) {}

std::vector<uint32_t> selfspec_cell_finder::find_all() {
    std::vector<uint32_t> idxs;
    idxs.reserve(rows.size());

    for (const auto & row : rows) {
        const auto cell = find(row);
        if (!cell) {
            return {};
        }
        taken.emplace(*cell, row);
        for (int32_t i = 0; i < row.n; ++i) {
            last[row.seq_ids[i]] = *cell;
        }
        needs.placed(row);
        idxs.push_back(*cell);
    }
    return idxs;
}

std::optional<uint32_t> selfspec_cell_finder::find(const selfspec_row & row) {
    const llama_seq_id seq_id = row.first();
    const auto         above  = above_all(row);
    if (above) {
        const auto next = front(seq_id, *above);
        if (next && !is_contested(seq_id, *next)) {
            return next;
        }
    }
    auto found = jump(seq_id, above.value_or(0));
    if (!found && above) {
        disordered = true; // better than no room
        found = jump(seq_id, 0);
    }
    return found;
}

// A cell above all that a sequence holds where it did not reach one by going on.
std::optional<uint32_t> selfspec_cell_finder::jump(llama_seq_id seq_id, uint32_t above) {
    const auto runs = free_runs(above);
    if (runs.empty()) {
        return {};
    }
    const uint32_t need   = needs.firm(seq_id);
    const auto     fronts = fronts_beside(seq_id);

    const auto claimed = [&](const run & r, auto f) {
        uint32_t most = 0;
        if (const auto it = fronts.find(r.begin); it != fronts.end()) {
            for (const llama_seq_id other : it->second) {
                most = std::max(most, f(other));
            }
        }
        return std::min(most, r.size);
    };
    const auto soft = [&](llama_seq_id s) { return needs.soft(s); };
    const auto firm = [&](llama_seq_id s) { return needs.firm(s); };

    for (const run & r : runs) {
        const uint32_t n = claimed(r, soft);
        if (r.size - n >= need) {
            return r.begin + n;
        }
    }
    for (const run & r : runs) {
        if (r.size - claimed(r, firm) >= need) {
            return r.end() - need; // as far as possible from a text that may grow up to it
        }
    }
    crowded |= needs.is_known(seq_id);

    // beside another one in the largest run, near to it, so that passes over both look at few cells
    const run      best = *std::max_element(runs.begin(), runs.end(), [](const run & a, const run & b) { return a.size < b.size; });
    const uint32_t own  = std::min(best.size, needs.n_pending(seq_id));
    return best.begin + std::min({ std::max(MIN_SOFT, claimed(best, soft)/2), best.size/2, best.size - own });
}

std::optional<uint32_t> selfspec_cell_finder::last_of(llama_seq_id seq_id) const {
    if (const auto it = last.find(seq_id); it != last.end()) {
        return it->second;
    }
    const auto & held = cells.seq_pos_get(seq_id);
    if (held.empty()) {
        return {};
    }
    return held.rbegin()->second;
}

// The first cell above all that the row's sequences hold; nothing if they hold none.
std::optional<uint32_t> selfspec_cell_finder::above_all(const selfspec_row & row) const {
    std::optional<uint32_t> above;
    for (int32_t i = 0; i < row.n; ++i) {
        if (const auto cell = last_of(row.seq_ids[i])) {
            above = std::max(above.value_or(0), *cell + 1);
        }
    }
    return above;
}

// The free cell in which a sequence can go on, past cells of drafts that start from it.
std::optional<uint32_t> selfspec_cell_finder::front(llama_seq_id seq_id, uint32_t begin) const {
    for (uint32_t cell = begin; cell < cells.size(); ++cell) {
        if (is_free(cell)) {
            return cell;
        }
        if (!may_pass(seq_id, cell)) {
            return {};
        }
    }
    return {};
}

// Whether another text was promised the cells from here on: two that go on from the same prompt.
bool selfspec_cell_finder::is_contested(llama_seq_id seq_id, uint32_t cell) const {
    const auto & held = cells.seq_pos_get(seq_id);
    if (last.count(seq_id) || !needs.is_known(seq_id) || held.empty() || cells.seq_count(held.rbegin()->second) == 1) {
        return false;
    }
    return fronts_beside(seq_id).count(cell);
}

bool selfspec_cell_finder::may_pass(llama_seq_id seq_id, uint32_t cell) const {
    if (const auto it = taken.find(cell); it != taken.end()) {
        return is_draft_of(it->second.first(), seq_id) || is_draft_of(seq_id, it->second.first());
    }
    const auto & holders = cells.seq_get_all(cell);
    for (const llama_seq_id other : needs.sequences()) {
        if (holders.test(other) && other != seq_id && !is_draft_of(other, seq_id) && !is_draft_of(seq_id, other)) {
            return false;
        }
    }
    return true;
}

// Drafts live in forks that nobody has promised any room.
bool selfspec_cell_finder::is_draft_of(llama_seq_id seq_id, llama_seq_id other) const {
    return !needs.is_known(seq_id) && (holds_last_of(seq_id, other) || holds_last_of(other, seq_id));
}

bool selfspec_cell_finder::holds_last_of(llama_seq_id seq_id, llama_seq_id other) const {
    const auto & held = cells.seq_pos_get(other);
    return !held.empty() && cells.seq_has(held.rbegin()->second, seq_id);
}

std::vector<selfspec_cell_finder::run> selfspec_cell_finder::free_runs(uint32_t above) const {
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

// Where the other sequences go on, and which: without drafts that start from this one, and their origin.
std::map<uint32_t, std::vector<llama_seq_id>> selfspec_cell_finder::fronts_beside(llama_seq_id seq_id) const {
    std::map<uint32_t, std::vector<llama_seq_id>> fronts;
    for (const llama_seq_id other : needs.sequences()) {
        if (other == seq_id || is_draft_of(other, seq_id) || is_draft_of(seq_id, other)) {
            continue;
        }
        if (const auto cell = last_of(other)) {
            if (const auto at = front(other, *cell + 1)) {
                fronts[*at].push_back(other);
            }
        }
    }
    return fronts;
}
