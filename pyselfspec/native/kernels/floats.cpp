// Products with F32, F16 and BF16 weights.
//
// A tile of R weight rows by T tokens keeps its R*T sums in registers; a vector of weights is converted once and
// multiplied by T tokens, a vector of activations by R rows. Memory is still read in one stream: while a tile is
// computed, the next one is fetched into the second-level cache from its first byte to its last. With AVX-512 a single token reads
// row after row, the pattern that the processor's own prefetcher handles best.
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

// For graphs that require activations without rounding: they may exceed the range of half precision.
struct F16_F32 : F32 {
    using weight = ggml_fp16_t;
    static vf  load_w(const weight * p) { return load_f16(p); }
};

struct BF16_F32 : F32 {
    using weight = ggml_bf16_t;
    static vf  load_w(const weight * p) { return load_bf16(p); }
};

struct F16 : F16_F32 {
    using value = ggml_fp16_t;
    static vf  load_a(const value * p)  { return load_f16(p); }
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
    const auto step = [&](const weight * const * w, int64_t at, int64_t k) {
        decltype(W::load_w(w[0])) wv[R];
        for (int r = 0; r < R; r++) {
            wv[r] = W::load_w(w[r] + at);
        }
        for (int t = 0; t < T; t++) {
            const auto av = W::load_a(a[t] + k);
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
        step(w, k, k);
    }
    if (whole < weights.k) {  // zeros up to the end of the vector, like the activations
        weight         tail[R][W::LANES] = {};
        const weight * tails[R];
        for (int r = 0; r < R; r++) {
            std::copy(w[r] + whole, w[r] + weights.k, tail[r]);
            tails[r] = tail[r];
        }
        step(tails, 0, whole);
    }
    for (int t = 0; t < T; t++) {
        for (int r = 0; r < R; r++) {
            tokens[t].out[row + r] = sum(sums[r][t]);
        }
    }
}

template <typename W>
void product(const Weights & weights, int64_t row0, int64_t row1, const Token * tokens, int n_tokens) {
    constexpr int ROWS = VB == 32 ? 3 : 6;
    int64_t row = row0;
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
        case GGML_TYPE_F16:  return may_be_f16 ? Scheme{{Layout::f16}, product<F16>} : Scheme{{Layout::f32}, product<F16_F32>};
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
