// Flash attention, for MAX_WIDTH tokens at a time.
//
// Upstream splits the cells among the threads when there is one token, and sums them in sequence otherwise; its sums
// therefore differ with the width and with the number of threads. Here attention has three steps, with barriers between
// them: scores, weights, and values times weights. Scores are independent; the weights of a query are summed as integers,
// which is exact in any order; and a result sums the cells in sequence, on any thread. The result thus depends on the cells
// that a query sees and on their order, but not on their places in the cache. Queries that read equal K and V (the heads of a
// group, and the tokens) process a block of cells together: it is read and unpacked once for all of them. Blocks that no
// query sees are skipped, and so are, in each block, the queries that see nothing of it, such as those of other sequences: a
// pass over 16 sequences costs about as much as the cells that they see, not 16 times as much.
// A prompt is computed as several narrow passes, so a token's bits do not depend on the other tokens of its batch.
#include "product.h"

#if defined(SELFSPEC_KERNELS)

#include "attention.h"
#include "chunks.h"
#include "vec.h"

#define GGML_COMMON_DECL_CPP
#include "ggml-common.h"
#include "ggml-cpu-impl.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace selfspec {

namespace {

constexpr int         CELLS          = 32;  // cells of a block
constexpr int         QUERIES        = 4;   // queries that are multiplied at once
constexpr int         VECTORS        = VB == 32 ? 2 : 4;  // vectors of a result that are summed at once
constexpr int         DIRECT         = 2*QUERIES;  // most queries for which rows are converted whenever they are multiplied
constexpr ggml_fp16_t MINUS_INFINITY = 0xfc00;
constexpr float       ONE            = 1 << 30;    // the integer for a weight of one in sums of weights
constexpr int64_t     NEAR           = 512*1024;   // bytes of scores per thread that fit in its second-level cache
constexpr int64_t     TOTALS         = 4096;       // totals of several heads that fit in the first-level cache beside rows
constexpr int64_t     MOST_SCORES    = 64 << 20;   // bytes of scores that more than one token may have

int64_t up(int64_t n, int64_t unit = VL) { return (n + unit - 1)/unit*unit; }

//
// the task
//

// The query of a token and a head.
struct Query {
    const float *       q;
    const ggml_fp16_t * mask;
    float               slope;
    const float *       sink;  // a score without a value, or none
    float *             out;
};

// How many tokens of an op are computed at once: fewer where many heads share K and V of a long text.
int64_t most_tokens(const ggml_tensor * op) {
    const ggml_tensor * q = op->src[0], * k = op->src[1];
    const int64_t of_token = q->ne[2]/k->ne[2]*up(k->ne[1], CELLS)*(int64_t) sizeof(float);
    return std::clamp<int64_t>(MOST_SCORES/of_token, 1, MAX_WIDTH);
}

// Tokens [first_token, first_token + n_tokens) of an op. `Head` here means a head of K and V in one stream; its queries are
// numbered.
struct Task {
    const ggml_tensor * op;
    int64_t             first_token;
    const ggml_tensor * q     = op->src[0];
    const ggml_tensor * k     = op->src[1];
    const ggml_tensor * v     = op->src[2];
    const ggml_tensor * mask  = op->src[3];
    const ggml_tensor * sinks = op->src[4];
    struct { float scale, max_bias, softcap; } parameters;
    int64_t dk = k->ne[0], dv = v->ne[0], n_cells = k->ne[1];
    int64_t group     = q->ne[2]/k->ne[2];
    int64_t n_tokens  = std::min(most_tokens(op), q->ne[1] - first_token);
    int64_t n_queries = group*n_tokens, n_heads = k->ne[2]*q->ne[3], n_blocks = (n_cells + CELLS - 1)/CELLS;

    Task(const ggml_tensor * op, int64_t first_token) : op(op), first_token(first_token) {
        memcpy(&parameters, op->op_params, sizeof(parameters));
        if (parameters.softcap != 0) {
            parameters.scale /= parameters.softcap;
        }
    }

    const char * rows(const ggml_tensor * t, int64_t head) const {
        const int64_t i2 = head%t->ne[2], i3 = head/t->ne[2]/(q->ne[3]/t->ne[3]);
        return (const char *) t->data + i2*t->nb[2] + i3*t->nb[3];
    }

