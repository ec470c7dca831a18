// New places for cells, so that every sequence can continue above its last one.

#include "kv/placement.h"

#include <algorithm>

namespace {

// Lists the used cells such that those of every sequence ascend with its positions and are adjacent if possible.
class ordering {
public:
    ordering(const llama_kv_cells & cells, const std::vector<llama_seq_id> & sequences) : cells(cells) {
        for (const llama_seq_id s : sequences) {
            const auto & held = cells.seq_pos_get(s);
            if (!held.empty()) {
                queues.push_back({ s, held.begin(), held.end() });
            }
        }
        std::sort(queues.begin(), queues.end(), [](const queue & a, const queue & b) { return a.next->second < b.next->second; });
    }

    std::vector<uint32_t> list() {
        std::vector<uint32_t> listed;
        listed.reserve(cells.get_used());
        while (queue * current = first_ready()) {
            while (is_ready(*current)) {
                const uint32_t cell = current->next->second;
                listed.push_back(cell);
                advance_all(cell);
            }
        }
        return listed;
    }

private:
    using position = std::set<std::pair<llama_pos, uint32_t>>::const_iterator;

    struct queue {
        llama_seq_id seq_id;
        position     next, end;
    };

    // A cell is listed when it is the next one of all sequences that share it. This holds for the cell with the lowest position.
    bool is_ready(const queue & q) const {
        return q.next != q.end && std::all_of(queues.begin(), queues.end(), [&](const queue & other) {
            return !cells.seq_has(q.next->second, other.seq_id) || (other.next != other.end && other.next->second == q.next->second);
        });
    }

    queue * first_ready() {
        const auto it = std::find_if(queues.begin(), queues.end(), [&](const queue & q) { return is_ready(q); });
        return it == queues.end() ? nullptr : &*it;
    }

    void advance_all(uint32_t cell) {
        for (queue & q : queues) {
            if (cells.seq_has(cell, q.seq_id)) {
                ++q.next;
            }
        }
    }

    const llama_kv_cells & cells;
    std::vector<queue>     queues;
};

// Returns the number of free cells that each sequence gets above its last one: its reservation, then a share of the rest up to
// needs.soft(). If there is no room for all reservations, each sequence gets the cells for its rows and a share of the rest.
std::map<llama_seq_id, uint32_t> gaps_of(const llama_kv_cells & cells, const selfspec_needs & needs) {
    uint32_t   left     = cells.size() - cells.get_used();
    const bool all_firm = needs.total_firm() <= left;

    std::map<llama_seq_id, uint32_t> gaps;
    for (const llama_seq_id s : needs.sequences()) {
        gaps[s] = all_firm ? needs.firm(s) : needs.n_pending(s);
        left -= std::min(left, gaps[s]);
    }
    uint32_t n_others = (uint32_t) gaps.size();
    for (auto & [s, gap] : gaps) {
        const uint32_t more = std::min(std::max(needs.soft(s), gap) - gap, left/n_others--);
        gap  += more;
        left -= more;
    }
    return gaps;
}

} // namespace

selfspec_moves selfspec_spread(const llama_kv_cells & cells, const selfspec_needs & needs) {
    const auto gaps = gaps_of(cells, needs);

    std::map<uint32_t, uint32_t> gap_above; // by cell
    for (const llama_seq_id s : needs.sequences()) {
        const auto & held = cells.seq_pos_get(s);
        if (!held.empty()) {
            gap_above[held.rbegin()->second] += gaps.at(s);
        }
    }
    selfspec_moves from_to;
    uint32_t       to = 0;
    for (const uint32_t from : ordering(cells, needs.sequences()).list()) {
        if (from != to) {
            from_to.push_back({ from, to });
        }
        const auto gap = gap_above.find(from);
        to += 1 + (gap == gap_above.end() ? 0 : gap->second);
    }
    return from_to;
}

void selfspec_apply(llama_kv_cells & cells, const selfspec_moves & from_to) {
    std::vector<uint32_t> from, to;
    for (const auto & [source, target] : from_to) {
        from.push_back(source);
        to  .push_back(target);
    }
    const llama_kv_cells kept = cells.cp(from);
    try {
        for (const uint32_t cell : from) {
            cells.rm(cell);
        }
        cells.set(to, kept);
    } catch (...) {
        cells.reset();
        throw;
    }
}
