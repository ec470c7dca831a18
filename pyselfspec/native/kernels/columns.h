// What products with interleaved rows share: eight rows side by side, eight values of each in turn.
//
// A vector of weights has EACH values of every row, so that each row has its own 32-bit lanes in a product of bytes, and no sum
// crosses rows. With AVX-512 a row has two lanes, which are added at the end. With AVX2 it has one, and the rows are in the order
// 0, 1, 4, 5, 2, 3, 6, 7, in which one shuffle takes four values of each from two vectors.
#pragma once

#include "product.h"

#define GGML_COMMON_DECL_CPP
#include "ggml-common.h"

#include <cstdint>

namespace selfspec {

#if defined(SELFSPEC_KERNELS)
Scheme k_column_scheme(ggml_type type);         // columns_k.cpp
Scheme codebook_column_scheme(ggml_type type);  // columns_codebooks.cpp, columns_nibbles.cpp
#endif

#if defined(__AVX2__) && defined(SELFSPEC_KERNELS)

namespace {

constexpr int EACH    = VB/8;     // values of a row in a vector
constexpr int PER_RUN = 32/EACH;  // vectors that hold 32 values of every row

// Tokens that a kernel takes at once: eight with AVX2, too, since all eight rows of a token share one accumulator.
constexpr int COLUMN_TILE = 8;

#if defined(SELFSPEC_AVX512)

// Vector i of the bytes at p.
inline vi eight_rows(const void * p, int i)    { return load((const char *) p + 64*i); }

// EACH bytes of a token, for every row.
inline vi for_rows(const void * p)             { return repeat8(p); }

// One of these for every row, in all its lanes: halves, signed bytes as 32 bits, and signed bytes as 16 bits.
inline vf row_floats(__m256 x) {
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(x));
}
inline vf row_halves(const ggml_half * d)      { return row_floats(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) d))); }
inline vi row_ints(__m128i x)                  { return _mm512_cvtepi8_epi32(_mm_unpacklo_epi8(x, x)); }
inline vi row_words(__m128i x) {
    const __m128i low = _mm_setr_epi8(0, 1, 0, 1, 0, 1, 0, 1, 8, 9, 8, 9, 8, 9, 8, 9);
    return shuffle8(_mm512_cvtepi8_epi64(x), low);
}

// EACH/2 bytes of every row as 16 bits, from vectors of two bytes of every row.
inline vi byte_pairs(const __m128i * x) {
    const __m256i bytes = _mm256_set_m128i(_mm_unpackhi_epi16(x[0], x[1]), _mm_unpacklo_epi16(x[0], x[1]));
    return _mm512_cvtepi8_epi16(bytes);
}

inline void store_rows(float * to, vf x) {
    const vf sums = _mm512_add_ps(x, _mm512_shuffle_ps(x, x, 0xb1));
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 0, 0, 0, 0, 0, 0, 0, 0);
    _mm256_storeu_ps(to, _mm512_castps512_ps256(_mm512_permutexvar_ps(even, sums)));
}

#else

inline vi eight_rows(const void * p, int i) {
    const char * at = (const char *) p + 64*(i/2);
    const vf a = as_floats(load(at)), b = as_floats(load(at + 32));
    return as_ints(i%2 == 0 ? _mm256_shuffle_ps(a, b, 0x88) : _mm256_shuffle_ps(a, b, 0xdd));
}
inline vi for_rows(const void * p)             { int32_t x; memcpy(&x, p, 4); return repeat32(x); }
inline __m128i ordered_bytes(__m128i x)        { return _mm_shufflelo_epi16(x, 0xd8); }
inline __m128i ordered_words(__m128i x)        { return _mm_shuffle_epi32(x, 0xd8); }
inline vf row_halves(const ggml_half * d)      { return _mm256_cvtph_ps(ordered_words(_mm_loadu_si128((const __m128i *) d))); }
inline vi row_ints(__m128i x)                  { return _mm256_cvtepi8_epi32(ordered_bytes(x)); }
inline vi row_words(__m128i x)                 { return _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(ordered_bytes(x), ordered_bytes(x))); }
inline vi byte_pairs(const __m128i * x)        { return _mm256_cvtepi8_epi16(ordered_words(x[0])); }
inline void store_rows(float * to, vf x) {
    _mm256_storeu_pd((double *) to, _mm256_permute4x64_pd(_mm256_castps_pd(x), 0xd8));
}