    Query query(int64_t head, int64_t query) const {
        const int64_t i1 = first_token + query%n_tokens, i2 = head%k->ne[2]*group + query/n_tokens, i3 = head/k->ne[2];
        return {
            (const float *) ((const char *) q->data + i1*q->nb[1] + i2*q->nb[2] + i3*q->nb[3]),
            mask ? (const ggml_fp16_t *) ((const char *) mask->data + i1*mask->nb[1] + i2%mask->ne[2]*mask->nb[2] +
                                          i3%mask->ne[3]*mask->nb[3]) : nullptr,
            slope(i2),
            sinks ? (const float *) sinks->data + i2 : nullptr,
            (float *) ((char *) op->data + (i2 + op->ne[1]*(i1 + op->ne[2]*i3))*op->nb[1]),
        };
    }

    float slope(int64_t head) const {  // ALiBi
        const float bias = parameters.max_bias;
        if (bias <= 0) {
            return 1;
        }
        const int64_t n = int64_t(1) << (int) floor(log2((double) q->ne[2]));
        return head < n ? powf(powf(2, -bias/n), head + 1) : powf(powf(2, -bias/2/n), 2*(head - n) + 1);
    }

    int64_t cells_in(int64_t block) const { return std::min<int64_t>(CELLS, n_cells - block*CELLS); }

    // Whether rows are multiplied as they are in the cache, n values of each: so few queries share them that storing the
    // converted rows and loading them again would cost more than converting them for each tile of queries.
    bool takes_stored(int64_t n, int64_t block) const { return n%VL == 0 && n_queries <= DIRECT && cells_in(block) == CELLS; }

    // Returns a bit mask of the cells of a block that a query sees.
    uint32_t seen(const Query & query, int64_t block) const {
        const int64_t n = cells_in(block);
        if (!mask) {
            return ~uint32_t(0) >> (CELLS - n);
        }
        uint32_t bits = 0;
        const ggml_fp16_t * of_block = query.mask + block*CELLS;
        for (int64_t i = 0; i < n; i += LANES16) {
            if (i + LANES16 <= n) {
                bits |= differ16(of_block + i, (int16_t) MINUS_INFINITY) << i;
                continue;
            }
            for (int64_t c = i; c < n; c++) {
                bits |= uint32_t(of_block[c] != MINUS_INFINITY) << c;
            }
        }
        return bits;
    }

    // The number of queries that may see different cells: queries are numbered by token first, then by head, and all heads
    // mostly see equal cells.
    int64_t n_views() const { return mask && mask->ne[2] != 1 ? n_queries : n_tokens; }

    // The number of heads that may each see different cells.
    int64_t n_masked_apart() const { return !mask || (mask->ne[2] == 1 && mask->ne[3] == 1) ? 1 : n_heads; }
};

//
// work memory
//

struct Memory {
    uintptr_t begin, end = begin;

    template <typename T> T * take(int64_t n) {
        const uintptr_t at = GGML_PAD(end, 64);
        end = at + n*sizeof(T);
        return (T *) at;
    }
};

// Work memory: shared arrays for the heads that are computed at once, and one thread's own arrays. Only blocks with a cell
// that some query sees are computed; they are numbered, and a query has scores for these blocks only. `weights` holds the
// scores first.
struct Work {
    int64_t   most_pairs;    // most pairs of a head and a block that are computed at once
    float *   weights;
    float *   largest;       // by block and query: the largest score
    int64_t * sums;          // by block and query: the sum of the weights, in units of 1/ONE
    float *   rows;          // rows of K or V as floats
    float *   padded;        // queries that are not whole vectors
    float *   totals;
    int32_t * blocks;        // by number of a computed block: its index in the cache
    int64_t   n_blocks = 0;
    int64_t   at_once  = 0;  // number of heads that are computed at once

    Query *    queries;    // of all heads
    float *    tops;       // largest score of each query of the head `topped`
    int64_t    topped = -1;
    const Query * looking_at = nullptr;  // the queries of the head, or of a head with an equal mask, for which these are known:
    uint32_t * seen;       // by block of the cache and view: bit mask of the cells that the view sees
    int32_t *  views;      // by block of the cache: the first view that sees a cell of it, and the last one plus one
    int32_t *  looking;    // space for the queries of VisibleCells

