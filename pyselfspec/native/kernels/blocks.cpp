// Products with quantised weights as they are in the file, one row after another.
//
// 256 weights of a row are unpacked to bytes, with their scales, into a `Panel` and multiplied by the same 256 values
// of every token. One row at a time: memory is read in one stream, which is what it does best.
#include "product.h"

#if defined(SELFSPEC_KERNELS)

#define GGML_COMMON_DECL_CPP
#define GGML_COMMON_IMPL_CPP
#include "ggml-common.h"

namespace selfspec {

namespace {

constexpr int N = K_STEP/VB;  // vectors of a panel

// --- unpacking: 32 weights at a time, the same instructions with AVX2 and AVX-512 ---

__m256i load32(const void * p)           { return _mm256_loadu_si256((const __m256i *) p); }
__m256i low4(__m256i x)                  { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
__m256i bits(__m256i x, int8_t mask)     { return _mm256_and_si256(x, _mm256_set1_epi8(mask)); }

// 16 bytes to 32 nibbles: low ones first.
__m256i nibbles16(const uint8_t * p) {
    const __m128i x = _mm_loadu_si128((const __m128i *) p);
    return low4(_mm256_inserti128_si256(_mm256_castsi128_si256(x), _mm_srli_epi16(x, 4), 1));
}

__m128 half_to_float(ggml_half x)        { return _mm_cvtph_ps(_mm_cvtsi32_si128(x)); }

// The scales of eight blocks; a block begins with its scale.
template <typename B> __m256 block_scales(const B * b) {
    const auto d = [&](int i) { return (short) b[i].d; };
    return _mm256_cvtph_ps(_mm_setr_epi16(d(0), d(1), d(2), d(3), d(4), d(5), d(6), d(7)));
}

// Joined in registers: a vector loaded from two stores would wait for both.
void put(vi * to, const __m256i (&from)[8]) {
    for (int i = 0; i < N; i++) {
#if defined(SELFSPEC_AVX512)
        to[i] = _mm512_inserti64x4(_mm512_castsi256_si512(from[2*i]), from[2*i + 1], 1);
#else
        to[i] = from[i];
#endif
    }
}

// scale[i] of eight, for every lane of a product with weights 32*i to 32*i + 31.
void spread8(vf * to, __m256 scale) {
#if defined(SELFSPEC_AVX512)
    const __m512 s = _mm512_castps256_ps512(scale);
    const __m512i first = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    for (int i = 0; i < N; i++) {
        to[i] = _mm512_permutexvar_ps(_mm512_add_epi32(first, _mm512_set1_epi32(2*i)), s);
    }
#else
    for (int i = 0; i < N; i++) {
        to[i] = _mm256_permutevar8x32_ps(scale, _mm256_set1_epi32(i));
    }
#endif
}

// The same for sixteen scales and 16 weights each.
void spread16(vf * to, __m256 lo, __m256 hi) {
#if defined(SELFSPEC_AVX512)
    const __m512 s = _mm512_insertf32x8(_mm512_castps256_ps512(lo), hi, 1);
    const __m512i first = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    for (int i = 0; i < N; i++) {
        to[i] = _mm512_permutexvar_ps(_mm512_add_epi32(first, _mm512_set1_epi32(4*i)), s);
    }
#else
    const __m256i first = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
    for (int i = 0; i < N; i++) {
        to[i] = _mm256_permutevar8x32_ps(i < 4 ? lo : hi, _mm256_add_epi32(first, _mm256_set1_epi32(2*(i % 4))));
    }
#endif
}

// The scales of a block of 256, one per W weights, as they meet the products of its vectors: 16-bit factors of sums of
// two products, or with VNNI, which has no such sums, floats.
template <int W> struct BlockScales {
#if defined(SELFSPEC_VNNI)
    vf of[N];

    void set(__m128i scales, __m256 d) {
        const __m256 lo = _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(scales)));
        if (W == 16) {
            spread16(of, lo, _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(scales, 8)))));
        } else {
            spread8(of, lo);
        }
    }
    vf rest(vf scale_in) const { return scale_in; }
