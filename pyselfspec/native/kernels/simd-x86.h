// The operations of simd.h for x86, from AVX2 on.
#pragma once

#include <immintrin.h>

namespace selfspec {

// --- 16 bytes ---

using v16 = __m128i;

inline v16 load16(const void * p)                      { return _mm_loadu_si128((const __m128i *) p); }
inline v16 plus8(v16 a, int x)                         { return _mm_add_epi8(a, _mm_set1_epi8((char) x)); }
inline v16 words16(uint32_t a, uint32_t b, uint32_t c, uint32_t d) { return _mm_setr_epi32((int) a, (int) b, (int) c, (int) d); }
inline v16 upper8(v16 a)                               { return _mm_srli_si128(a, 8); }  // the upper eight bytes, moved down
inline v16 twice8(v16 a)                               { return _mm_add_epi8(a, a); }
inline v16 alternate(v16 a, v16 b)                     { return _mm_unpacklo_epi8(a, b); }  // their lower eight bytes
template <int SHIFT> v16 four_bits(v16 a)              { return _mm_and_si128(_mm_srli_epi16(a, SHIFT), _mm_set1_epi8(15)); }
template <typename... T> v16 bytes16(T... x)           { return _mm_setr_epi8((char) x...); }

inline __m256i load256(const void * p)                 { return _mm256_loadu_si256((const __m256i *) p); }
inline __m256i join(__m128i a, __m128i b)              { return _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1); }

inline __m128i two_eights(const void * a, const void * b) {
    const __m128i first = _mm_loadl_epi64((const __m128i *) a);
    return _mm_castps_si128(_mm_loadh_pi(_mm_castsi128_ps(first), (const __m64 *) b));
}

template <typename F> SELFSPEC_PART __m128i four_fours(F at, int i) {
    const auto two = [&](int j) { return _mm_unpacklo_epi32(_mm_loadu_si32(at(j)), _mm_loadu_si32(at(j + 1))); };
    return _mm_unpacklo_epi64(two(i), two(i + 2));
}

template <typename F> __m128i four_halves(F half, int i) {
    const auto at = [&](int j) { return (uint64_t) half(i + j) << 16*j; };
    return _mm_cvtsi64_si128((int64_t) (at(0) | at(1) | at(2) | at(3)));
}

// --- halves and activations ---

inline float from_half(uint16_t x)                     { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(x))); }
inline void  store_halves(void * p, const float * x) {  // eight
    _mm_storeu_si128((__m128i *) p, _mm256_cvtps_ph(_mm256_loadu_ps(x), _MM_FROUND_TO_NEAREST_INT));
}

inline float largest_of_eight(__m256 a) {
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

inline int32_t largest_of_eight(__m256i a) {
    __m128i x = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    x = _mm_max_epi32(x, _mm_shuffle_epi32(x, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(x, _mm_shuffle_epi32(x, 0xb1)));
}

// Writes 32 values times `factor`, rounded to the nearest even.
inline void store_rounded(int8_t * to, const float * x, float factor) {
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const auto rounded = [&](int i) { return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(factor))); };
    const __m256i lo = _mm256_packs_epi32(rounded(0), rounded(8));
    const __m256i hi = _mm256_packs_epi32(rounded(16), rounded(24));
    _mm256_storeu_si256((__m256i *) to, _mm256_permutevar8x32_epi32(_mm256_packs_epi16(lo, hi), order));
}

}  // namespace selfspec

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include "simd-avx512.h"
#else
#include "simd-avx2.h"
#endif

