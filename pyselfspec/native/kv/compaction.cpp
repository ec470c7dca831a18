// Moves the cells of a K/V cache, so that every sequence can continue above its last cell.

#include "graph/batch.h"
#include "kv/placement.h"

#include "llama-kv-cache.h"

#include "ggml-backend.h"

#include <algorithm>
#include <cstring>

namespace {

bool is_on_host(const ggml_tensor * tensor) {
    return tensor->buffer && ggml_backend_buffer_is_host(tensor->buffer);
}

void move_rows(ggml_tensor * tensor, const selfspec_moves & from_to, std::vector<char> & kept) {
    char *       data = (char *) tensor->data;
    const size_t size = tensor->nb[1];
    for (size_t i = 0; i < from_to.size(); ++i) {
        memcpy(kept.data() + i*size, data + from_to[i].first*size, size);
    }
    for (size_t i = 0; i < from_to.size(); ++i) {
        memcpy(data + from_to[i].second*size, kept.data() + i*size, size);
    }
}

} // namespace

const llama_kv_cells & selfspec_cache::cells_of(const llama_kv_cache & cache) {
    return cache.v_cells[0];
}

void selfspec_cache::plan(llama_kv_cache & cache, const std::vector<llama_ubatch> & ubatches) {
    auto & room = cache.selfspec;
    room.planned.clear();
    if (cache.other) {
        for (const auto & ubatch : ubatches) {
            room.planned.insert(room.planned.end(), ubatch.n_tokens, 0); // these rows write no K/V: any cell will do
        }
        return;
    }
    if (!room.can_move || cache.n_stream != 1) {
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
    selfspec_placed placed = selfspec_place(cache.v_cells[0], room, rows);
    if (placed.cells.empty()) {
        return; // upstream's search may still find cells outside a sliding window
    }
    if (placed.disordered || placed.crowded) {
        const selfspec_needs needs(cache.v_cells[0], room, rows);
        if (selfspec_needs_moves(placed, cache.v_cells[0], needs) && move(cache, selfspec_spread(cache.v_cells[0], needs))) {
            placed = selfspec_place(cache.v_cells[0], room, rows);
        }
    }
    room.planned.assign(placed.cells.begin(), placed.cells.end());
}

bool selfspec_cache::move(llama_kv_cache & cache, const selfspec_moves & from_to) {
    // a cache that reads these cells has no K/V of its own, so it follows
    if (from_to.empty() || cache.v_trans || cache.get_has_shift()) {
        return false;
    }
    std::vector<ggml_tensor *> tensors;
    size_t                     row_size = 0;
    for (const auto & layer : cache.layers) {
        for (ggml_tensor * tensor : { layer.k, layer.v }) {
            if (tensor && !is_on_host(tensor)) {
                return false;
            }
            if (tensor) {
                tensors.push_back(tensor);
                row_size = std::max(row_size, (size_t) tensor->nb[1]);
            }
        }
    }
    std::vector<char> kept(from_to.size()*row_size);
    selfspec_apply(cache.v_cells[0], from_to);
    for (ggml_tensor * tensor : tensors) {
        move_rows(tensor, from_to, kept);
    }
    cache.selfspec.n_moves++;
    return true;
}
