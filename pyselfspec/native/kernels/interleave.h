// Copying rows of blocks of 256 weights into blocks that hold eight rows.
#pragma once

#include "ggml.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

namespace selfspec {

// Calls f(first, last) for shares of n rows, on all cores.
void in_shares(int64_t n, int64_t share, const std::function<void(int64_t first, int64_t last)> & f);

// IQ1 to IQ3, see columns_codebooks.cpp and columns_nibbles.cpp; returns what selfspec_interleave() does.
int interleave_codebook(ggml_tensor * t, const void * data, size_t size);

template <typename Row> uint16_t scale_of(const Row & row) { return row.d; }

// In IQ1_M, which four numbers have in their upper bits.
inline uint16_t scale_of_numbers(const uint8_t (&scales)[8]) {
    uint64_t x;
    memcpy(&x, scales, sizeof(x));
    return (uint16_t) ((x >> 12 & 0xf) | (x >> 24 & 0xf0) | (x >> 36 & 0xf00) | (x >> 48 & 0xf000));
}

// Copies blocks by `interleave(row, r, to)`, which writes all but the scale of row r's block to `to`, which is zero before.
template <typename Row, typename Rows> int interleave_all(ggml_tensor * t, const void * data, size_t size) {
    const int64_t n_blocks = t->ne[0]/256, n_rows = ggml_nrows(t);
    if (n_rows%8 != 0 || size != n_rows*n_blocks*sizeof(Row)) {
        return -1;
    }
    const auto from = (const Row *) data;
    const auto to   = (Rows *) t->data;
    for (int64_t group = 0; group < n_rows/8; group++) {
        for (int64_t b = 0; b < n_blocks; b++) {
            Rows & all = to[group*n_blocks + b] = {};
            for (int r = 0; r < 8; r++) {
                const Row & row = from[(8*group + r)*n_blocks + b];
                all.d[r] = scale_of(row);
                interleave(row, r, all);
            }
        }
    }
    return 0;
}

}  // namespace selfspec
