// The scores of attention: the products of queries and the rows of K in a block of cells, scaled and masked.
#pragma once

#include "attention_rows.h"

#if defined(SELFSPEC_KERNELS)

namespace selfspec {

namespace {

// Multiplies the rows of a block by some queries of n values, which are whole vectors: the products that fill a vector are summed
// at once.
template <int T, typename Rows> void multiply_rows(Rows rows, int64_t n, const float * const * q, float * const * products) {
    constexpr int AT_ONCE = T == 3 ? 4 : VL/T;  // cells
    constexpr int SETS    = (T*AT_ONCE + VL - 1)/VL;
    for (int64_t cell = 0; cell < CELLS; cell += AT_ONCE) {
        vf totals[SETS][VL];
        each<SETS>([&](auto s) { each<VL>([&](auto j) { totals[s][j] = zero(); }); });
        const Rows k = rows.from(cell);
        for (int64_t i = 0; i < n; i += VL) {
            if (const int64_t c = i/VL; c < AT_ONCE) {  // not all at once, which would hold up other reading
                rows.fetch(cell + c, 0, n);
            }
            each<AT_ONCE>([&](auto c) {
                const vf x = k.load(c, i);
                each<T>([&](auto t) {
                    constexpr int at = t*AT_ONCE + c;
                    totals[at/VL][at%VL] = fma(x, load_f(q[t] + i), totals[at/VL][at%VL]);
                });
            });
        }
        float results[SETS*VL];
        each<SETS>([&](auto s) { store_f(results + s*VL, sums(totals[s])); });
        each<T>([&](auto t) { std::copy_n(results + t*AT_ONCE, AT_ONCE, products[t] + cell); });
    }
}

#if defined(__AVX2__)  // not measured with NEON
// Turns rows of n floats into columns: value i of all cells side by side, for each i.
inline void to_columns(const float * rows, int64_t n, float * columns) {
    for (int64_t i = 0; i < n; i += VL) {
        for (int64_t cell = 0; cell < CELLS; cell += VL) {
            transpose(rows + cell*n + i, n, columns + i*CELLS + cell, CELLS);
        }
    }
}

// Multiplies a block that was turned into columns by some queries, lane by lane of `multiply_rows`. Lanes are added as `sums` adds
// them, so the bits are the same: those VL/2 apart first. So lanes come in the order of their numbers with reversed bits, and each is
// added to what the bits of its place say, as a carry is.
template <int T> void multiply_columns(const float * columns, int64_t n, const float * const * q, float * const * products) {
    constexpr int LEVELS = VL == 16 ? 4 : 3;
    for (int64_t cell = 0; cell < CELLS; cell += 2*VL) {
        vf sums[LEVELS + 1][T][2];
        for (int place = 0; place < VL; place++) {
            int lane = 0;
            for (int bit = 0; bit < LEVELS; bit++) {
                lane |= (place >> bit & 1) << (LEVELS - 1 - bit);
            }
            vf of_lane[T][2];
            each<T>([&](auto t) { of_lane[t][0] = of_lane[t][1] = zero(); });
            for (int64_t i = lane; i < n; i += VL) {
                const vf x = load_f(columns + cell + i*CELLS), y = load_f(columns + cell + i*CELLS + VL);
                each<T>([&](auto t) {
                    const vf value = repeat_f(q[t][i]);
                    of_lane[t][0] = fma(x, value, of_lane[t][0]);
                    of_lane[t][1] = fma(y, value, of_lane[t][1]);
                });
            }
            int level = 0;
            for (; place >> level & 1; level++) {
                each<T>([&](auto t) { each<2>([&](auto j) { of_lane[t][j] = add(sums[level][t][j], of_lane[t][j]); }); });
            }
            each<T>([&](auto t) { each<2>([&](auto j) { sums[level][t][j] = of_lane[t][j]; }); });
        }
        each<T>([&](auto t) { each<2>([&](auto j) { store_f(products[t] + cell + j*VL, sums[LEVELS][t][j]); }); });
    }
}
#endif

// Turns products into scores. Returns the largest, or NaN if one of them is NaN, as after a broken activation: the largest would
// hide it.
inline float scale_and_mask(const Task & task, const Query & query, int64_t block, float * scores) {
    const auto & [scale, bias, softcap] = task.parameters;
    const int64_t n = task.cells_in(block);
    ggml_fp16_t part[CELLS];
    const ggml_fp16_t * mask = query.mask + block*CELLS;
    if (!query.mask || n < CELLS) {
        std::fill_n(part, CELLS, MINUS_INFINITY);
        if (query.mask) {
            std::copy_n(mask, n, part);
        } else {
            std::fill_n(part, n, 0);
        }
        mask = part;
    }
    if (softcap != 0) {
        for (int c = 0; c < CELLS; c++) {
            scores[c] = tanhf(scores[c]*scale);
        }
    }
    const vf factor = repeat_f(softcap == 0 ? scale : softcap);
    const auto score = [&](int c) {
        const vf added = mul(repeat_f(query.slope), load_f16(mask + c));
        return where_above(added, -INFINITY, fma(load_f(scores + c), factor, added));
    };
    vf   largest = repeat_f(-INFINITY);
    bool broken  = false;
    for (int c = 0; c < CELLS; c += 2*VL) {
        const vf x = score(c), y = score(c + VL);
        store_f(scores + c, x);
        store_f(scores + c + VL, y);
        largest = max(largest, max(x, y));
        broken |= no_number(x, y);
    }
    return broken ? NAN : largest_lane(largest);
}

// Computes the scores of computed block i, here and below the number of a block. `of_heads`: the head, among those that are
// computed at once; of these, n_in_turn are computed block by block.
void scores_of_block(const Task & task, Work & work, int64_t first_head, int64_t of_heads, int64_t n_in_turn, int64_t i) {
    const int64_t head = first_head + of_heads, block = work.blocks[i], n = up(task.dk);
    const Query * const queries = work.queries_of(task, head);
    float * const  largest = work.largest_in(task, of_heads, i);
    const VisibleCells visible(task, work, 0, task.n_queries, block);
    std::fill_n(largest, up(task.n_queries), -INFINITY);
    const auto score = [&](auto n_tile, int first, auto multiply) {
        const float * q[n_tile];
        float *       scores[n_tile];
        for (int t = 0; t < n_tile; t++) {
            const int64_t j = visible.queries[first + t];
            q[t]      = queries[j].q;
            scores[t] = work.weights_in(task, of_heads, j, i);
            if (task.dk != n) {
                unpack_floats<float, as_they_are>(queries[j].q, task.dk, work.padded + t*n);
                q[t] = work.padded + t*n;
            }
        }
        multiply(q, scores);
        for (int t = 0; t < n_tile; t++) {
            const int64_t j = visible.queries[first + t];
            largest[j] = scale_and_mask(task, queries[j], block, scores[t]);
        }
    };
    const auto with_rows = [&](const auto & rows) {
        in_tiles<QUERIES>(visible.n, [&](auto t, int first) {
            score(t, first, [&](auto q, auto scores) { multiply_rows<t>(rows, n, q, scores); });
        });
    };
    const char * const rows = task.rows(task.k, head);
    const char * const k    = rows + block*CELLS*task.k->nb[1];
    const Ahead        ahead(work, i, task.k, rows, task.k_row, n_in_turn > 1 ? of_heads*task.k_row : 0, n_in_turn*task.k_row);
    if (task.is_whole(task.dk, block) && with_stored(visible.n, task.k, k, ahead, with_rows)) {
        return;
    }
    unpack(task.k, k, visible.cells, task.dk, work.rows);
#if defined(__AVX2__)
    if (visible.n > FEW) {
        to_columns(work.rows, n, work.columns);
        in_tiles<LANE_QUERIES>(visible.n, [&](auto t, int first) {
            score(t, first, [&](auto q, auto scores) { multiply_columns<t>(work.columns, n, q, scores); });
        });
        return;
    }
#endif
    with_rows(Floats{work.rows, n});
}

}  // namespace

}  // namespace selfspec
#endif
