// Division of the rows of several matrices, and of the results of attention, into pieces for threads.
#pragma once

#include <algorithm>
#include <atomic>
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

// How many pieces of a thread's share were taken: from the front in the upper half, from the end in the lower one. Threads
// count in each other's shares, so each has a cache line of its own.
struct alignas(64) Taken {
    static constexpr uint64_t FRONT = 1ull << 32, END = 1;
    std::atomic<uint64_t> n{0};

    static int64_t front(uint64_t n) { return (int64_t) (n >> 32); }
    static int64_t end(uint64_t n)   { return (int64_t) (uint32_t) n; }
};

// Calls f(i) for pieces of n, each once in all threads. A thread has one contiguous share, so that it reads memory as one
// stream, and takes it from the front. If it may steal, it then takes pieces of others' shares from the end, where their
// owners come last. `taken`: one for each thread.
template <typename F> void share_and_steal(int64_t n, int thread, int n_threads, Taken * taken, bool may_steal, F f) {
    for (int distance = 0; distance < (may_steal ? n_threads : 1); distance++) {
        const int     owner = (thread + distance)%n_threads;
        const int64_t begin = n*owner/n_threads, end = n*(owner + 1)/n_threads;
        const auto    is_left = [&](uint64_t n_taken) { return begin + Taken::front(n_taken) + Taken::end(n_taken) < end; };
        // looks before it counts: many threads that find nothing would otherwise pass the cache line around
        while (is_left(taken[owner].n.load(std::memory_order_relaxed))) {
            const uint64_t before = taken[owner].n.fetch_add(distance ? Taken::END : Taken::FRONT, std::memory_order_relaxed);
            if (is_left(before)) {
                f(distance ? end - 1 - Taken::end(before) : begin + Taken::front(before));
            }
        }
    }
}

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