#else
    vi     of[N];
    __m256 d;

    void set(__m128i scales, __m256 of_block) {
        static const int16_t sixteenth[32] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1,
                                              2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3};
        for (int i = 0; i < N; i++) {
            const vi which = right<W/32>(add16(load(sixteenth), repeat16((int16_t) (i*VB/16))));
            of[i] = high_bytes(lookup(scales, left<8>(which)));
        }
        d = of_block;
    }
    vf rest(vf scale_in) const { return mul(repeat_f(_mm256_cvtss_f32(d)), scale_in); }
#endif
};

// --- panels ---

struct SignedPanel {
    vi w[N], aside[N];

    void set(const __m256i (&bytes)[8]) {
        put(w, bytes);
        for (int i = 0; i < N; i++) {
            aside[i] = Signed::aside(w[i]);
        }
    }

    vf dot(int i, const char * a) const  { return to_float(Signed::dot(w[i], aside[i], load(a + i*VB))); }
    vi dot2(int i, const char * a) const { return Signed::dot2(w[i], aside[i], load(a + i*VB)); }
};

// Blocks of 32 with one scale, activations with one scale per 32.
struct Panel32 : SignedPanel {
    static constexpr Form FORM = Form::q8;
    __m256 scale;
};

struct Q8_0 : Panel32 {
    using block = block_q8_0;
    void unpack(const block * b) {
        __m256i bytes[8];
        for (int i = 0; i < 8; i++) {
            bytes[i] = load32(b[i].qs);
        }
        set(bytes);
        scale = block_scales(b);
    }
};

struct Q4_0 : Panel32 {
    using block = block_q4_0;
    void unpack(const block * b) {
        __m256i bytes[8];
        for (int i = 0; i < 8; i++) {
            bytes[i] = _mm256_sub_epi8(nibbles16(b[i].qs), _mm256_set1_epi8(8));
        }
        set(bytes);
        scale = block_scales(b);
    }
};

struct IQ4_NL : Panel32 {
    using block = block_iq4_nl;
    void unpack(const block * b) {
        const __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *) kvalues_iq4nl));
        __m256i bytes[8];
        for (int i = 0; i < 8; i++) {
            bytes[i] = _mm256_shuffle_epi8(table, nibbles16(b[i].qs));
        }
        set(bytes);
        scale = block_scales(b);
    }
};

struct Q6_K : SignedPanel {
    using block = block_q6_K;
    static constexpr Form FORM = Form::q8k;
    BlockScales<16> scales;

    void unpack(const block * b) {
        unpack_bits(b);
        for (int i = 0; i < N; i++) {
            aside[i] = Signed::aside_with_32(w[i]);
            w[i]     = sub8(w[i], repeat(32));
        }
        scales.set(_mm_loadu_si128((const __m128i *) b->scales), _mm256_broadcastss_ps(half_to_float(b->d)));
    }

    // The weights with 32 added: four low bits, and two more. Runs of 32 in turn take the lower and the upper nibbles of
    // 64 bytes, and the next two bits of 32 bytes.
    void unpack_bits(const block * b) {
#if defined(SELFSPEC_AVX512)
        const vi up   = _mm512_inserti64x4(_mm512_set1_epi16(4), _mm256_set1_epi16(2), 1);
        const vi down = _mm512_inserti64x4(zero_i(), _mm256_set1_epi16(2), 1);
        const auto joined = [](vi low, vi high) { return or_(and_(low, repeat(15)), and_(high, repeat(0x30))); };
        for (int half = 0; half < 2; half++) {
            const vi ql = load(b->ql + 64*half);
            const vi qh = _mm512_broadcast_i64x4(load32(b->qh + 32*half));
            w[2*half]     = joined(ql, _mm512_sllv_epi16(qh, up));
            w[2*half + 1] = joined(right<4>(ql), _mm512_srlv_epi16(qh, down));
        }
#else
        const auto joined = [](__m256i low, __m256i high) { return _mm256_or_si256(low4(low), bits(high, 0x30)); };
        for (int half = 0; half < 2; half++) {
            const vi ql0 = load(b->ql + 64*half);
            const vi ql1 = load(b->ql + 64*half + 32);
            const vi qh  = load(b->qh + 32*half);
            w[4*half]     = joined(ql0, left<4>(qh));
            w[4*half + 1] = joined(ql1, left<2>(qh));
            w[4*half + 2] = joined(right<4>(ql0), qh);
            w[4*half + 3] = joined(right<4>(ql1), right<2>(qh));
        }
#endif
    }