    Work(const Task & task, int n_threads, int ith, Memory & memory) {
        const int64_t near = n_threads*NEAR/(task.n_queries*CELLS*(int64_t) sizeof(float));
        most_pairs = std::max(task.n_blocks, std::min(task.n_heads*task.n_blocks, near));
        weights = memory.take<float>(most_pairs*task.n_queries*CELLS);
        largest = memory.take<float>(most_pairs*up(task.n_queries));
        sums    = memory.take<int64_t>(most_pairs*task.n_queries);
        const int64_t of_rows = CELLS*up(std::max(task.dk, task.dv)), of_queries = QUERIES*up(task.dk);
        const int64_t of_totals = std::max(TOTALS, task.n_queries*up(task.dv));
        float * const own = memory.take<float>(n_threads*up(of_rows + of_queries + of_totals, 16)) +
                            ith*up(of_rows + of_queries + of_totals, 16);
        rows    = own;
        padded  = rows + of_rows;
        totals  = padded + of_queries;
        queries = memory.take<Query>(n_threads*task.n_heads*task.n_queries) + ith*task.n_heads*task.n_queries;
        tops    = memory.take<float>(n_threads*up(task.n_queries)) + ith*up(task.n_queries);
        seen    = memory.take<uint32_t>(n_threads*task.n_views()*task.n_blocks) + ith*task.n_views()*task.n_blocks;
        views   = memory.take<int32_t>(n_threads*2*task.n_blocks) + ith*2*task.n_blocks;
        looking = memory.take<int32_t>(n_threads*task.n_queries) + ith*task.n_queries;
        blocks  = memory.take<int32_t>(n_threads*task.n_blocks) + ith*task.n_blocks;
    }

    // Finds the blocks to compute, with equal results in every thread.
    void plan(const Task & task) {
        for (int64_t i = 0; i < task.n_heads*task.n_queries; i++) {
            queries[i] = task.query(i/task.n_queries, i%task.n_queries);
        }
        std::fill_n(blocks, task.n_blocks, 0);
        for (int64_t i = 0; i < task.n_masked_apart(); i++) {
            queries_of(task, i);
            for (int64_t block = 0; block < task.n_blocks; block++) {
                blocks[block] |= views[2*block + 1];
            }
        }
        for (int64_t block = 0; block < task.n_blocks; block++) {
            if (blocks[block]) {
                blocks[n_blocks++] = (int32_t) block;
            }
        }
        const int64_t most  = std::max<int64_t>(1, most_pairs/std::max<int64_t>(1, n_blocks));
        const int64_t times = (task.n_heads + most - 1)/most;
        at_once = (task.n_heads + times - 1)/times;
    }

    const Query * queries_of(const Task & task, int64_t head) {
        const Query * const of_head = queries + head*task.n_queries;
        if (!looking_at || looking_at->mask != of_head->mask) {  // heads mostly share a mask
            looking_at = of_head;
            look(task);
        }
        return of_head;
    }

    void look(const Task & task) {
        const int64_t n = task.n_views();
        for (int64_t block = 0; block < task.n_blocks; block++) {
            int32_t * const range = views + 2*block;
            range[0] = range[1] = 0;
            for (int64_t view = 0; view < n; view++) {
                seen[block*n + view] = task.seen(looking_at[view], block);
                if (seen[block*n + view]) {
                    range[0] = range[1] ? range[0] : (int32_t) view;
                    range[1] = (int32_t) view + 1;
                }
            }
        }
    }

    // The results for block i of one head in the current group.
    float *   largest_in(const Task & task, int64_t head, int64_t i) const { return largest + (head*n_blocks + i)*up(task.n_queries); }
    int64_t * sums_in(const Task & task, int64_t head, int64_t i) const    { return sums + (head*n_blocks + i)*task.n_queries; }
    float *   weights_in(const Task & task, int64_t head, int64_t query, int64_t i) const {
        return weights + ((head*task.n_queries + query)*n_blocks + i)*CELLS;
    }
};

// The cells of a block that any of these queries sees, and the queries that see one of them.
struct VisibleCells {
    uint32_t        cells = 0;
    int             n     = 0;
    const int32_t * queries;

