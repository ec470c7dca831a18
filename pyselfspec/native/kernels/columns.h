// What products with interleaved rows share: eight rows side by side, eight values of each in turn.
#pragma once

#include "product.h"

#define GGML_COMMON_DECL_CPP
#include "ggml-common.h"

#include <cstdint>

namespace selfspec {

// A layout of ours. Lower nibbles belong to sub-blocks 0, 2, 4 and 6 of 32 values, upper ones to those after them. Scales are as
// in the file, byte by byte.
struct block_iq4_xsx8 {
    ggml_half d[8];
    uint8_t   scales_h[16];
    uint8_t   scales_l[32];
    uint8_t   qs[1024];
};

void interleave(const block_iq4_xs * const (&rows)[8], block_iq4_xsx8 & to);  // columns_iq4_xs.cpp

#if defined(SELFSPEC_KERNELS)
Scheme iq4_xs_column_scheme();
Scheme k_column_scheme(ggml_type type);  // columns_k.cpp
#endif

#if defined(__AVX2__) && defined(SELFSPEC_KERNELS)

namespace {

constexpr int ROWS  = VB/8;    // rows in a vector: all eight, or with AVX2 half of them
constexpr int PARTS = 8/ROWS;

#if defined(SELFSPEC_AVX512)
inline vf pairs(__m256 x) {  // every value twice
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(x));
}
inline vf pair_scales(const ggml_half * d)   { return pairs(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) d))); }
inline vf pair_bytes(__m128i x)              { return pairs(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(x))); }
inline vi pair_ints(__m128i x)               { return _mm512_cvtepu8_epi32(_mm_unpacklo_epi8(x, x)); }
inline vi pair_signed_ints(__m128i x)        { return _mm512_cvtepi8_epi32(_mm_unpacklo_epi8(x, x)); }
inline vi mul32(vi a, vi b)                  { return _mm512_mullo_epi32(a, b); }
inline vi bytes_to_64(__m128i x)             { return _mm512_cvtepu8_epi64(x); }
inline vi signed_to_64(__m128i x)            { return _mm512_cvtepi8_epi64(x); }
inline void store_pair_sums(float * to, vf x) {
    const vf sums = _mm512_add_ps(x, _mm512_shuffle_ps(x, x, 0xb1));
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 0, 0, 0, 0, 0, 0, 0, 0);
    _mm256_storeu_ps(to, _mm512_castps512_ps256(_mm512_permutexvar_ps(even, sums)));
}
inline vi fours_of(__m128i ab, __m128i cd, int, bool is_signed) {
    const __m256i bytes = _mm256_set_m128i(_mm_unpackhi_epi16(ab, cd), _mm_unpacklo_epi16(ab, cd));
    return is_signed ? _mm512_cvtepi8_epi16(bytes) : _mm512_cvtepu8_epi16(bytes);
}
#else
inline vf pairs(__m128 x) {
    return _mm256_permutevar8x32_ps(_mm256_castps128_ps256(x), _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
}
inline vf pair_scales(const ggml_half * d)   { return pairs(_mm_cvtph_ps(_mm_loadl_epi64((const __m128i *) d))); }
inline vf pair_bytes(__m128i x)              { return pairs(_mm_cvtepi32_ps(_mm_cvtepu8_epi32(x))); }
inline vi pair_ints(__m128i x)               { return _mm256_cvtepu8_epi32(_mm_unpacklo_epi8(x, x)); }
inline vi pair_signed_ints(__m128i x)        { return _mm256_cvtepi8_epi32(_mm_unpacklo_epi8(x, x)); }
inline vi mul32(vi a, vi b)                  { return _mm256_mullo_epi32(a, b); }
inline vi bytes_to_64(__m128i x)             { return _mm256_cvtepu8_epi64(x); }
inline vi signed_to_64(__m128i x)            { return _mm256_cvtepi8_epi64(x); }
inline void store_pair_sums(float * to, vf x) {
    const vf sums = _mm256_add_ps(x, _mm256_shuffle_ps(x, x, 0xb1));
    const __m256i even = _mm256_setr_epi32(0, 2, 4, 6, 0, 0, 0, 0);
    _mm_storeu_ps(to, _mm256_castps256_ps128(_mm256_permutevar8x32_ps(sums, even)));
}
inline vi fours_of(__m128i ab, __m128i cd, int part, bool is_signed) {
    const __m128i bytes = part == 0 ? _mm_unpacklo_epi16(ab, cd) : _mm_unpackhi_epi16(ab, cd);
    return is_signed ? _mm256_cvtepi8_epi16(bytes) : _mm256_cvtepu8_epi16(bytes);
}
#endif

// Four bytes of each row of a part as words, side by side. ab: bytes a and b of row 0, of row 1, and so on; cd likewise.
inline vi fours(__m128i ab, __m128i cd, int part)        { return fours_of(ab, cd, part, false); }
inline vi signed_fours(__m128i ab, __m128i cd, int part) { return fours_of(ab, cd, part, true); }

inline vf pair_powers(const uint8_t * e) {
    return power_of_two(pair_ints(_mm_loadl_epi64((const __m128i *) e)));
}

template <int T> void clear(vf (&sums)[PARTS][T]) {
    for (auto & of_part : sums) {
        each<T>([&](auto t) { of_part[t] = zero(); });
    }
}

template <int T> void store_sums(const vf (&sums)[PARTS][T], const Token * tokens, int64_t row) {
    for (int t = 0; t < T; t++) {
        for (int part = 0; part < PARTS; part++) {
            store_pair_sums(tokens[t].out + row + ROWS*part, sums[part][t]);
        }
    }
}

}  // namespace

#endif

}  // namespace selfspec