    vf finish(vf total, const Activations & in, int64_t k, vf acc) const {
        return fma(total, scales.rest(repeat_f(in.scales[k/K_STEP])), acc);
    }
};

// Unsigned weights times a scale per 32, less a minimum per 32: the minimum meets the sum of 32 activations.
struct MinPanel {
    static constexpr Form FORM = Form::q8k_sums;
    vi w[N];
    BlockScales<32> scales;
    __m128i mins;
    __m128  dmin;

    template <typename B> void set_scales(const B * b) {
        uint32_t u[4];
        memcpy(u, b->scales, 12);
        u[3] = ((u[2] >> 4) & 0x0f0f0f0f) | (((u[1] >> 6) & 0x03030303) << 4);
        const uint32_t low = u[1] & 0x3f3f3f3f;
        u[1] = (u[2] & 0x0f0f0f0f) | (((u[0] >> 6) & 0x03030303) << 4);
        u[2] = low;
        u[0] &= 0x3f3f3f3f;
        const __m128i both = _mm_loadu_si128((const __m128i *) u);
        scales.set(both, _mm256_broadcastss_ps(half_to_float(b->GGML_COMMON_AGGR_U.GGML_COMMON_AGGR_S.d)));
        mins = _mm_cvtepu8_epi16(_mm_srli_si128(both, 8));
        dmin = half_to_float(b->GGML_COMMON_AGGR_U.GGML_COMMON_AGGR_S.dmin);
    }

    vf dot(int i, const char * a) const  { return to_float(dot4(zero_i(), w[i], load(a + i*VB))); }
    vi dot2(int i, const char * a) const { return selfspec::dot2(w[i], load(a + i*VB)); }

    vf finish(vf total, const Activations & in, int64_t k, vf acc) const {
        const vf scale_in = repeat_f(in.scales[k/K_STEP]);
        acc = fma(total, scales.rest(scale_in), acc);
        const __m128i below = _mm_madd_epi16(mins, _mm_load_si128((const __m128i *) (in.sums + k/32)));
        return fnma(to_float(widen(below)), mul(repeat_f(_mm_cvtss_f32(dmin)), scale_in), acc);
    }
};

struct Q4_K : MinPanel {
    using block = block_q4_K;
    void unpack(const block * b) {
        __m256i bytes[8];
        for (int i = 0; i < 8; i += 2) {
            const __m256i q = load32(b->qs + 16*i);
            bytes[i]     = low4(q);
            bytes[i + 1] = low4(_mm256_srli_epi16(q, 4));
        }
        put(w, bytes);
        set_scales(b);
    }
};

struct Q5_K : MinPanel {
    using block = block_q5_K;
    void unpack(const block * b) {
        const __m256i qh = load32(b->qh);
        __m256i bytes[8];
        for (int i = 0; i < 8; i += 2) {
            const __m256i q = load32(b->qs + 16*i);
            // bit i of every byte, moved to bit 4
            bytes[i]     = _mm256_or_si256(low4(q), fifth(qh, i));
            bytes[i + 1] = _mm256_or_si256(low4(_mm256_srli_epi16(q, 4)), fifth(qh, i + 1));
        }
        put(w, bytes);
        set_scales(b);
    }
    static __m256i fifth(__m256i qh, int i) {
        const __m256i moved = i < 4 ? _mm256_slli_epi16(qh, 4 - i) : _mm256_srli_epi16(qh, i - 4);
        return bits(moved, 16);
    }
};

// --- a panel times its part of the tokens ---

// Blocks of 32. With AVX2 a vector of weights has one scale and meets all tokens while it is in registers.
template <int T, typename P> inline void mac32(const P & panel, const Token * tokens, int64_t k, vf (&sums)[T]) {
    const auto scales_of = [&](int t) { return _mm256_mul_ps(panel.scale, _mm256_loadu_ps(tokens[t].in.scales + k/32)); };
#if defined(SELFSPEC_AVX512)
    for (int t = 0; t < T; t++) {
        vf scales[N];
        spread8(scales, scales_of(t));
        for (int i = 0; i < N; i++) {
            sums[t] = fma(panel.dot(i, tokens[t].in.values + k), scales[i], sums[t]);
        }
    }
#else
    float scales[T][N];
    for (int t = 0; t < T; t++) {
        store_f(scales[t], scales_of(t));
    }
    for (int i = 0; i < N; i++) {
        for (int t = 0; t < T; t++) {
            sums[t] = fma(panel.dot(i, tokens[t].in.values + k), repeat_f(scales[t][i]), sums[t]);
        }
    }
#endif
}

