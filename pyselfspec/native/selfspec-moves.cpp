// Moving the cells of a K/V cache, so that every sequence can go on above its last one.

#include "selfspec-batch.h"
#include "selfspec-cells.h"

#include "llama-kv-cache.h"

#include "ggml-backend.h"

#include <algorithm>
#include <cstring>

namespace {

// Lists the used cells such that those of every sequence ascend with its positions, and stay together where they can.
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

    // A cell comes when it is the next one of all that share it. The cell with the lowest position always is.
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

// The free cells that each sequence gets above its last one. All get what they were promised, then shares of the rest up
// to what they had better have; where promises go beyond what there is, they count as wishes.
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

// The tensors in which a row is a cell.
std::vector<ggml_tensor *> tensors_of(const std::vector<std::pair<ggml_tensor *, ggml_tensor *>> & layers) {
    std::vector<ggml_tensor *> tensors;
    for (const auto & [k, v] : layers) {
        for (ggml_tensor * tensor : { k, v }) {
            if (tensor) {
                tensors.push_back(tensor);
            }
        }
    }
    return tensors;
}

bool is_on_host(const ggml_tensor * tensor) {
    return tensor->buffer && ggml_backend_buffer_is_host(tensor->buffer);
}

using moves = std::vector<std::pair<uint32_t, uint32_t>>;

void move_rows(ggml_tensor * tensor, const moves & from_to, std::vector<char> & kept) {
    char *       data = (char *) tensor->data;
    const size_t size = tensor->nb[1];
    for (size_t i = 0; i < from_to.size(); ++i) {
        memcpy(kept.data() + i*size, data + from_to[i].first*size, size);
    }
    for (size_t i = 0; i < from_to.size(); ++i) {
        memcpy(data + from_to[i].second*size, kept.data() + i*size, size);
    }
}

void move_cells(llama_kv_cells & cells, const moves & from_to) {
    std::vector<uint32_t> from, to;
    for (const auto & [source, target] : from_to) {
        from.push_back(source);
        to  .push_back(target);
    }
    const llama_kv_cells kept = cells.cp(from);
    for (const uint32_t cell : from) {
        cells.rm(cell);
    }
    cells.set(to, kept);
}

} // namespace

moves selfspec_spread(const llama_kv_cells & cells, const selfspec_needs & needs) {
    const auto gaps = gaps_of(cells, needs);

    std::map<uint32_t, uint32_t> gap_above; // by cell
    for (const llama_seq_id s : needs.sequences()) {
        const auto & held = cells.seq_pos_get(s);
        if (!held.empty()) {
            gap_above[held.rbegin()->second] += gaps.at(s);
        }
    }
    moves    from_to;
    uint32_t to = 0;
    for (const uint32_t from : ordering(cells, needs.sequences()).list()) {
        if (from != to) {
            from_to.push_back({ from, to });
        }
        const auto gap = gap_above.find(from);
        to += 1 + (gap == gap_above.end() ? 0 : gap->second);
    }
    return from_to;
}

const llama_kv_cells & selfspec_cache::cells_of(const llama_kv_cache & cache) {
    return cache.v_cells[0];
}

void selfspec_cache::keep_order(llama_kv_cache & cache, const std::vector<llama_ubatch> & ubatches) {
    const bool is_shared = cache.v_cells_impl.use_count() > 1;
    if (!cache.selfspec.can_move || cache.n_stream != 1 || cache.v_trans || is_shared || cache.get_has_shift()) {
        return;
    }
    std::vector<selfspec_row> rows;
    for (const auto & ubatch : ubatches) {
        if (selfspec_in_place(ubatch.selfspec)) {
            return;
        }
        const auto more = selfspec_rows_of(ubatch);
        rows.insert(rows.end(), more.begin(), more.end());
    }
    auto & cells = cache.v_cells[0];

    selfspec_cell_finder finder(cells, cache.selfspec, rows);
    if (finder.find_all().empty() || !(finder.is_disordered() || finder.is_crowded())) {
        return;
    }
    const selfspec_needs needs(cells, cache.selfspec, rows);
    if (!finder.is_disordered() && needs.total_firm() > cells.size() - cells.get_used()) {
        return; // moving would not make the room
    }
    const moves from_to = selfspec_spread(cells, needs);

    std::vector<std::pair<ggml_tensor *, ggml_tensor *>> layers;
    for (const auto & layer : cache.layers) {
        layers.push_back({ layer.k, layer.v });
    }
    const auto tensors = tensors_of(layers);
    if (from_to.empty() || !std::all_of(tensors.begin(), tensors.end(), is_on_host)) {
        return;
    }
    size_t row_size = 0;
    for (const ggml_tensor * tensor : tensors) {
        row_size = std::max(row_size, (size_t) tensor->nb[1]);
    }
    std::vector<char> kept(from_to.size()*row_size);
    for (ggml_tensor * tensor : tensors) {
        move_rows(tensor, from_to, kept);
    }
    move_cells(cells, from_to);
    cache.selfspec.n_moves++;
}
