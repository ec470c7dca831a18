// Division of the rows of several matrices, and of the results of attention, into pieces for threads.
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

    // Eight pieces for each thread, of whole groups of eight rows.
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

// Equal shares of n pieces, one after another.
template <typename F> void share(int64_t n, int thread, int n_threads, F f) {
    for (int64_t i = n*thread/n_threads; i < n*(thread + 1)/n_threads; i++) {
        f(i);
    }
}

// Some results of a head: values in units [unit0, unit1) for queries [query0, query1).
struct HeadPiece {
    int64_t head, unit0, unit1, query0, query1;
};

// Pieces are whole heads if these keep all threads busy. Otherwise values are divided, since each value is then still read by
// one thread only; and if that is not enough, queries, which read equal values.
struct HeadPieces {
    int64_t n_units, n_queries;  // of a head
    int64_t parts = 1, groups = 1;
    int64_t n;                   // pieces in all

    HeadPieces(int64_t n_heads, int64_t n_units, int64_t n_queries, int n_threads) : n_units(n_units), n_queries(n_queries) {
        constexpr double ENOUGH = 0.9;  // a division that saves a thread less than a tenth is not worth it
        const double ideal = (double) n_heads*n_units*n_queries/n_threads;
        double least = 0;
        for (int64_t g = 1; g <= n_queries && (g == 1 || least*ENOUGH > ideal); g++) {
            for (int64_t p = 1; p <= n_units && (p*g == 1 || least*ENOUGH > ideal); p++) {
                const double share = work_of_a_thread(n_heads, p, g, n_threads);
                if (least == 0 || share < least*ENOUGH) {
                    least  = share;
                    parts  = p;
                    groups = g;
                }
            }
        }
        n = n_heads*parts*groups;
    }

    HeadPiece piece(int64_t i) const {
        const int64_t group = i%groups, part = i/groups%parts;
        return {i/(groups*parts), n_units*part/parts, n_units*(part + 1)/parts, n_queries*group/groups, n_queries*(group + 1)/groups};
    }

private:
    // The units times queries of the thread that has the most.
    int64_t work_of_a_thread(int64_t n_heads, int64_t p, int64_t g, int n_threads) const {
        return (n_heads*p*g + n_threads - 1)/n_threads*((n_units + p - 1)/p)*((n_queries + g - 1)/g);
    }
};

}  // namespace selfspec