    VisibleCells(const Task & task, const Work & work, int64_t query0, int64_t query1, int64_t block) : queries(work.looking) {
        const int64_t n_views = task.n_views();
        const int32_t * const range = work.views + 2*block;
        for (int64_t base = 0; base < task.n_queries; base += n_views) {
            for (int64_t view = range[0]; view < range[1]; view++) {
                const int64_t  j    = base + view;
                const uint32_t bits = query0 <= j && j < query1 ? work.seen[block*n_views + view] : 0;
                cells |= bits;
                work.looking[n] = (int32_t) j;
                n += bits != 0;
            }
        }
    }
};

//
// K and V as floats
//

template <typename T, vf (*LOAD)(const T *)> void unpack_floats(const T * row, int64_t n, float * out) {
    int64_t i = 0;
    for (; i + VL <= n; i += VL) {
        store_f(out + i, LOAD(row + i));
    }
    if (i < n) {
        T rest[VL] = {};
        std::copy(row + i, row + n, rest);
        store_f(out + i, LOAD(rest));
    }
}

inline vf as_they_are(const float * p)       { return load_f(p); }
inline vf from_halves(const ggml_fp16_t * p) { return load_f16(p); }
inline vf from_bf16(const uint16_t * p)      { return load_bf16(p); }

// Writes zeros from n up to the end of the last vector if n is not a multiple of its length.
inline void unpack_row(ggml_type type, const char * row, int64_t n, float * out) {
    switch (type) {
        case GGML_TYPE_F32:  unpack_floats<float, as_they_are>((const float *) row, n, out); break;
        case GGML_TYPE_F16:  unpack_floats<ggml_fp16_t, from_halves>((const ggml_fp16_t *) row, n, out); break;
        case GGML_TYPE_BF16: unpack_floats<uint16_t, from_bf16>((const uint16_t *) row, n, out); break;
        case GGML_TYPE_Q8_0:
            for (int64_t i = 0; i < n; i += 32, row += sizeof(ggml_fp16_t) + 32) {
                uint16_t scale;
                memcpy(&scale, row, sizeof(scale));
                const vf scales = repeat_f(from_half(scale));
                for (int j = 0; j < 32; j += VL) {
                    store_f(out + i + j, mul(scales, load_i8(row + sizeof(scale) + j)));
                }
            }
            break;
        default: ggml_get_type_traits(type)->to_float(row, out, n); break;
    }
}

// Calls f(c) for each set bit c of the cells of a block.
template <typename F> [[gnu::always_inline]] inline void each_cell(uint32_t cells, F f) {
    for (; cells != 0; cells &= cells - 1) {
        f(__builtin_ctz(cells));
    }
}

// Converts n values of the rows of these cells, each to its place; `block` points to the row of the first cell.
void unpack(const ggml_tensor * t, const char * block, uint32_t cells, int64_t n, float * out) {
    const size_t  stride = t->nb[1], bytes = ggml_row_size(t->type, n);
    const int64_t width  = up(n);
    each_cell(cells, [&](int64_t cell) {
        const char * const row = block + cell*stride;
        for (size_t at = 0; at < bytes; at += 64) {
            fetch_near(row + CELLS*stride + at);  // the row in the next block
        }
        unpack_row(t->type, row, n, out + cell*width);
    });
}

// The rows of a block that were converted before.
struct Floats {
    const float * rows;
    int64_t       width;
    vf   load(int64_t cell, int64_t i) const { return load_f(rows + cell*width + i); }
    void fetch(int64_t, int64_t, int64_t) const {}
};

// The rows of a block as they are in the cache, converted whenever they are multiplied.
template <typename T> struct Stored {
    const char * rows;
    size_t       stride;
    const char * at(int64_t cell, int64_t i) const { return rows + cell*stride + i/T::UNIT*sizeof(typename T::block); }
    vf   load(int64_t cell, int64_t i) const { return T::load(*(const typename T::block *) at(cell, i), i%T::UNIT); }
    void fetch(int64_t cell, int64_t i, int64_t n) const {  // n values of the row in the next block
        for (const char * p = at(CELLS + cell, i); p < at(CELLS + cell, i + n); p += 64) {
            fetch_near(p);
        }
    }
};

struct Halves {
    using block = ggml_fp16_t;
    static constexpr int UNIT = 1;
    static vf load(const block & first, int64_t) { return load_f16(&first); }
};

struct Bytes {
    using block = block_q8_0;
    static constexpr int UNIT = 32;
    static vf load(const block & b, int64_t i) { return mul(repeat_f(from_half(b.d)), load_i8(b.qs + i)); }
};

// Calls f with the rows at `rows`, if rows of their type can be multiplied as they are.
template <typename F> bool with_stored(const ggml_tensor * t, const char * rows, F f) {
    switch (t->type) {
        case GGML_TYPE_F16:  f(Stored<Halves>{rows, t->nb[1]}); return true;
        case GGML_TYPE_Q8_0: f(Stored<Bytes>{rows, t->nb[1]});  return true;
        default: return false;
    }
}

bool known_type(const ggml_tensor * t) {
    const bool is_float = t->type == GGML_TYPE_F32 || t->type == GGML_TYPE_F16 || t->type == GGML_TYPE_BF16;
    const bool in_blocks = ggml_blck_size(t->type) == 32 && t->ne[0]%32 == 0 && ggml_get_type_traits(t->type)->to_float;
    return (is_float || in_blocks) && t->nb[0] == ggml_type_size(t->type);
}

// Values that stay together.
int64_t unit_of(const ggml_tensor * t) { return std::max<int64_t>(VL, ggml_blck_size(t->type)); }

//
// scores
//

// Returns the largest score, or NaN if one of them is NaN, as after a broken activation: the largest would hide it.
float largest_of(const float * scores) {
    vf   largest = repeat_f(-INFINITY);
    bool broken  = false;
    for (int c = 0; c < CELLS; c += 2*VL) {
        const vf x = load_f(scores + c), y = load_f(scores + c + VL);
        largest = max(largest, max(x, y));
        broken |= no_number(x, y);
    }
    if (broken) {
        return NAN;
    }
    float of_lane[VL];
    store_f(of_lane, largest);
    return *std::max_element(of_lane, of_lane + VL);
}

// Computes the scores of the rows of a block for some queries: the products that fill a vector are summed at once.
template <int T, typename Rows>
void score(const Task & task, const Work & work, const Query * const * queries, int64_t block, const Rows & rows,
           float * const * scores) {
    constexpr int AT_ONCE = VL/(T == 3 ? 4 : T);  // cells
    const int64_t stride  = up(task.dk);
    const float * q[T];
    for (int t = 0; t < T; t++) {
        q[t] = queries[t]->q;
        if (task.dk != stride) {
            unpack_floats<float, as_they_are>(queries[t]->q, task.dk, work.padded + t*stride);
            q[t] = work.padded + t*stride;
        }
    }
    for (int64_t cell = 0; cell < CELLS; cell += AT_ONCE) {
        vf products[VL];
        each<VL>([&](auto j) { products[j] = zero(); });
        each<AT_ONCE>([&](auto c) { rows.fetch(cell + c, 0, task.dk); });
        for (int64_t i = 0; i < stride; i += VL) {
            each<AT_ONCE>([&](auto c) {
                const vf x = rows.load(cell + c, i);
                each<T>([&](auto t) { products[t*AT_ONCE + c] = fma(x, load_f(q[t] + i), products[t*AT_ONCE + c]); });
            });
        }
        float results[VL];
        store_f(results, sums(products));
        each<T>([&](auto t) { std::copy_n(results + t*AT_ONCE, AT_ONCE, scores[t] + cell); });
    }
    const auto & [scale, bias, softcap] = task.parameters;
    const int64_t n = task.cells_in(block);
    for (int t = 0; t < T; t++) {
        ggml_fp16_t part[CELLS];
        const ggml_fp16_t * mask = queries[t]->mask + block*CELLS;
        if (!queries[t]->mask || n < CELLS) {
            std::fill_n(part, CELLS, MINUS_INFINITY);
            if (queries[t]->mask) {
                std::copy_n(mask, n, part);
            } else {
                std::fill_n(part, n, 0);
            }
            mask = part;
        }
        if (softcap != 0) {
            for (int c = 0; c < CELLS; c++) {
                scores[t][c] = tanhf(scores[t][c]*scale);
            }
        }
        const vf factor = repeat_f(softcap == 0 ? scale : softcap);
        for (int c = 0; c < CELLS; c += VL) {
            const vf added = mul(repeat_f(queries[t]->slope), load_f16(mask + c));
            store_f(scores[t] + c, where_above(added, -INFINITY, fma(load_f(scores[t] + c), factor, added)));
        }
    }
}

// Computes the scores of computed block i, here and below the number of a block. `of_heads`: the head, among those that are
// computed at once.
void scores_of_block(const Task & task, Work & work, int64_t first_head, int64_t of_heads, int64_t i) {
    const int64_t head = first_head + of_heads, block = work.blocks[i];
    const Query * const queries = work.queries_of(task, head);
    float * const  largest = work.largest_in(task, of_heads, i);
    const VisibleCells visible(task, work, 0, task.n_queries, block);
    std::fill_n(largest, up(task.n_queries), -INFINITY);
    const char * const k = task.rows(task.k, head) + block*CELLS*task.k->nb[1];
    const auto score_all = [&](const auto & rows) {
        in_tiles<QUERIES>(visible.n, [&](auto n, int first) {
            const Query * looking[n];
            float *       scores[n];
            for (int t = 0; t < n; t++) {
                const int64_t j = visible.queries[first + t];
                looking[t] = queries + j;
                scores[t]  = work.weights_in(task, of_heads, j, i);
            }
            score<n>(task, work, looking, block, rows, scores);
            for (int t = 0; t < n; t++) {
                largest[visible.queries[first + t]] = largest_of(scores[t]);
            }
        });
    };
    if (!task.takes_stored(task.dk, block) || !with_stored(task.k, k, score_all)) {
        unpack(task.k, k, visible.cells, task.dk, work.rows);
        score_all(Floats{work.rows, up(task.dk)});
    }
}

//
// weights
//

// Finds the largest score of each query of a head, over all blocks and the sink.
const float * tops_of(const Task & task, Work & work, int64_t first_head, int64_t head) {
    if (work.topped == head) {
        return work.tops;
    }
    work.topped = head;
    const Query * const queries = work.queries_of(task, head);
    for (int64_t j = 0; j < up(task.n_queries); j++) {
        work.tops[j] = j < task.n_queries && queries[j].sink ? *queries[j].sink : -INFINITY;
    }
    for (int64_t i = 0; i < work.n_blocks; i++) {
        const float * const largest = work.largest_in(task, head - first_head, i);
        for (int64_t j = 0; j < up(task.n_queries); j += VL) {
            store_f(work.tops + j, max(load_f(work.tops + j), load_f(largest + j)));
        }
    }
    return work.tops;
}

// Replaces the scores of a block by exp(score - largest), and returns the sum of these weights.
int64_t to_weights(float * block, float largest) {
    int32_t whole[CELLS];
    for (int c = 0; c < CELLS; c += VL) {
        const vf weights = ggml_v_expf(sub(load_f(block + c), repeat_f(largest)));
        store_f(block + c, weights);
        store(whole + c, to_int(mul(weights, repeat_f(ONE))));
    }
    int64_t sum = 0;
    for (int32_t weight : whole) {
        sum += weight;
    }
    return sum;
}

//
// values
//

// Adds the rows, times the weights of some queries, to values [i, i + N*VL) of the queries' totals.
template <int T, int N, typename Rows>
void mix(const Rows & rows, int64_t i, uint32_t cells, const float * const * weights, float * const * totals) {
    vf added[T][N];
    each<T>([&](auto t) { each<N>([&](auto j) { added[t][j] = load_f(totals[t] + i + j*VL); }); });
    each_cell(cells, [&](int64_t cell) {
        rows.fetch(cell, i, N*VL);
        vf x[N];
        each<N>([&](auto j) { x[j] = rows.load(cell, i + j*VL); });
        each<T>([&](auto t) {
            const vf weight = repeat_f(weights[t][cell]);
            each<N>([&](auto j) { added[t][j] = fma(x[j], weight, added[t][j]); });
        });
    });
    each<T>([&](auto t) { each<N>([&](auto j) { store_f(totals[t] + i + j*VL, added[t][j]); }); });
}

// Adds the rows, times the weights of some queries, to all values of the queries' totals.
template <int T, typename Rows>
void mix_all(const Rows & rows, int64_t width, uint32_t cells, const float * const * weights, float * const * totals) {
    int64_t i = 0;
    for (; i + VECTORS*VL <= width; i += VECTORS*VL) {
        mix<T, VECTORS>(rows, i, cells, weights, totals);
    }
    for (; i < width; i += VL) {
        mix<T, 1>(rows, i, cells, weights, totals);
    }
}

// Whether all values of these cells are finite. Those of another sequence with broken results may not be.
bool all_numbers(const float * rows, int64_t width, uint32_t cells) {
    vf bad = zero();
    each_cell(cells, [&](int64_t cell) {
        for (int64_t i = 0; i < width; i += VL) {
            bad = fma(load_f(rows + cell*width + i), zero(), bad);
        }
    });
    return nonzero(bad) == 0;
}

// Returns a bit mask of the cells of a block whose weight is not zero.
uint32_t used(const float * weights) {
    uint32_t bits = 0;
    for (int c = 0; c < CELLS; c += VL) {
        bits |= nonzero(load_f(weights + c)) << c;
    }
    return bits;
}

void weights_of_block(const Task & task, Work & work, int64_t first_head, int64_t of_heads, int64_t i) {
    const float * const tops    = tops_of(task, work, first_head, first_head + of_heads);
    const float * const largest = work.largest_in(task, of_heads, i);
    int64_t * const     sums    = work.sums_in(task, of_heads, i);
    std::fill_n(sums, task.n_queries, 0);
    const VisibleCells visible(task, work, 0, task.n_queries, work.blocks[i]);
    for (int n = 0; n < visible.n; n++) {
        const int64_t j = visible.queries[n];
        float * const weights = work.weights_in(task, of_heads, j, i);
        if (largest[j] == -INFINITY) {  // all scores that it sees are -inf
            std::fill_n(weights, CELLS, 0.0f);
        } else {
            sums[j] = to_weights(weights, tops[j]);
        }
    }
}

// Returns the factor of a query's totals. sum: the sum of the query's weights.
float factor_of(float top, int64_t sum, const float * sink) {
    if (top == -INFINITY) {  // it sees nothing
        return 0;
    }
    const float total = (float) sum/ONE;
    return 1/(sink ? total + expf(*sink - top) : total);
}

// Values of a head that a thread sums: rows of V from their place `begin` on, n of each.
struct Values {
    HeadPiece    piece;
    int64_t      begin, n, width;
    const char * v;
    float *      totals;  // by query

