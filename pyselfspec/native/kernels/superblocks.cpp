// Products with weights in blocks of 256 as they are in the file, one row after another.
//
// The weights of a block are unpacked to bytes, with their scales, and multiplied by the same 256 values of every token:
// with AVX-512 all of them are kept in registers, with AVX2 a vector at a time meets all tokens. One row at a time: memory
// is read in one stream, which is what it does best.
#include "product.h"

#if defined(SELFSPEC_KERNELS)

#define GGML_COMMON_DECL_CPP
#define GGML_COMMON_IMPL_CPP
#include "ggml-common.h"

namespace selfspec {

namespace {

constexpr int N = K_STEP/VB;  // vectors of 256 weights

// --- unpacking: 32 weights at a time, the same instructions with AVX2 and AVX-512 ---

__m256i load32(const void * p)           { return _mm256_loadu_si256((const __m256i *) p); }
__m256i low4(__m256i x)                  { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }

// 16 bytes to 32 nibbles: low ones first.
__m256i nibbles16(const uint8_t * p) {
    const __m128i x = _mm_loadu_si128((const __m128i *) p);
    return low4(_mm256_inserti128_si256(_mm256_castsi128_si256(x), _mm_srli_epi16(x, 4), 1));
}

// Run i of 32 in 64 bytes of two bits each: 32 bytes hold four runs.
__m256i two_bits(const uint8_t * p, int i) {
    return _mm256_and_si256(_mm256_srli_epi16(load32(p + 32*(i/4)), 2*(i%4)), _mm256_set1_epi8(3));
}

__m128 half_to_float(ggml_half x)        { return _mm_cvtph_ps(_mm_cvtsi32_si128(x)); }

// Vector i of 256 weights, which `unpacked` gives 32 at a time. Joined in registers: a vector loaded from two stores would
// wait for both.
template <typename F> vi joined(int i, F unpacked) {
#if defined(SELFSPEC_AVX512)
    return _mm512_inserti64x4(_mm512_castsi256_si512(unpacked(2*i)), unpacked(2*i + 1), 1);
#else
    return unpacked(i);
#endif
}

// scale[i] of eight, for every lane of a product with weights 32*i to 32*i + 31.
inline void spread8(vf * to, __m256 scale) {
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
inline void spread16(vf * to, __m256 lo, __m256 hi) {
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

    void set(__m128i of_parts, __m256 d) {
        const __m256 lo = _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(of_parts)));
        if (W == 16) {
            spread16(of, lo, _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(of_parts, 8)))));
        } else {
            spread8(of, lo);
        }
    }
    vf rest(vf scale_in) const { return scale_in; }
#else
    __m128i scales;
    __m256  d;

    void set(__m128i of_parts, __m256 of_block) {
        scales = of_parts;
        d = of_block;
    }
    vi of(int i) const {
        static const int16_t sixteenth[32] = {0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1,
                                              2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3};
        const vi which = right<W/32>(add16(load(sixteenth), repeat16((int16_t) (i*VB/16))));
        return high_bytes(lookup(scales, left<8>(which)));
    }
    vf rest(vf scale_in) const { return mul(repeat_f(_mm256_cvtss_f32(d)), scale_in); }
#endif
};

// --- blocks of 256 with a scale per 16 or 32, activations with one scale per 256 ---

inline vf as_float(vf x) { return x; }
inline vf as_float(vi x) { return to_float(x); }

struct Unsigned {  // weights
    vi w;
    vi dot(vi a) const  { return dot4(zero_i(), w, a); }
    vi dot2(vi a) const { return selfspec::dot2(w, a); }
};