// Blocks of 256: products times the scales of the parts are added first.
template <int T, typename P> inline void mac256(const P & panel, const Token * tokens, int64_t k, vf (&sums)[T]) {
#if defined(SELFSPEC_VNNI)
    for (int t = 0; t < T; t++) {
        const char * a = tokens[t].in.values + k;
        vf total = mul(panel.dot(0, a), panel.scales.of[0]);
        for (int i = 1; i < N; i++) {
            total = fma(panel.dot(i, a), panel.scales.of[i], total);
        }
        sums[t] = panel.finish(total, tokens[t].in, k, sums[t]);
    }
#else
    vi totals[T];
    std::fill_n(totals, T, zero_i());
    for (int i = 0; i < N; i++) {
        for (int t = 0; t < T; t++) {
            totals[t] = add32(totals[t], mac2(panel.dot2(i, tokens[t].in.values + k), panel.scales.of[i]));
        }
    }
    for (int t = 0; t < T; t++) {
        sums[t] = panel.finish(to_float(totals[t]), tokens[t].in, k, sums[t]);
    }
#endif
}

// --- the product ---

template <typename P, int T>
void row_times_tokens(const Weights & weights, int64_t row, const Token * tokens) {
    using block = typename P::block;
    constexpr int64_t SIZE  = P::FORM == Form::q8 ? 32 : 256;  // values of a block
    constexpr int64_t COUNT = K_STEP/SIZE;                     // blocks of a panel
    const int64_t n_blocks = weights.k/SIZE;
    const auto    blocks   = (const block *) (weights.data + row*weights.row_size);

    vf sums[T];
    std::fill_n(sums, T, zero());
    const auto step = [&](const block * b, int64_t k) {
        P panel;
        panel.unpack(b);
        if constexpr (SIZE == 32) {
            mac32<T>(panel, tokens, k, sums);
        } else {
            mac256<T>(panel, tokens, k, sums);
        }
    };
    const int64_t whole = n_blocks/COUNT*COUNT;
    for (int64_t b = 0; b < whole; b += COUNT) {
        if constexpr (T > 1) {  // one token is fast enough for the processor's own fetching
            prefetch<COUNT*sizeof(block)>(blocks + b);
        }
        step(blocks + b, b*SIZE);
    }
    if (whole < n_blocks) {  // scales of zero up to the end of the panel
        block rest[COUNT] = {};
        std::copy(blocks + whole, blocks + n_blocks, rest);
        step(rest, whole*SIZE);
    }
    for (int t = 0; t < T; t++) {
        tokens[t].out[row] = sum(sums[t]);
    }
}

template <typename P>
void product(const Weights & weights, int64_t row0, int64_t row1, const Token * tokens, int n_tokens) {
    for (int64_t row = row0; row < row1; row++) {
        in_tiles<TILE>(n_tokens, [&](auto n, int first) { row_times_tokens<P, n>(weights, row, tokens + first); });
    }
}

}  // namespace

Scheme block_scheme(ggml_type type) {
    switch (type) {
        case GGML_TYPE_Q8_0:   return {Q8_0::FORM,   product<Q8_0>};
        case GGML_TYPE_Q4_0:   return {Q4_0::FORM,   product<Q4_0>};
        case GGML_TYPE_IQ4_NL: return {IQ4_NL::FORM, product<IQ4_NL>};
        case GGML_TYPE_Q4_K:   return {Q4_K::FORM,   product<Q4_K>};
        case GGML_TYPE_Q5_K:   return {Q5_K::FORM,   product<Q5_K>};
        case GGML_TYPE_Q6_K:   return {Q6_K::FORM,   product<Q6_K>};
        default:               return {};
    }
}

}  // namespace selfspec
#endif
