// Flash attention, for MAX_WIDTH tokens at a time.
//
// Upstream splits the cells among the threads when there is one token, and sums them in sequence otherwise; its sums
// therefore differ with the width and with the number of threads. Here attention has three steps, with barriers between
// them: scores, weights, and values times weights. Scores are independent; the weights of a query are summed as integers,
// which is exact in any order; and a result sums the cells in sequence, on any thread. The result thus depends on the cells
// that a query sees and on their order, but not on their places in the cache. Queries that read equal K and V (the heads of a
// group, and the tokens) process a block of cells together, and all heads of a thread one block after the other, so that it reads
// one stream. Blocks that no query sees are skipped, and so are, in each block, the queries that see nothing of it, such as those of other sequences: a
// pass over 16 sequences costs about as much as the cells that they see, not 16 times as much.
// With many queries, a thread computes the three steps for its own pieces instead, without barriers. A prompt is computed as several
// narrow passes, so a token's bits do not depend on the other tokens of its batch.
#include "product.h"

#if defined(SELFSPEC_KERNELS)

#include "attention.h"
#include "attention_scores.h"
#include "chunks.h"
#include "vec.h"

#include <iterator>
#include <new>
#include <numeric>
#include <optional>

namespace selfspec {

namespace {

constexpr float ONE     = 1 << 30;           // the integer for a weight of one in sums of weights

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
    vi sums = zero_i();
    const auto to_weight = [&](int c) {
        const vf weight = ggml_v_expf(sub(load_f(block + c), repeat_f(largest)));
        store_f(block + c, weight);
        return to_int(mul(weight, repeat_f(ONE)));
    };
    for (int c = 0; c < CELLS; c += 2*VL) {
        sums = add_pairs(sums, add32(to_weight(c), to_weight(c + VL)));  // at most 2^31, not negative as 32 bits without a sign
    }
    int64_t of_lane[VB/8];
    store(of_lane, sums);
    return std::accumulate(of_lane, of_lane + VB/8, int64_t(0));
}

//
// values
//

// Adds the rows, times the weights of some queries, to values [i, i + N*VL) of the queries' totals.
template <int T, int N, typename Rows>
void mix(Rows rows, int64_t i, uint32_t cells, const float * const * weights, float * const * totals) {
    vf added[T][N];
    each<T>([&](auto t) { each<N>([&](auto j) { added[t][j] = load_f(totals[t] + i + j*VL); }); });
    each_cell(cells, [&](int64_t cell) {
        const Rows row = rows.from(cell);
        rows.fetch(cell, i, N*VL);
        vf x[N];
        each<N>([&](auto j) { x[j] = row.load(0, i + j*VL); });
        each<T>([&](auto t) {
            const vf weight = repeat_f(weights[t][cell]);
            each<N>([&](auto j) { added[t][j] = fma(x[j], weight, added[t][j]); });
        });
    });
    each<T>([&](auto t) { each<N>([&](auto j) { store_f(totals[t] + i + j*VL, added[t][j]); }); });
}

// Adds the rows, times the weights of some queries, to all values of the queries' totals.
template <int T, typename Rows>
void mix_all(Rows rows, int64_t width, uint32_t cells, const float * const * weights, float * const * totals) {
    constexpr int VECTORS = VB == 32 && T > 2 ? 2 : 4;  // so that all totals stay in registers
    int64_t i = 0;
    for (; i + VECTORS*VL <= width; i += VECTORS*VL) {
        mix<T, VECTORS>(rows, i, cells, weights, totals);
    }
    for (; i < width; i += VL) {
        mix<T, 1>(rows, i, cells, weights, totals);
    }
}

// Whether all of n floats, whole vectors, are finite.
bool all_numbers(const float * x, int64_t n) {
    vf bad = zero();
    for (int64_t i = 0; i < n; i += VL) {
        bad = fma(load_f(x + i), zero(), bad);
    }
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
    size_t       bytes;  // of n values
    const char * v;
    float *      totals;  // by query

    Values() = default;
    Values(const Task & task, int64_t first_head, const HeadPiece & piece, float * totals) : piece(piece), totals(totals) {
        begin = piece.unit0*unit_of(task.v);
        n     = std::min(piece.unit1*unit_of(task.v), task.dv) - begin;
        width = up(n);
        bytes = ggml_row_size(task.v->type, n);
        v     = task.rows(task.v, first_head + piece.head) + begin/ggml_blck_size(task.v->type)*task.v->nb[0];
    }
    int64_t n_queries() const          { return piece.query1 - piece.query0; }
    float * totals_of(int64_t j) const { return totals + (j - piece.query0)*width; }
};

// Adds the values of computed block i, times their weights. Zero times a value that is no number is NaN, as in a cell of another
// sequence with broken results: with `each_alone`, a query sums only the cells that it sees. The bits are the same.
// before, all: see Ahead.
void add_values(const Task & task, const Work & work, const Values & of, int64_t i, bool each_alone, size_t before, size_t all) {
    const int64_t block = work.blocks[i];
    const VisibleCells visible(task, work, of.piece.query0, of.piece.query1, block);
    const char * const v = of.v + block*CELLS*task.v->nb[1];
    const auto weights_of = [&](int64_t j) { return work.weights_in(task, of.piece.head, j, i); };
    const auto mix_tiles  = [&](const auto & rows) {
        in_tiles<LANE_QUERIES>(visible.n, [&](auto n, int first) {
            const float * weights[n];
            float *       totals[n];
            for (int t = 0; t < n; t++) {
                weights[t] = weights_of(visible.queries[first + t]);
                totals[t]  = of.totals_of(visible.queries[first + t]);
            }
            mix_all<n>(rows, of.width, visible.cells, weights, totals);
        });
    };
    const Ahead ahead(work, i, task.v, of.v, of.bytes, before, all);
    if (!each_alone && task.is_whole(of.n, block) && with_stored(visible.n, task.v, v, ahead, mix_tiles)) {
        return;
    }
    unpack(task.v, v, visible.cells, of.n, work.rows);
    const Floats rows{work.rows, of.width};
    if (!each_alone) {
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
    constexpr int64_t MOST = 64;
    Values values[MOST];
    const int64_t of_piece = task.n_queries*up(task.dv);
    const int64_t at_once  = task.n_masked_apart() > 1 ? 1 : std::clamp<int64_t>(TOTALS/of_piece, 1, MOST);
    for (int64_t first = begin; first < end; first += at_once) {
        const int64_t n_pieces = std::min(at_once, end - first);
        size_t all = 0;
        for (int64_t j = 0; j < n_pieces; j++) {
            values[j] = Values(task, first_head, pieces.piece(first + j), work.totals + j*of_piece);
            all += values[j].bytes;
        }
        work.queries_of(task, first_head + values[0].piece.head);
        std::fill_n(work.totals, n_pieces*of_piece, 0.0f);
        for (int64_t i = 0; i < work.n_blocks; i++) {
            size_t before = 0;
            for (int64_t j = 0; j < n_pieces; j++) {
                add_values(task, work, values[j], i, false, before, all);
                before += values[j].bytes;
            }
        }
        for (int64_t j = 0; j < n_pieces; j++) {
            const Values & of = values[j];
            const int64_t n = of.n_queries()*of.width;
            if (!all_numbers(of.totals, n)) {
                std::fill_n(of.totals, n, 0.0f);
                for (int64_t i = 0; i < work.n_blocks; i++) {
                    add_values(task, work, of, i, true, 0, 0);
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

// Bytes that n_threads threads need together for n_tokens at once.
static size_t work_size(const ggml_tensor * op, int64_t n_tokens, int n_threads) {
    const auto size = [&](int64_t first_token) {
        Memory memory = {64};  // a nonzero address: counts the bytes that alignment may waste
        Work(Task(op, first_token, n_tokens), n_threads, 0, memory);
        return up((int64_t) memory.end, 64);
    };
    return std::max(size(0), size((op->src[0]->ne[1] - 1)/n_tokens*n_tokens));
}

// Bytes that threads need alone; 0 if they work together.
static size_t size_alone(const ggml_tensor * op, const Division & by, int n_threads) {
    return by.n_alone == 0 ? 0 : alignof(Taken) + n_threads*(sizeof(Taken) + work_size(op, by.n_alone, 1));
}

size_t attention_work_size(const ggml_tensor * op, int n_threads) {
    const Division by(op, n_threads);
    return std::max(work_size(op, by.n_together, n_threads), size_alone(op, by, n_threads));
}

static void attention_together(const ggml_compute_params * params, const ggml_tensor * op, int64_t first_token, int64_t n_tokens) {
    const Task task(op, first_token, n_tokens);
    Memory     memory = {(uintptr_t) params->wdata};
    Work work(task, params->nth, params->ith, memory);
    GGML_ASSERT(memory.end <= memory.begin + params->wsize);
    work.plan(task);
    const auto share = [&](int64_t n, auto f) { selfspec::share(n, params->ith, params->nth, f); };

    for (int64_t first = 0; first < task.n_heads; first += work.at_once) {
        const int64_t n_heads = std::min(work.at_once, task.n_heads - first);
        if (first > 0) {
            ggml_barrier(params->threadpool);
        }
        share(work.n_blocks*n_heads, [&](int64_t i) {
            const bool is_one_mask = task.n_masked_apart() == 1;  // then the rows of all heads are read in one stream
            if (is_one_mask) {
                scores_of_block(task, work, first, i%n_heads, n_heads, i/n_heads);
            } else {
                scores_of_block(task, work, first, i/work.n_blocks, 1, i%work.n_blocks);
            }
        });
        ggml_barrier(params->threadpool);

        share(work.n_blocks*n_heads, [&](int64_t i) { weights_of_block(task, work, first, i/work.n_blocks, i%work.n_blocks); });
        ggml_barrier(params->threadpool);

        const HeadPieces pieces(n_heads, task.n_units(), task.n_queries, params->nth);
        values_of(task, work, first, pieces, pieces.n*params->ith/params->nth, pieces.n*(params->ith + 1)/params->nth);
    }
}

static void attention_alone(const ggml_compute_params * params, const ggml_tensor * op, const Division & by) {
    Taken * const taken = (Taken *) GGML_PAD((uintptr_t) params->wdata, alignof(Taken));
    const uintptr_t own = (uintptr_t) (taken + params->nth) + params->ith*work_size(op, by.n_alone, 1);
    new (taken + params->ith) Taken;
    ggml_barrier(params->threadpool);

    std::optional<Task> task;
    std::optional<Work> work;
    share_and_steal(by.n_pieces(), params->ith, params->nth, taken, true, [&](int64_t i) {
        const int64_t head = i%by.n_heads, first_token = i/by.n_heads*by.n_alone;
        if (!task || task->first_token != first_token) {
            Memory memory = {own};
            task.emplace(op, first_token, by.n_alone);
            work.emplace(*task, 1, 0, memory);
            work->plan(*task);
        }
        for (int64_t block = 0; block < work->n_blocks; block++) {
            scores_of_block(*task, *work, head, 0, 1, block);
        }
        for (int64_t block = 0; block < work->n_blocks; block++) {
            weights_of_block(*task, *work, head, 0, block);
        }
        values_of(*task, *work, head, HeadPieces(1, task->n_units(), task->n_queries, 1), 0, 1);
    });
}

void attention(const ggml_compute_params * params, ggml_tensor * op) {
    const Division by(op, params->nth);
    // work memory is for as many threads as were asked for; fewer, if some cannot start, may be divided otherwise
    if (const size_t size = size_alone(op, by, params->nth); size > 0 && size <= params->wsize) {
        attention_alone(params, op, by);
        return;
    }
    for (int64_t first_token = 0; first_token < by.n_all; first_token += by.n_together) {
        if (first_token > 0) {
            ggml_barrier(params->threadpool);  // the work memory is reused
        }
        attention_together(params, op, first_token, by.n_together);
    }
}

}  // namespace selfspec
#endif