// Weights stored with 2^SHIFT added, a scale per 16. Without VNNI the sums of 16 activations take that off again.
template <int SHIFT> struct Shifted {
    BlockScales<16> scales;

    Shifted(__m128i of_parts, ggml_half d) { scales.set(of_parts, _mm256_broadcastss_ps(half_to_float(d))); }

#if defined(SELFSPEC_VNNI)
    static constexpr Form FORM = {Layout::q8k};
    static Signed weights(vi bits) { return Signed::with(1 << SHIFT, bits); }
    vf finish(vf total, const Activations & in, int64_t k, vf acc) const {
        return fma(total, repeat_f(in.scales[k/K_STEP]), acc);
    }
#else
    static constexpr Form FORM = {Layout::q8k_sums16};
    static Unsigned weights(vi bits) { return {bits}; }
    vi offset(const Activations & in, int64_t k) const {
        const __m256i sums = _mm256_loadu_si256((const __m256i *) (in.sums + k/16));
        return widen(_mm256_slli_epi32(_mm256_madd_epi16(_mm256_cvtepi8_epi16(scales.scales), sums), SHIFT));
    }
    vf finish(vi total, const Activations & in, int64_t k, vf acc) const {
        return fma(to_float(sub32(total, offset(in, k))), scales.rest(repeat_f(in.scales[k/K_STEP])), acc);
    }
#endif
};

struct Q6_K : Shifted<5> {
    using block = block_q6_K;
    const block * b;

    explicit Q6_K(const block * b) : Shifted(_mm_loadu_si128((const __m128i *) b->scales), b->d), b(b) {}

    // Four low bits, and two more. Runs of 32 in turn take the lower and the upper nibbles of 64 bytes, and the next two
    // bits of 32 bytes.
#if defined(SELFSPEC_AVX512)
    vi bits(int i) const {
        const vi ql   = load(b->ql + 64*(i/2));
        const vi qh   = _mm512_broadcast_i64x4(load32(b->qh + 32*(i/2)));
        const vi up   = _mm512_inserti64x4(_mm512_set1_epi16(4), _mm256_set1_epi16(2), 1);
        const vi down = _mm512_inserti64x4(zero_i(), _mm256_set1_epi16(2), 1);
        const vi high = i%2 == 0 ? _mm512_sllv_epi16(qh, up) : _mm512_srlv_epi16(qh, down);
        return or_(and_(i%2 == 0 ? ql : right<4>(ql), repeat(15)), and_(high, repeat(0x30)));
    }
#else
    vi bits(int i) const {
        const vi ql = load(b->ql + 64*(i/4) + 32*(i%2));
        const vi qh = load(b->qh + 32*(i/4));
        const vi high[4] = {left<4>(qh), left<2>(qh), qh, right<2>(qh)};
        return or_(and_(i%4 < 2 ? ql : right<4>(ql), repeat(15)), and_(high[i%4], repeat(0x30)));
    }
#endif

    auto vector(int i) const { return weights(bits(i)); }
};

// Two low bits, and a third that lies in 32 bytes for all eight runs.
struct Q3_K : Shifted<2> {
    using block = block_q3_K;
    const block * b;

    explicit Q3_K(const block * b) : Shifted(six_bits(b->scales), b->d), b(b) {}
    auto vector(int i) const {
        return weights(joined(i, [&](int j) {
            const __m256i high  = load32(b->hmask);
            const __m256i moved = j < 2 ? _mm256_slli_epi16(high, 2 - j) : _mm256_srli_epi16(high, j - 2);
            return _mm256_or_si256(two_bits(b->qs, j), _mm256_and_si256(moved, _mm256_set1_epi8(4)));
        }));
    }
    static __m128i six_bits(const uint8_t * from) {  // sixteen scales stored with 32 added
        uint32_t u[3];
        memcpy(u, from, 12);
        const auto scales = [&](int i) {
            return (int32_t) (((u[i%2] >> (i/2*4)) & 0x0f0f0f0f) | (((u[2] >> (2*i)) & 0x03030303) << 4));
        };
        return _mm_sub_epi8(_mm_setr_epi32(scales(0), scales(1), scales(2), scales(3)), _mm_set1_epi8(32));
    }
};

// Nibbles that stand for signed values, a scale per 32 of six bits, stored with 32 added.
struct IQ4_XS {
    using block = block_iq4_xs;
    static constexpr Form FORM = {Layout::q8k};
    const block * b;
    BlockScales<32> scales;

