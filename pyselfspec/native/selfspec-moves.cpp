// Moving the cells of a K/V cache, so that every sequence can go on above its last one.

#include "selfspec-batch.h"
#include "selfspec-cells.h"

#include "llama-kv-cache.h"

#include "ggml-backend.h"

#include <algorithm>
#include <cstring>

namespace {

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

    const selfspec_placed placed = selfspec_place(cells, cache.selfspec, rows);
    if (placed.cells.empty() || !(placed.disordered || placed.crowded)) {
        return;
    }
    const selfspec_needs needs(cells, cache.selfspec, rows);
    if (!placed.disordered && needs.total_firm() > cells.size() - cells.get_used()) {
        return; // moving would not make the room
    }
    const selfspec_moves from_to = selfspec_spread(cells, needs);

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
    selfspec_apply(cells, from_to);
    cache.selfspec.n_moves++;
}