    Values(const Task & task, int64_t first_head, const HeadPiece & piece, float * totals) : piece(piece), totals(totals) {
        begin = piece.unit0*unit_of(task.v);
        n     = std::min(piece.unit1*unit_of(task.v), task.dv) - begin;
        width = up(n);
        v     = task.rows(task.v, first_head + piece.head) + begin/ggml_blck_size(task.v->type)*task.v->nb[0];
    }
    int64_t n_queries() const          { return piece.query1 - piece.query0; }
    float * totals_of(int64_t j) const { return totals + (j - piece.query0)*width; }
};

// Adds the values of computed block i, times their weights. stored: whether rows may be read as they are. Zero times a value
// that is no number is NaN, so such rows are mixed for each query by itself, with the cells that it sees.
void add_values(const Task & task, const Work & work, const Values & of, int64_t i, bool stored) {
    const int64_t block = work.blocks[i];
    const VisibleCells visible(task, work, of.piece.query0, of.piece.query1, block);
    const char * const v = of.v + block*CELLS*task.v->nb[1];
    const auto weights_of = [&](int64_t j) { return work.weights_in(task, of.piece.head, j, i); };
    const auto mix_tiles  = [&](const auto & rows) {
        in_tiles<QUERIES>(visible.n, [&](auto n, int first) {
            const float * weights[n];
            float *       totals[n];
            for (int t = 0; t < n; t++) {
                weights[t] = weights_of(visible.queries[first + t]);
                totals[t]  = of.totals_of(visible.queries[first + t]);
            }
            mix_all<n>(rows, of.width, visible.cells, weights, totals);
        });
    };
    if (stored && task.takes_stored(of.n, block) && with_stored(task.v, v, mix_tiles)) {
        return;
    }
    unpack(task.v, v, visible.cells, of.n, work.rows);
    const Floats rows{work.rows, of.width};
    if (all_numbers(work.rows, of.width, visible.cells)) {
        mix_tiles(rows);
        return;
    }
    for (int n_done = 0; n_done < visible.n; n_done++) {
        const float * weights[] = {weights_of(visible.queries[n_done])};
        float *       totals[]  = {of.totals_of(visible.queries[n_done])};
        mix_all<1>(rows, of.width, used(weights[0]), weights, totals);
    }
}

// Divides the totals by the sums of the weights.
void finish(const Task & task, Work & work, int64_t first_head, const Values & of) {
    const int64_t head = first_head + of.piece.head;
    const Query * const queries = work.queries_of(task, head);
    const float * const tops = tops_of(task, work, first_head, head);
    for (int64_t j = of.piece.query0; j < of.piece.query1; j++) {
        const Query & query = queries[j];
        const float * total = of.totals_of(j);
        int64_t sum = 0;
        for (int64_t i = 0; i < work.n_blocks; i++) {
            sum += work.sums_in(task, of.piece.head, i)[j];
        }
        const float factor = factor_of(tops[j], sum, query.sink);
        for (int64_t i = 0; i < of.n; i++) {
            query.out[of.begin + i] = total[i]*factor;
        }
    }
}

// Computes pieces [begin, end). Block by block for several heads at once: the rows of V of all heads are side by side, and a
// processor fetches twice as much of one stream as of every third piece of it.
void values_of(const Task & task, Work & work, int64_t first_head, const HeadPieces & pieces, int64_t begin, int64_t end) {
    const int64_t at_once = task.n_masked_apart() > 1 ? 1 : std::max<int64_t>(1, TOTALS/(task.n_queries*up(task.dv)));
    const auto values = [&](int64_t i) {
        return Values(task, first_head, pieces.piece(i), work.totals + (i - begin)%at_once*task.n_queries*up(task.dv));
    };
    for (int64_t first = begin; first < end; first += at_once) {
        const int64_t last = std::min(first + at_once, end);
        work.queries_of(task, first_head + pieces.piece(first).head);
        std::fill_n(work.totals, (last - first)*task.n_queries*up(task.dv), 0.0f);
        for (int64_t i = 0; i < work.n_blocks; i++) {
            for (int64_t j = first; j < last; j++) {
                add_values(task, work, values(j), i, true);
            }
        }
        for (int64_t j = first; j < last; j++) {
            const Values of = values(j);
            const int64_t n = of.n_queries()*of.width;
            if (task.n_queries <= DIRECT && !all_numbers(of.totals, of.width, ~(~uint32_t(0) << of.n_queries()))) {
                std::fill_n(of.totals, n, 0.0f);
                for (int64_t i = 0; i < work.n_blocks; i++) {
                    add_values(task, work, of, i, false);
                }
            }
            finish(task, work, first_head, of);
        }
    }
}

}  // namespace