    explicit IQ4_XS(const block * b) : b(b) {
        int32_t low;
        memcpy(&low, b->scales_l, 4);
        const __m256i fours = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
        const __m256i lows  = _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(low), fours), _mm256_set1_epi32(15));
        const __m256i highs = _mm256_srlv_epi32(_mm256_set1_epi32(b->scales_h), _mm256_srli_epi32(fours, 1));
        const __m256i high  = _mm256_slli_epi32(_mm256_and_si256(highs, _mm256_set1_epi32(3)), 4);
        const __m256i all   = _mm256_sub_epi32(_mm256_or_si256(lows, high), _mm256_set1_epi32(32));
        const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
        scales.set(_mm_packs_epi16(words, words), _mm256_broadcastss_ps(half_to_float(b->d)));
    }
    Signed vector(int i) const {
        const __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *) kvalues_iq4nl));
        return Signed(joined(i, [&](int j) { return _mm256_shuffle_epi8(table, nibbles16(b->qs + 16*j)); }));
    }
    template <typename Total> vf finish(Total total, const Activations & in, int64_t k, vf acc) const {
        return fma(as_float(total), scales.rest(repeat_f(in.scales[k/K_STEP])), acc);
    }
};

// Two bits times a scale per 16, less a minimum per 16, four bits each.
struct Q2_K {
    using block = block_q2_K;
    static constexpr Form FORM = {Layout::q8k_sums16};
    const block * b;
    BlockScales<16> scales;

    explicit Q2_K(const block * b) : b(b) {
        const __m256 d = _mm256_broadcastss_ps(half_to_float(b->GGML_COMMON_AGGR_U.GGML_COMMON_AGGR_S.d));
        scales.set(_mm_and_si128(both(), _mm_set1_epi8(15)), d);
    }
    __m128i both() const { return _mm_loadu_si128((const __m128i *) b->scales); }
    Unsigned vector(int i) const { return {joined(i, [&](int j) { return two_bits(b->qs, j); })}; }
    template <typename Total> vf finish(Total total, const Activations & in, int64_t k, vf acc) const {
        const vf scale_in = repeat_f(in.scales[k/K_STEP]);
        acc = fma(as_float(total), scales.rest(scale_in), acc);
        const __m256i mins  = _mm256_cvtepu8_epi16(_mm_and_si128(_mm_srli_epi16(both(), 4), _mm_set1_epi8(15)));
        const __m256i below = _mm256_madd_epi16(mins, _mm256_loadu_si256((const __m256i *) (in.sums + k/16)));
        const vf      dmin  = repeat_f(_mm_cvtss_f32(half_to_float(b->GGML_COMMON_AGGR_U.GGML_COMMON_AGGR_S.dmin)));
        return fnma(to_float(widen(below)), mul(dmin, scale_in), acc);
    }
};

// Unsigned weights times a scale per 32, less a minimum per 32: the minimum meets the sum of 32 activations.
struct MinBlock {
    static constexpr Form FORM = {Layout::q8k_sums32};
    BlockScales<32> scales;
    __m128i mins;
    __m128  dmin;

    template <typename B> explicit MinBlock(const B * b) {
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

    template <typename Total> vf finish(Total total, const Activations & in, int64_t k, vf acc) const {
        const vf scale_in = repeat_f(in.scales[k/K_STEP]);
        acc = fma(as_float(total), scales.rest(scale_in), acc);
        const __m128i below = _mm_madd_epi16(mins, _mm_load_si128((const __m128i *) (in.sums + k/32)));
        return fnma(to_float(widen(below)), mul(repeat_f(_mm_cvtss_f32(dmin)), scale_in), acc);
    }
};

struct Q4_K : MinBlock {
    using block = block_q4_K;
    const block * b;

