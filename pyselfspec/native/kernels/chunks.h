// How threads share the rows of several matrices: in pieces.
#pragma once

#include <algorithm>
#include <cstdint>

namespace selfspec {

struct Piece {
    int64_t matrix, row0, row1;
};

struct Chunks {
    int64_t n_rows;      // of a matrix
    int64_t size;        // rows in a piece
    int64_t per_matrix;  // pieces
    int64_t n;           // pieces in all

    // Eight for each thread, in whole groups of eight rows.
    Chunks(int64_t n_matrices, int64_t n_rows, int n_threads) : n_rows(n_rows) {
        const int64_t wanted = (n_matrices*n_rows + 8*n_threads - 1)/(8*n_threads);
        size       = std::max<int64_t>(8, std::min((wanted + 7)/8*8, (n_rows + 7)/8*8));
        per_matrix = (n_rows + size - 1)/size;
        n          = per_matrix*n_matrices;
    }

    Piece piece(int64_t i) const {
        const int64_t row0 = i%per_matrix*size;
        return {i/per_matrix, row0, std::min(row0 + size, n_rows)};
    }
};

}  // namespace selfspec