namespace selfspec {

// For the vectors in use: dot4.
#if (defined(SELFSPEC_AVX512) && defined(__AVX512VNNI__)) || (!defined(SELFSPEC_AVX512) && defined(__AVXVNNI__))
#define SELFSPEC_VNNI 1
constexpr bool HAS_VNNI = true;
#else
constexpr bool HAS_VNNI = false;
#endif

// Tables of 64 and 128 bytes, see columns_codebooks.cpp.
#if defined(SELFSPEC_VBMI) && defined(SELFSPEC_VNNI)
#define SELFSPEC_BYTE_TABLES 1
#endif

// Four times dot4, for unsigned bytes below 32: 16 bits hold sums of eight products.
inline vi dot16(vi acc, const vi (&u)[4], const vi (&s)[4]) {
    if constexpr (!HAS_VNNI) {
        const vi sums = add16(add16(dot2(u[0], s[0]), dot2(u[1], s[1])), add16(dot2(u[2], s[2]), dot2(u[3], s[3])));
        return add32(acc, mac2(sums, repeat16(1)));
    }
    for (int i = 0; i < 4; i++) {
        acc = dot4(acc, u[i], s[i]);
    }
    return acc;
}

// VNNI multiplies unsigned weights, so signed ones get an offset. Without VNNI it would overflow 16-bit sums of two products:
// the sign is applied to the activation instead, and sums of two products then fit 16 bits (2*127*128 < 2^15).
constexpr int SIGN_OFFSET = HAS_VNNI ? 128 : 0;

// Like dot4, for signed weights with SIGN_OFFSET.
inline vi dot4_signed(vi acc, vi w, vi a) { return HAS_VNNI ? dot4(acc, w, a) : dot4(acc, abs8(w), sign8(a, w)); }
inline vi dot8_signed(vi acc, vi w, vi x, vi a, vi b) { return dot4_signed(dot4_signed(acc, w, a), x, b); }

// Sums of signed bytes times 16-bit values, 16 or 8 of each, in the first lanes.
inline vi products16(v16 bytes, const int16_t * x) { return widen(_mm256_madd_epi16(_mm256_cvtepi8_epi16(bytes), load256(x))); }
inline vi products8(v16 bytes, const int16_t * x)  { return widen(_mm_madd_epi16(_mm_cvtepi8_epi16(bytes), load16(x))); }

// Eight scales of six bits in two parts, stored with 32 added.
inline v16 four_and_two_bits(uint32_t low, uint32_t high) {
    const __m256i fours = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
    const __m256i lows  = _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32((int) low), fours), _mm256_set1_epi32(15));
    const __m256i highs = _mm256_srlv_epi32(_mm256_set1_epi32((int) high), _mm256_srli_epi32(fours, 1));
    const __m256i upper = _mm256_slli_epi32(_mm256_and_si256(highs, _mm256_set1_epi32(3)), 4);
    const __m256i all   = _mm256_sub_epi32(_mm256_or_si256(lows, upper), _mm256_set1_epi32(32));
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
    return _mm_packs_epi16(words, words);
}

// The upper four bits of eight 32-bit numbers, one every STRIDE bytes: 4, or 8, where those between them are read, too.
template <int STRIDE> v16 top_nibbles(const char * p) {
    __m256i words = load256(p);
    if constexpr (STRIDE == 8) {  // those at odd places from p - 4 on
        const __m256 low = _mm256_castsi256_ps(load256(p - 4)), high = _mm256_castsi256_ps(load256(p + 28));
        words = _mm256_permute4x64_epi64(_mm256_castps_si256(_mm256_shuffle_ps(low, high, 0xdd)), 0xd8);
    }
    const __m256i tops = _mm256_srli_epi32(words, 28);
    const __m128i all  = _mm_packs_epi32(_mm256_castsi256_si128(tops), _mm256_extracti128_si256(tops, 1));
    return _mm_packs_epi16(all, all);
}

// The first digit to base 3 of fractions in 256ths. A mean rounds up, and two are three quarters.
inline vi front_digits(vi fractions) {
    const vi less = minus8(fractions, repeat(1));
    return and_(right<6>(mean8(less, mean8(less, zero_i()))), repeat(3));
}