// An unknown hint or operand may change the meaning of the op, so such an op is left to upstream. The precision requested in
// params[3] is at most that of the sums here.
bool takes_attention(const ggml_tensor * op) {
    const ggml_tensor * q = op->src[0];
    const ggml_tensor * k = op->src[1];
    const ggml_tensor * v = op->src[2];
    const bool known_only = std::all_of(op->src + 5, std::end(op->src), [](const ggml_tensor * t) { return !t; }) &&
                            std::all_of(op->op_params + 4, std::end(op->op_params), [](int32_t hint) { return hint == 0; });
    return known_only && !ggml_is_empty(op) && !ggml_is_empty(k) && q->type == GGML_TYPE_F32 && q->nb[0] == sizeof(float) &&
           known_type(k) && known_type(v) && k->ne[2] == v->ne[2] && k->ne[3] == v->ne[3];
}

size_t attention_work_size(const ggml_tensor * op, int n_threads) {
    const auto size = [&](int64_t first_token) {
        Memory memory = {64};  // a nonzero address: counts the bytes that alignment may waste
        Work(Task(op, first_token), n_threads, 0, memory);
        return memory.end;
    };
    const int64_t n = most_tokens(op);
    return std::max(size(0), size((op->src[0]->ne[1] - 1)/n*n));
}