    explicit Q4_K(const block * b) : MinBlock(b), b(b) {}
    Unsigned vector(int i) const {
        return {joined(i, [&](int j) { return low4(_mm256_srli_epi16(load32(b->qs + 32*(j/2)), j%2*4)); })};
    }
};

struct Q5_K : MinBlock {
    using block = block_q5_K;
    const block * b;

    explicit Q5_K(const block * b) : MinBlock(b), b(b) {}
    Unsigned vector(int i) const {
        return {joined(i, [&](int j) {
            const __m256i low = low4(_mm256_srli_epi16(load32(b->qs + 32*(j/2)), j%2*4));
            return _mm256_or_si256(low, fifth(load32(b->qh), j));
        })};
    }
    static __m256i fifth(__m256i qh, int i) {  // bit i of every byte, moved to bit 4
        const __m256i moved = i < 4 ? _mm256_slli_epi16(qh, 4 - i) : _mm256_srli_epi16(qh, i - 4);
        return _mm256_and_si256(moved, _mm256_set1_epi8(16));
    }
};

// Products times the scales of the parts are added first; without VNNI as whole numbers.
template <typename P, int T>
inline void mac256(const P & weights, const Token * tokens, int64_t k, vf (&sums)[T]) {
    const auto values = [&](int t, int i) { return load(tokens[t].in.values + k + i*VB); };
#if defined(SELFSPEC_VNNI)
    decltype(weights.vector(0)) w[N];
    each<N>([&](auto i) { w[i] = weights.vector(i); });
    each<T>([&](auto t) {
        vf total = mul(to_float(w[0].dot(values(t, 0))), weights.scales.of[0]);
        each<N - 1>([&](auto i) { total = fma(to_float(w[i + 1].dot(values(t, i + 1))), weights.scales.of[i + 1], total); });
        sums[t] = weights.finish(total, tokens[t].in, k, sums[t]);
    });
#else
    vi totals[T];
    each<T>([&](auto t) { totals[t] = zero_i(); });
    each<N>([&](auto i) {
        const auto w     = weights.vector(i);
        const vi   scale = weights.scales.of(i);
        each<T>([&](auto t) { totals[t] = add32(totals[t], mac2(w.dot2(values(t, i)), scale)); });
    });
    each<T>([&](auto t) { sums[t] = weights.finish(totals[t], tokens[t].in, k, sums[t]); });
#endif
}

// --- the product ---

template <typename P, int T>
void row_times_tokens(const Weights & weights, int64_t row, const Token * tokens) {
    using block = typename P::block;
    const auto b = (const block *) (weights.data + row*weights.row_size);
    vf sums[T];
    each<T>([&](auto t) { sums[t] = zero(); });
    for (int64_t i = 0; i < weights.k/K_STEP; i++) {
        if constexpr (T > 1) {  // one token is fast enough for the processor's own fetching
            prefetch<sizeof(block)>(b + i);
        }
        mac256(P(b + i), tokens, i*K_STEP, sums);
    }
    each<T>([&](auto t) { tokens[t].out[row] = sum(sums[t]); });
}

template <typename P>
void product(const Weights & weights, int64_t row0, int64_t row1, const Token * tokens, int n_tokens) {
    for (int64_t row = row0; row < row1; row++) {
        in_tiles<TILE>(n_tokens, [&](auto n, int first) { row_times_tokens<P, n>(weights, row, tokens + first); });
    }
}

template <typename P> constexpr Scheme SCHEME = {P::FORM, product<P>};

}  // namespace

Scheme superblock_scheme(ggml_type type) {
    switch (type) {
        case GGML_TYPE_Q2_K:   return SCHEME<Q2_K>;
        case GGML_TYPE_Q3_K:   return SCHEME<Q3_K>;
        case GGML_TYPE_Q4_K:   return SCHEME<Q4_K>;
        case GGML_TYPE_Q5_K:   return SCHEME<Q5_K>;
        case GGML_TYPE_Q6_K:   return SCHEME<Q6_K>;
        case GGML_TYPE_IQ4_XS: return SCHEME<IQ4_XS>;
        default:               return {};
    }
}

}  // namespace selfspec
#endif
