// Flash attention for few tokens.
//
// Upstream splits the cells among the threads when there is one token, and goes through them in a row otherwise; the
// sums then differ with the width and with the number of threads. Here a query takes the cells one after another,
// whoever computes it, and masked cells change nothing. So its result depends on what it sees and in which order, not
// on where in the cache that lies. Queries that read the same K and V (the heads of a group, and the tokens) share the
// conversion of a row, and a list of the cells that one of them sees: other texts in the cache cost next to nothing.
#include "product.h"

#if defined(SELFSPEC_KERNELS)

#include "attention.h"
#include "vec.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

namespace selfspec {

namespace {

constexpr int         QUERIES        = 4;                 // that share a pass over K and V
constexpr int         MIXED          = VB == 64 ? 4 : 2;  // vectors of V, as many as the registers hold
constexpr ggml_fp16_t MINUS_INFINITY = 0xfc00;

int64_t up(int64_t n) { return (n + VL - 1)/VL*VL; }

struct F16 { using type = ggml_fp16_t; static vf load(const type * p) { return load_f16(p); } };
struct F32 { using type = float;       static vf load(const type * p) { return load_f(p); } };

// Vector i of a row of n values, with zeros after the last.
template <typename KV> vf vector_of(const typename KV::type * row, int64_t i, int64_t n) {
    if (i + VL <= n) {
        return KV::load(row + i);
    }
    typename KV::type rest[VL] = {};
    std::copy(row + i, row + n, rest);
    return KV::load(rest);
}

struct Query {
    const ggml_fp16_t * mask;
    float               slope;
    const float *       sink;  // a score without a value, or none
    float *             out;
    float *             q;        // with zeros up to the end of a vector
    float *             weights;  // of the cells: products and scores at first, then exp(score - largest)
    float               largest = -INFINITY;
    float               factor  = 0;  // what makes the weights sum to one
};

struct Heads {
    const char * k;
    const char * v;
    size_t       k_row, v_row;
    int64_t      n_cells, dk, dv;
    float        scale, softcap;
};

// Room for the cells that a tile of queries sees, and for the weights of one that are not zero.
struct Scratch {
    int32_t * cells;
    float *   used;
};

// The cells that one of the queries sees, in ascending order. The weights of a query are in the order of this list.
struct Visible {
    int32_t * cells;
    int64_t   n = 0;
};

// Bits of the cells from `begin` on that one of the queries sees.
template <int T>
uint32_t seen(const Query * queries, int64_t begin, int64_t n) {
    if (n < LANES16) {
        uint32_t bits = 0;
        for (int64_t i = 0; i < n; i++) {
            for (int t = 0; t < T; t++) {
                bits |= (queries[t].mask[begin + i] != MINUS_INFINITY) << i;
            }
        }
        return bits;
    }
    uint32_t bits = 0;
    for (int t = 0; t < T; t++) {
        bits |= differ16(queries[t].mask + begin, (int16_t) MINUS_INFINITY);
    }
    return bits;
}

template <int T>
void find_visible(const Query * queries, int64_t n_cells, Visible & visible) {
    if (!queries[0].mask) {
        std::iota(visible.cells, visible.cells + n_cells, 0);
        visible.n = n_cells;
        return;
    }
    for (int64_t begin = 0; begin < n_cells; begin += LANES16) {
        uint32_t bits = seen<T>(queries, begin, std::min<int64_t>(LANES16, n_cells - begin));
        for (int32_t cell = (int32_t) begin; bits != 0; bits >>= 1, cell++) {
            visible.cells[visible.n] = cell;
            visible.n += bits & 1;
        }
    }
}

// Cells whose products with T queries fill a vector.
template <int T> constexpr int CELLS = VL/(T == 3 ? 4 : T);

// The products of the next cells of the list with every query, which become their weights. n: cells that are left.
template <typename KV, int T>
void multiply(const Heads & heads, Query * queries, const int32_t * cells, int64_t n, int64_t at) {
    constexpr int C = CELLS<T>;
    const typename KV::type * k[C];
    each<C>([&](auto c) { k[c] = (const typename KV::type *) (heads.k + cells[std::min<int64_t>(c, n - 1)]*heads.k_row); });
    vf dots[VL];
    each<VL>([&](auto j) { dots[j] = zero(); });
    const float * q[T];
    each<T>([&](auto t) { q[t] = queries[t].q; });
    const auto add_products = [&](int64_t i, auto load) {
        each<C>([&](auto c) {
            const vf x = load(k[c]);
            each<T>([&](auto t) { dots[t*C + c] = fma(x, load_f(q[t] + i), dots[t*C + c]); });
        });
    };
    int64_t i = 0;
    for (; i + VL <= heads.dk; i += VL) {
        add_products(i, [&](const auto * row) { return KV::load(row + i); });
    }
    if (i < heads.dk) {
        add_products(i, [&](const auto * row) { return vector_of<KV>(row, i, heads.dk); });
    }
    float results[VL];
    store_f(results, sums(dots));
    each<T>([&](auto t) { std::copy_n(results + t*C, C, queries[t].weights + at); });
}

// What the mask adds for up to VL cells of the list.
vf masks(const Query & query, const int32_t * cells, int64_t n) {
    if (!query.mask) {
        return zero();
    }
    if (n >= VL && cells[VL - 1] - cells[0] == VL - 1) {
        return mul(load_f16(query.mask + cells[0]), repeat_f(query.slope));
    }
    ggml_fp16_t some[VL] = {};
    for (int64_t c = 0; c < std::min<int64_t>(n, VL); c++) {
        some[c] = query.mask[cells[c]];
    }
    return mul(load_f16(some), repeat_f(query.slope));
}

// Products to scores. What lies behind the last is no cell.
void to_scores(const Heads & heads, Query & query, const Visible & visible) {
    float factor = heads.scale;
    if (heads.softcap != 0) {
        factor = heads.softcap;
        for (int64_t c = 0; c < visible.n; c++) {
            query.weights[c] = tanhf(query.weights[c]*heads.scale);
        }
    }
    const vf none = repeat_f(-INFINITY);
    vf largest = none;
    for (int64_t c = 0; c < visible.n; c += VL) {
        const vf mask  = masks(query, visible.cells + c, visible.n - c);
        const vf score = where_equal(mask, none, none, fma(load_f(query.weights + c), repeat_f(factor), mask));
        store_f(query.weights + c, score);
        largest = max(largest, c + VL <= visible.n ? score : first_lanes(score, (int) (visible.n - c), none));
    }
    std::fill_n(query.weights + visible.n, up(visible.n) - visible.n, -INFINITY);
    query.largest = max_of(largest);
}

// The sum of weights: each in the lane of its place among those that are not zero. Among all in the list it would depend
// on what other queries see.
float sum_of_used(const float * weights, int64_t n, float * used) {
    vf total = zero();
    bool ended = false, gap = false;
    for (int64_t c = 0; c < n; c += VL) {
        const vf       w    = load_f(weights + c);
        const uint32_t bits = nonzero(w);
        gap  |= (bits & (bits + 1)) != 0 || (ended && bits != 0);
        ended = bits != (1u << VL) - 1;
        total = add(total, w);
    }
    if (!gap) {
        return sum(total);
    }
    int64_t n_used = 0;
    for (int64_t c = 0; c < n; c++) {
        used[n_used] = weights[c];
        n_used += weights[c] != 0;
    }
    std::fill_n(used + n_used, up(n_used) - n_used, 0.0f);
    total = zero();
    for (int64_t c = 0; c < n_used; c += VL) {
        total = add(total, load_f(used + c));
    }
    return sum(total);
}

void to_weights(Query & query, int64_t n_cells, float * used) {
    if (query.sink) {
        query.largest = std::max(query.largest, *query.sink);
    }
    if (query.largest == -INFINITY) {  // it sees nothing
        std::fill_n(query.weights, up(n_cells), 0.0f);
        return;
    }
    for (int64_t c = 0; c < n_cells; c += VL) {
        store_f(query.weights + c, ggml_v_expf(sub(load_f(query.weights + c), repeat_f(query.largest))));
    }
    const float sum = sum_of_used(query.weights, n_cells, used);
    query.factor = 1/(query.sink ? sum + expf(*query.sink - query.largest) : sum);
}

// Values i to i + N*VL of the results: weights times V. N > 1 are whole vectors.
template <typename KV, int T, int N>
void mix(const Heads & heads, const Query * queries, const Visible & visible, int64_t i) {
    const float * weights[T];
    each<T>([&](auto t) { weights[t] = queries[t].weights; });
    vf totals[T*N];
    each<T*N>([&](auto j) { totals[j] = zero(); });
    for (int64_t begin = 0; begin < visible.n; begin += VL) {
        vf any = load_f(weights[0] + begin);
        each<T - 1>([&](auto t) { any = add(any, load_f(weights[t + 1] + begin)); });
        for (uint32_t bits = nonzero(any); bits != 0; bits &= bits - 1) {
            const int64_t c = begin + __builtin_ctz(bits);
            const auto    v = (const typename KV::type *) (heads.v + visible.cells[c]*heads.v_row);
            vf x[N];
            each<N>([&](auto j) { x[j] = N > 1 ? KV::load(v + i + j*VL) : vector_of<KV>(v, i, heads.dv); });
            each<T>([&](auto t) {
                const vf weight = repeat_f(weights[t][c]);
                each<N>([&](auto j) { totals[t*N + j] = fma(x[j], weight, totals[t*N + j]); });
            });
        }
    }
    each<T>([&](auto t) {
        float results[N*VL];
        each<N>([&](auto j) { store_f(results + j*VL, mul(totals[t*N + j], repeat_f(queries[t].factor))); });
        std::copy_n(results, std::min<int64_t>(N*VL, heads.dv - i), queries[t].out + i);
    });
}

template <typename KV, int T>
void attend(const Heads & heads, Query * queries, const Scratch & scratch) {
    Visible visible = { scratch.cells };
    find_visible<T>(queries, heads.n_cells, visible);
    for (int64_t c = 0; c < visible.n; c += CELLS<T>) {
        multiply<KV, T>(heads, queries, visible.cells + c, visible.n - c, c);
    }
    for (int t = 0; t < T; t++) {
        to_scores(heads, queries[t], visible);
        to_weights(queries[t], visible.n, scratch.used);
    }
    int64_t i = 0;
    for (; i + MIXED*VL <= heads.dv; i += MIXED*VL) {
        mix<KV, T, MIXED>(heads, queries, visible, i);
    }
    for (; i < heads.dv; i += VL) {
        mix<KV, T, 1>(heads, queries, visible, i);
    }
}

template <typename KV>
void attend_all(const Heads & heads, Query * queries, int n_queries, const Scratch & scratch) {
    in_tiles<QUERIES>(n_queries, [&](auto n, int first) { attend<KV, n>(heads, queries + first, scratch); });
}

struct Parameters {
    float scale, max_bias, softcap;
    explicit Parameters(const ggml_tensor * op) {
        memcpy(this, op->op_params, sizeof(*this));
        if (softcap != 0) {
            scale /= softcap;
        }
    }
    float slope(int64_t head, int64_t n_heads) const {  // ALiBi
        if (max_bias <= 0) {
            return 1;
        }
        const int64_t n = int64_t(1) << (int) floor(log2((double) n_heads));
        return head < n ? powf(powf(2, -max_bias/n), head + 1) : powf(powf(2, -max_bias/2/n), 2*(head - n) + 1);
    }
};

// Of each thread: the queries and their weights, then the arrays of Scratch.
int64_t scratch_floats(const ggml_tensor * op) {
    static_assert(sizeof(int32_t) == sizeof(float));
    return QUERIES*(up(op->src[1]->ne[0]) + up(op->src[1]->ne[1])) + 2*up(op->src[1]->ne[1]);
}

}  // namespace

bool takes_attention(const ggml_tensor * op) {
    const ggml_tensor * q = op->src[0];
    const ggml_tensor * k = op->src[1];
    const ggml_tensor * v = op->src[2];
    const bool known_only = std::all_of(op->src + 5, std::end(op->src), [](const ggml_tensor * t) { return !t; });
    return known_only && q->ne[1] <= MAX_WIDTH && q->type == GGML_TYPE_F32 && k->type == v->type &&
           (k->type == GGML_TYPE_F16 || k->type == GGML_TYPE_F32) && q->nb[0] == sizeof(float) &&
           k->nb[0] == ggml_type_size(k->type) && v->nb[0] == ggml_type_size(v->type) &&
           k->ne[2] == v->ne[2] && k->ne[3] == v->ne[3];
}

size_t attention_work_size(const ggml_tensor * op, int n_threads) {
    return 64 + n_threads*GGML_PAD(scratch_floats(op)*sizeof(float), 64);
}

void attention(const ggml_compute_params * params, ggml_tensor * op) {
    const ggml_tensor * q     = op->src[0];
    const ggml_tensor * k     = op->src[1];
    const ggml_tensor * v     = op->src[2];
    const ggml_tensor * mask  = op->src[3];
    const ggml_tensor * sinks = op->src[4];
    const Parameters    parameters(op);
    const int64_t dk = k->ne[0], dv = v->ne[0], n_heads = q->ne[2];
    float * const scratch = (float *) GGML_PAD((uintptr_t) params->wdata, 64) +
                            params->ith*GGML_PAD(scratch_floats(op), 16);

    // The queries that share a head of K and V: tokens x heads of the group. In tiles, or one by one where there would
    // not be a tile for every thread; the result is the same.
    const int64_t group = n_heads/k->ne[2], n_shared = group*q->ne[1];
    const int64_t r3 = q->ne[3]/k->ne[3];
    const bool    one_by_one = (n_shared + QUERIES - 1)/QUERIES*k->ne[2]*q->ne[3] < params->nth;
    const int64_t tile    = one_by_one ? 1 : QUERIES;
    const int64_t n_tiles = (n_shared + tile - 1)/tile;

    for (int64_t i = params->ith; i < n_tiles*k->ne[2]*q->ne[3]; i += params->nth) {
        const int64_t begin = i%n_tiles*tile, kv_head = i/n_tiles%k->ne[2], i3 = i/(n_tiles*k->ne[2]);
        const Heads heads = {
            (const char *) k->data + kv_head*k->nb[2] + i3/r3*k->nb[3],
            (const char *) v->data + kv_head*v->nb[2] + i3/r3*v->nb[3],
            k->nb[1], v->nb[1], k->ne[1], dk, dv, parameters.scale, parameters.softcap,
        };
        Query queries[QUERIES];
        const int n = (int) std::min(tile, n_shared - begin);
        for (int j = 0; j < n; j++) {
            const int64_t head = kv_head*group + (begin + j)/q->ne[1], token = (begin + j)%q->ne[1];
            Query & query = queries[j];
            query.mask    = mask ? (const ggml_fp16_t *) ((const char *) mask->data + token*mask->nb[1] +
                                        head%mask->ne[2]*mask->nb[2] + i3%mask->ne[3]*mask->nb[3]) : nullptr;
            query.slope   = parameters.slope(head, n_heads);
            query.sink    = sinks ? (const float *) sinks->data + head : nullptr;
            query.out     = (float *) ((char *) op->data + (head + op->ne[1]*(token + op->ne[2]*i3))*op->nb[1]);
            query.q       = scratch + j*(up(dk) + up(heads.n_cells));
            query.weights = query.q + up(dk);
            std::fill_n(query.q + dk, up(dk) - dk, 0.0f);
            memcpy(query.q, (const char *) q->data + token*q->nb[1] + head*q->nb[2] + i3*q->nb[3], dk*sizeof(float));
        }
        float * const rest = scratch + QUERIES*(up(dk) + up(heads.n_cells));
        (k->type == GGML_TYPE_F16 ? attend_all<F16> : attend_all<F32>)(heads, queries, n, {(int32_t *) rest, rest + up(heads.n_cells)});
    }
}

}  // namespace selfspec
#endif
