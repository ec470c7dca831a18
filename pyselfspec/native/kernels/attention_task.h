// The task of attention: queries, the cells that they see, and the work memory.
#pragma once

#include "product.h"

#if defined(SELFSPEC_KERNELS)

#include "ggml-cpu-impl.h"

#include <algorithm>
#include <cmath>

namespace selfspec {

namespace {

constexpr int         CELLS          = 32;  // cells of a block
constexpr int         QUERIES        = 4;   // queries that are multiplied at once
constexpr bool        HAS_COLUMNS    = VB >= 32;
constexpr int         LANE_QUERIES   = HAS_COLUMNS ? 6 : QUERIES;  // the same, where no lanes are summed
constexpr int         FEW            = 4*QUERIES;  // queries for which rows are converted whenever they are multiplied
constexpr int         ENOUGH         = 32;  // queries for which a thread may convert K and V of a head
constexpr ggml_fp16_t MINUS_INFINITY = 0xfc00;
constexpr int64_t     NEAR           = 512*1024;   // bytes of scores per thread that fit in its second-level cache
constexpr int64_t     ALONE          = 2 << 20;    // bytes of scores of a thread that computes alone: with fewer, it converts more often
constexpr int64_t     TOTALS         = 4096;       // totals of several heads that fit in the first-level cache beside rows
constexpr int64_t     MOST_SCORES    = 64 << 20;   // bytes of scores that all threads may have for more than one token

inline int64_t up(int64_t n, int64_t unit = VL) { return (n + unit - 1)/unit*unit; }

// Values that stay together.
inline int64_t unit_of(const ggml_tensor * t) { return std::max<int64_t>(VL, ggml_blck_size(t->type)); }

// The query of a token and a head.
struct Query {
    const float *       q;
    const ggml_fp16_t * mask;
    float               slope;
    const float *       sink;  // a score without a value, or none
    float *             out;
};

// How an op is divided among threads: a thread computes some tokens of a head alone, with scores in its own cache and without
// waiting for others, or all threads compute some tokens of all heads together.
struct Division {
    int64_t n_heads, n_all;  // of K and V; of tokens
    int64_t n_alone;         // tokens that a thread computes at once alone; 0 if threads work together
    int64_t n_together;      // tokens that all threads compute at once: fewer where many heads share K and V of a long text

    Division(const ggml_tensor * op, int n_threads) {
        const ggml_tensor * q = op->src[0], * k = op->src[1];
        const int64_t group = q->ne[2]/k->ne[2], of_token = group*up(k->ne[1], CELLS)*(int64_t) sizeof(float);
        n_heads = k->ne[2]*q->ne[3];
        n_all   = q->ne[1];
        const int64_t least = std::min<int64_t>((ENOUGH + group - 1)/group, MAX_WIDTH);
        n_together = std::clamp<int64_t>(MOST_SCORES/of_token, 1, MAX_WIDTH);
        n_alone    = std::clamp<int64_t>(std::min(ALONE/of_token, n_all*n_heads/(2*n_threads)), least, MAX_WIDTH);
        const int64_t room = (n_pieces() + n_threads - 1)/n_threads*n_threads;  // for pieces, until the last is done
        if (n_all < least || 5*n_pieces() < 4*room || n_threads*n_alone*of_token > MOST_SCORES) {
            n_alone = 0;
        }
    }
    int64_t n_pieces() const { return (n_all + n_alone - 1)/n_alone*n_heads; }  // for threads alone
};

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
    size_t  k_row = ggml_row_size(k->type, dk), v_row = ggml_row_size(v->type, dv);  // bytes of a cell and a head
    int64_t group     = q->ne[2]/k->ne[2];
    int64_t n_tokens;
    int64_t n_queries = group*n_tokens, n_heads = k->ne[2]*q->ne[3], n_blocks = (n_cells + CELLS - 1)/CELLS;

    Task(const ggml_tensor * op, int64_t first_token, int64_t most_tokens) :
        op(op), first_token(first_token), n_tokens(std::min(most_tokens, q->ne[1] - first_token)) {
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

    // Whether n values of each row of a block, which is whole, are whole vectors.
    bool is_whole(int64_t n, int64_t block) const { return n%VL == 0 && cells_in(block) == CELLS; }

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

    // Whether scores are few beside K and V, so that it is worth more to read the rows of all heads in one stream than to keep scores in
    // a near cache. They are written and read twice.
    bool has_few_scores() const {
        return 8*n_queries*sizeof(float) <= k_row + v_row;
    }

    int64_t n_units() const { return (dv + unit_of(v) - 1)/unit_of(v); }

    // The number of queries that may see different cells: queries are numbered by token first, then by head, and all heads
    // mostly see equal cells.
    int64_t n_views() const { return mask && mask->ne[2] != 1 ? n_queries : n_tokens; }

    // The number of heads that may each see different cells.
    int64_t n_masked_apart() const { return !mask || (mask->ne[2] == 1 && mask->ne[3] == 1) ? 1 : n_heads; }
};

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
    float *   columns;       // rows of K, turned into columns
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
        const int64_t all = task.n_heads*task.n_blocks, of_pair = task.n_queries*CELLS*(int64_t) sizeof(float);
        most_pairs = task.has_few_scores() && all*of_pair <= MOST_SCORES ?
            all : std::max(task.n_blocks, std::min(all, n_threads*NEAR/of_pair));
        weights = memory.take<float>(most_pairs*task.n_queries*CELLS);
        largest = memory.take<float>(most_pairs*up(task.n_queries));
        sums    = memory.take<int64_t>(most_pairs*task.n_queries);
        const int64_t of_rows = CELLS*up(std::max(task.dk, task.dv)), of_queries = LANE_QUERIES*up(task.dk);
        const int64_t of_columns = HAS_COLUMNS ? CELLS*up(task.dk) : 0;
        const int64_t of_totals = std::max(TOTALS, task.n_queries*up(task.dv));
        const int64_t n_own = up(of_rows + of_columns + of_queries + of_totals, 16);
        rows    = memory.take<float>(n_threads*n_own) + ith*n_own;
        columns = rows + of_rows;
        padded  = columns + of_columns;
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

}  // namespace

}  // namespace selfspec
#endif