static void attention_from(const ggml_compute_params * params, const ggml_tensor * op, int64_t first_token) {
    const Task task(op, first_token);
    Memory     memory = {(uintptr_t) params->wdata};
    Work work(task, params->nth, params->ith, memory);
    work.plan(task);
    const auto share = [&](int64_t n, auto f) { selfspec::share(n, params->ith, params->nth, f); };

    for (int64_t first = 0; first < task.n_heads; first += work.at_once) {
        const int64_t n_heads = std::min(work.at_once, task.n_heads - first);
        if (first > 0) {
            ggml_barrier(params->threadpool);
        }
        share(work.n_blocks*n_heads, [&](int64_t i) {
            const bool is_one_mask = task.n_masked_apart() == 1;  // then the rows of all heads are read in one stream
            scores_of_block(task, work, first, is_one_mask ? i%n_heads : i/work.n_blocks, is_one_mask ? i/n_heads : i%work.n_blocks);
        });
        ggml_barrier(params->threadpool);

        share(work.n_blocks*n_heads, [&](int64_t i) { weights_of_block(task, work, first, i/work.n_blocks, i%work.n_blocks); });
        ggml_barrier(params->threadpool);

        const HeadPieces pieces(n_heads, (task.dv + unit_of(task.v) - 1)/unit_of(task.v), task.n_queries, params->nth);
        values_of(task, work, first, pieces, pieces.n*params->ith/params->nth, pieces.n*(params->ith + 1)/params->nth);
    }
}

void attention(const ggml_compute_params * params, ggml_tensor * op) {
    for (int64_t first_token = 0; first_token < op->src[0]->ne[1]; first_token += most_tokens(op)) {
        if (first_token > 0) {
            ggml_barrier(params->threadpool);  // the work memory is reused
        }
        attention_from(params, op, first_token);
    }
}

}  // namespace selfspec
#endif