#endif

// Factors of products that mac2 takes, see add_products. With VNNI each belongs to the lower half of a sum of 32 bits.
inline vi row_factors(__m128i bytes)           { return HAS_VNNI ? row_ints(bytes) : row_words(bytes); }

// Calls f(t) for T tokens. With AVX2 a loop over more than four takes 2 to 9 % longer than its repeated body, which GCC would need
// half as long again to compile.
template <int T, typename F> [[gnu::always_inline]] inline void each_token(F f) {
    if constexpr (VB == 64 || T <= 4) {
        each<T>(f);
    } else {
#pragma GCC unroll 1
        for (int t = 0; t < T; t++) {
            f(t);
        }
    }
}

inline __m128i eight_bytes(const void * p) { return _mm_loadl_epi64((const __m128i *) p); }

// The functions below take vector i of the weights as w(i). A kernel of one token computes it there: there are not enough registers
// for all of them.

// Sums of products of bytes, of the N vectors from FIRST on: 32 bits each with VNNI, else 16.
template <int FIRST, int N, typename W> SELFSPEC_PART vi sum_of_products(W w, const int8_t * values) {
    const auto of = [&](int i) { return for_rows(values + EACH*i); };
    if constexpr (HAS_VNNI) {
        vi sum = zero_i();
        each<N>([&](auto i) { sum = dot4(sum, w(FIRST + i), of(FIRST + i)); });
        return sum;
    } else if constexpr (N == 1) {
        return dot2(w(FIRST), of(FIRST));
    } else {
        return add16(sum_of_products<FIRST, N/2>(w, values), sum_of_products<FIRST + N/2, N/2>(w, values));
    }
}

// Of how many of N vectors the sum of products fits into 16 bits if the unsigned bytes are below LIMIT.
template <int N, int LIMIT> constexpr int fitting() {
    constexpr int IN_A_LANE = HAS_VNNI ? 4 : 2;
    return N == 1 || N*IN_A_LANE*127*(LIMIT - 1) < 1 << 15 ? N : fitting<N/2, LIMIT>();
}

// Adds the products of N vectors of weights below LIMIT, from FIRST on, times factors.
template <int LIMIT, int FIRST, int N, typename W> SELFSPEC_PART vi add_products(vi total, W w, const int8_t * values, vi factors) {
    constexpr int FIT = fitting<N, LIMIT>();
    each<N/FIT>([&](auto i) { total = mac2(total, sum_of_products<FIRST + FIT*i, FIT>(w, values), factors); });
    return total;
}

// Adds the products of 32 weights below LIMIT of every row.
template <int LIMIT, typename W> SELFSPEC_PART vi add_run(vi total, W w, const int8_t * values) {
    if constexpr (!HAS_VNNI) {
        return add_products<LIMIT, 0, PER_RUN>(total, w, values, repeat16(1));
    }
    each<PER_RUN>([&](auto i) { total = dot4(total, w(i), for_rows(values + EACH*i)); });
    return total;
}

// The same for signed weights with SIGN_OFFSET.
template <typename W> SELFSPEC_PART vi add_signed_run(vi total, W w, const int8_t * values) {
    each<PER_RUN>([&](auto i) { total = dot4_signed(total, w(i), for_rows(values + EACH*i)); });
    return total;
}

template <int T> void store_sums(const vf (&sums)[T], const Token * tokens, int64_t row) {
    for (int t = 0; t < T; t++) {
        store_rows(tokens[t].out + row, sums[t]);
    }
}

}  // namespace

#endif

}  // namespace selfspec