// Products of bytes, modulo 256, where two by two have the same factor.
inline vi times_pairs(vi a, vi by) {
    const vi factors = and_(by, repeat16(0xff));
    return or_(and_(times16(a, factors), repeat16(0xff)), times16(and_(a, repeat16((int16_t) 0xff00)), factors));
}

// --- scaled sums ---

// Returns the byte-shuffle index that puts the right one of eight scales in each 16-bit lane, if there is one for W weights:
// for sums of two products of vector i, or for sums of four products of vectors 2i and 2i + 1, between which packing alternates.
template <int W, bool PACKED> struct Order {
    static constexpr int N = 256/VB, LANES = VB/2;
    alignas(VB) uint16_t lanes[N][LANES] = {};
    constexpr Order() {
        for (int i = 0; i < (PACKED ? N/2 : N); i++) {
            for (int lane = 0; lane < LANES; lane++) {
                const int packed = (2*i + lane%8/4)*VB + 4*(lane/8*4 + lane%4);
                const int scale  = (PACKED ? packed : i*VB + 2*lane)/W%8;
                lanes[i][lane] = (uint16_t) (2*scale | (2*scale + 1) << 8);
            }
        }
    }
};
template <int W, bool PACKED> constexpr Order<W, PACKED> ORDER;

template <int W, bool PACKED> vi scale_lanes(v16 scales, int i) {
    const bool second = W == 16 && i*(PACKED ? 2 : 1) >= 256/VB/2;
    const __m256i words = _mm256_cvtepi8_epi16(scales);
    const __m128i eight = second ? _mm256_extracti128_si256(words, 1) : _mm256_castsi256_si128(words);
    return lookup(eight, load(ORDER<W, PACKED>.lanes[i]));
}

// Weights below 64, so that sums of four products fit 16 bits. With VNNI these are packed before they are scaled.
struct Small {
    static constexpr bool PACKED = HAS_VNNI;
    vi w;
    vi dot2(vi a) const { return selfspec::dot2(w, a); }
};

// Signed weights: the sign is applied to the activation.
struct Signed {
    static constexpr bool PACKED = false;
    vi w, size;
    explicit Signed(vi w) : w(w), size(abs8(w)) {}
    vi dot2(vi a) const { return selfspec::dot2(size, sign8(a, w)); }
};

// Weights of two bits: 16 bits hold sums of all products of a block.
struct Tiny {
    vi w;
};

// The scales of vectors 2i and 2i + 1 of a block of 256 weights, one for W weights.
template <typename V, int W> struct PairScales {
    vi lanes[V::PACKED ? 1 : 2];

    PairScales() = default;
    PairScales(v16 scales, int i) {
        if constexpr (V::PACKED) {
            lanes[0] = scale_lanes<W, true>(scales, i);
        } else {
            lanes[0] = scale_lanes<W, false>(scales, 2*i);
            lanes[1] = scale_lanes<W, false>(scales, 2*i + 1);
        }
    }

    // Adds the products of x by a and of y by b, scaled.
    vi add(vi total, const V & x, const V & y, vi a, vi b) const {
        if constexpr (V::PACKED) {
            return mac2(total, pack32(dot4(zero_i(), x.w, a), dot4(zero_i(), y.w, b)), lanes[0]);
        } else {
            return mac2(mac2(total, x.dot2(a), lanes[0]), y.dot2(b), lanes[1]);
        }
    }
};

// All of a block have one scale, which finish() multiplies by.
template <> struct PairScales<Tiny, 256> {
    PairScales() = default;
    PairScales(v16, int) {}

    vi add(vi total, const Tiny & x, const Tiny & y, vi a, vi b) const {
        return HAS_VNNI ? dot4(dot4(total, x.w, a), y.w, b) : add16(add16(total, dot2(x.w, a)), dot2(y.w, b));
    }
    static vi sum(vi total) { return HAS_VNNI ? total : mac2(total, repeat16(1)); }
};

}  // namespace selfspec
