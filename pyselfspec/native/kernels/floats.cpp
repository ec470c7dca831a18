// Products with F32, F16 and BF16 weights.
//
// A tile of R weight rows by T tokens keeps its R*T sums in registers; a vector of weights is converted once and
// multiplied by T tokens, a vector of activations by R rows. Memory is still read in one stream: while a tile is
// computed, the next one is fetched into the second-level cache from its first byte to its last. With AVX-512 a single token reads
// row after row, the pattern that the processor's own prefetcher handles best. For a prompt, weights
// are converted once for many tokens.
#include "product.h"

#if defined(SELFSPEC_KERNELS)

namespace selfspec {

namespace {

struct F32 {
    using weight = float;
    using value  = float;
    static constexpr int LANES = VL;
    static vf  load_w(const weight * p) { return load_f(p); }
    static vf  load_a(const value * p)  { return load_f(p); }
    static vf  mac(vf w, vf a, vf acc)  { return fma(w, a, acc); }
};

struct F16 : F32 {
    using weight = ggml_fp16_t;
    static vf  load_w(const weight * p) { return load_f16(p); }
};

struct BF16_F32 : F32 {
    using weight = ggml_bf16_t;
    static vf  load_w(const weight * p) { return load_bf16(p); }
};

#if defined(SELFSPEC_BF16)
struct BF16 {
    using weight = ggml_bf16_t;
    using value  = ggml_bf16_t;
    static constexpr int LANES = 2*VL;
    static vi  load_w(const weight * p) { return load(p); }
    static vi  load_a(const value * p)  { return load(p); }
    static vf  mac(vi w, vi a, vf acc)  { return mac_bf16(w, a, acc); }
};
#else
using BF16 = BF16_F32;
#endif

// Reads a vector once: GCC otherwise reads it again for every product, where it counts operands in memory as cheap.
template <typename V> [[gnu::always_inline]] inline V in_register(V x) {
#if defined(__x86_64__) && !defined(SELFSPEC_PARTS_APART)  // emulated vectors fit no register
    asm("" : "+v"(x));
#endif
    return x;
}

template <typename W> using Vector = decltype(W::load_w(nullptr));

// Rows of a tile for few tokens, of which it has four.
constexpr int ROWS = VB == 32 ? 3 : 6;

// The last n values of a row, and zeros up to the end of the vector, like the activations.
template <typename W> auto load_tail(const typename W::weight * from, int64_t n) {
    typename W::weight tail[W::LANES] = {};
    std::copy(from, from + n, tail);
    return W::load_w(tail);
}

template <typename W, int R, int T>
void tile(const Weights & weights, int64_t row, const Token * tokens) {
    using weight = typename W::weight;
    using value  = typename W::value;
    const weight * w[R];
    const value *  a[T];
    for (int r = 0; r < R; r++) {
        w[r] = (const weight *) (weights.data + (row + r)*weights.row_size);
    }
    for (int t = 0; t < T; t++) {
        a[t] = (const value *) tokens[t].in.values;
    }

    vf sums[R][T];
    for (auto & of_row : sums) {
        std::fill_n(of_row, T, zero());
    }
    const auto step = [&](int64_t k, auto load_w) {
        Vector<W> wv[R];
        for (int r = 0; r < R; r++) {
            wv[r] = in_register(load_w(w[r] + k));
        }
        for (int t = 0; t < T; t++) {
            const auto av = in_register(W::load_a(a[t] + k));
            for (int r = 0; r < R; r++) {
                sums[r][t] = W::mac(wv[r], av, sums[r][t]);
            }
        }
    };

    const int64_t whole = weights.k/W::LANES*W::LANES;
    const char *  next  = weights.data + (row + R)*weights.row_size;
    for (int64_t k = 0; k < whole; k += W::LANES) {
        if constexpr (R == 1) {
            fetch_ahead<W::LANES*sizeof(weight)>(w[0] + k);
        } else {
            const char * of_next = next + k*R*sizeof(weight);
            for (int i = 0; i < LINES<R*W::LANES*sizeof(weight)>; i++) {
                fetch_far(of_next + 64*i);
            }
            for (int r = 0; r < R; r++) {
                fetch_near((const char *) (w[r] + k) + NEAR_AHEAD/2);
            }
        }
        step(k, W::load_w);
    }
    if (whole < weights.k) {
        step(whole, [&](const weight * from) { return load_tail<W>(from, weights.k - whole); });
    }
    for (int t = 0; t < T; t++) {
        for (int r = 0; r < R; r++) {
            tokens[t].out[row + r] = sum(sums[r][t]);
        }
    }
}

// --- prompts ---

// Rows and tokens of a tile: their sums fill the registers.
constexpr int MANY = VB == 32 ? 4 : 8;
constexpr int SHARING = 3;

// Groups of so many rows whose weights are converted together, as many as pieces of a product have a multiple of.
constexpr int GROUPS = 8/MANY;

// Values of each row that are converted at once, into the first-level cache.
constexpr int64_t CONVERTED = 512;

// Tokens for which they are converted, the fewest of a prompt that are multiplied at once (tokens_at_once in products.cpp).
constexpr int NEAR_TOKENS = 64;

// Adds the products of n vectors of MANY rows, side by side, and of T tokens' values from k on.
template <typename W, int T>
SELFSPEC_TILE void add_converted(const Vector<W> * from, int64_t n, const Token * tokens, int64_t k, vf (*sums)[MANY]) {
    const typename W::value * a[T];
    each<T>([&](auto t) { a[t] = (const typename W::value *) tokens[t].in.values + k; });
    vf totals[T][MANY];
    each<T>([&](auto t) { each<MANY>([&](auto r) { totals[t][r] = sums[t][r]; }); });
    for (int64_t i = 0; i < n; i++) {
        Vector<W> av[T];
        each<T>([&](auto t) { av[t] = in_register(W::load_a(a[t] + i*W::LANES)); });
        each<MANY>([&](auto r) {
            const auto wv = in_register(from[MANY*i + r]);
            each<T>([&](auto t) { totals[t][r] = W::mac(wv, av[t], totals[t][r]); });
        });
    }
    each<T>([&](auto t) { each<MANY>([&](auto r) { sums[t][r] = totals[t][r]; }); });
}

// Converts n vectors of each of MANY rows from value k on, and fetches what follows.
template <typename W> void convert(const Weights & weights, int64_t row, int64_t k, int64_t n, Vector<W> * to) {
    for (int r = 0; r < MANY; r++) {
        const auto w = (const typename W::weight *) (weights.data + (row + r)*weights.row_size) + k;
        for (int64_t i = 0; i < n; i++) {
            const int64_t left = weights.k - k - i*W::LANES;
            fetch_far((const char *) (w + i*W::LANES + CONVERTED));
            to[MANY*i + r] = left < W::LANES ? load_tail<W>(w + i*W::LANES, left) : W::load_w(w + i*W::LANES);
        }
    }
}

template <typename W> void many(const Weights & weights, int64_t row, const Token * tokens, int n_tokens) {
    constexpr int64_t VECTORS = CONVERTED/W::LANES;
    Vector<W> converted[GROUPS][VECTORS*MANY];
    vf        sums[GROUPS][NEAR_TOKENS][MANY];
    std::fill_n(&sums[0][0][0], GROUPS*NEAR_TOKENS*MANY, zero());
    for (int64_t k = 0; k < weights.k; k += CONVERTED) {
        const int64_t n = std::min(VECTORS, (weights.k - k + W::LANES - 1)/W::LANES);
        for (int g = 0; g < GROUPS; g++) {
            convert<W>(weights, row + g*MANY, k, n, converted[g]);
        }
        in_tiles<SHARING>(n_tokens, [&](auto n_here, int t) {
            for (int g = 0; g < GROUPS; g++) {
                add_converted<W, n_here>(converted[g], n, tokens + t, k, sums[g] + t);
            }
        });
    }
    for (int t = 0; t < n_tokens; t++) {
        for (int r = 0; r < GROUPS*MANY; r++) {
            tokens[t].out[row + r] = sum(sums[r/MANY][t][r%MANY]);
        }
    }
}

template <typename W>
void product(const Weights & weights, int64_t row0, int64_t row1, const Token * tokens, int n_tokens) {
    int64_t row = row0;
    for (; n_tokens >= MAX_WIDTH && row + GROUPS*MANY <= row1; row += GROUPS*MANY) {
        for (int t = 0; t < n_tokens; t += NEAR_TOKENS) {
            many<W>(weights, row, tokens + t, std::min(NEAR_TOKENS, n_tokens - t));
        }
    }
    if (n_tokens == 1 && VB == 64) {  // elsewhere one row would wait for its own sum before adding the next product
        for (; row < row1; row++) {
            tile<W, 1, 1>(weights, row, tokens);
        }
    }
    for (; row + ROWS <= row1; row += ROWS) {
        in_tiles<4>(n_tokens, [&](auto n, int first) { tile<W, ROWS, n>(weights, row, tokens + first); });
    }
    for (; row < row1; row++) {
        in_tiles<4>(n_tokens, [&](auto n, int first) { tile<W, 1, n>(weights, row, tokens + first); });
    }
}

}  // namespace

Scheme float_scheme(ggml_type type, ggml_prec precision) {
    const bool may_be_bf16 = precision == GGML_PREC_UNDEFINED || precision >= GGML_PREC_BF16;
    const bool may_be_f16  = precision == GGML_PREC_UNDEFINED || precision >= GGML_PREC_F16;
    switch (type) {
        case GGML_TYPE_F32:  return {{Layout::f32}, product<F32>};
        case GGML_TYPE_F16:  return {{may_be_f16 ? Layout::f16 : Layout::f32}, product<F16>};
        case GGML_TYPE_BF16: return may_be_bf16 ? Scheme{{Layout::bf16}, product<BF16>} : Scheme{{Layout::f32}, product<BF16_F32>};
        default:             return {};
    }
}

Scheme file_scheme(ggml_type type, ggml_prec precision) {
    for (const Scheme & scheme : {float_scheme(type, precision), block_scheme(type), superblock_scheme(type), codebook_scheme(type)}) {
        if (scheme.kernel) {
            return scheme;
        }
    }
    return {};
}

}  // namespace selfspec
#endif
