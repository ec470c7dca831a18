// The vector operations used by the kernels: vectors of 64 bytes with AVX-512, of 32 with AVX2.
//
// A kernel must give a token equal bits at every width, so floating-point operations must be done in the order in which
// they are written. A product that is added to a sum is therefore always an explicit `fma`: a compiler may or may not
// contract a product and a sum, and may decide differently in two instances of one template.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define SELFSPEC_KERNELS 1

#include <immintrin.h>

namespace selfspec {

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define SELFSPEC_AVX512 1

constexpr int VB = 64;  // bytes of a vector
using vi = __m512i;
using vf = __m512;

inline vi load(const void * p)           { return _mm512_loadu_si512(p); }
inline vi repeat8(const void * p)        { int64_t x; memcpy(&x, p, 8); return _mm512_set1_epi64(x); }
inline vi repeat(int8_t x)               { return _mm512_set1_epi8(x); }
inline vi repeat16(int16_t x)            { return _mm512_set1_epi16(x); }
inline vi repeat32(int32_t x)            { return _mm512_set1_epi32(x); }
inline vi zero_i()                       { return _mm512_setzero_si512(); }
inline vi and_(vi a, vi b)               { return _mm512_and_si512(a, b); }
inline vi or_(vi a, vi b)                { return _mm512_or_si512(a, b); }
inline vi xor_(vi a, vi b)               { return _mm512_xor_si512(a, b); }
inline vi add32(vi a, vi b)              { return _mm512_add_epi32(a, b); }
inline vi sub8(vi a, vi b)               { return _mm512_sub_epi8(a, b); }
inline vi high_bytes(vi a)               { return _mm512_srai_epi16(a, 8); }  // signed, as 16 bits
inline vi add16(vi a, vi b)              { return _mm512_add_epi16(a, b); }
inline vi mac2(vi a, vi b)               { return _mm512_madd_epi16(a, b); }
inline vi dot2(vi u, vi s)               { return _mm512_maddubs_epi16(u, s); }
inline vi sub32(vi a, vi b)              { return _mm512_sub_epi32(a, b); }
inline vi negate32(vi a)                 { return _mm512_sub_epi32(_mm512_setzero_si512(), a); }
template <int N> vi right(vi a)          { return _mm512_srli_epi16(a, N); }  // caller masks what crosses bytes
template <int N> vi left(vi a)           { return _mm512_slli_epi16(a, N); }
inline vi lookup(__m128i table, vi i)    { return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), i); }
inline vi shuffle8(vi a, __m128i i)      { return _mm512_shuffle_epi8(a, _mm512_broadcast_i32x4(i)); }
inline vi repeat64(int64_t x)            { return _mm512_set1_epi64(x); }
inline vi low64(vi a, vi b)              { return _mm512_unpacklo_epi64(a, b); }  // of every 16 bytes, side by side
inline vi high64(vi a, vi b)             { return _mm512_unpackhi_epi64(a, b); }
// Adds x to the bytes of a where `from` has one of the bits.
inline vi add_where(vi a, vi from, vi bits, int8_t x) {
    return _mm512_mask_add_epi8(a, _mm512_test_epi8_mask(from, bits), a, repeat(x));
}

inline vf zero()                         { return _mm512_setzero_ps(); }
inline vf load_f(const float * p)        { return _mm512_loadu_ps(p); }
inline vf load_f16(const void * p)       { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) p)); }
inline vf load_bf16(const void * p) {
    const vi x = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *) p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
}
// Four halves at the start of every 16 bytes.
inline vf low_halves(vi a) {
    const vi together = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 0, 0, 0, 0), a);
    return _mm512_cvtph_ps(_mm512_castsi512_si256(together));
}
// 2^(e - 128), denormal below 2.
inline vf power_of_two(vi e) {
    const vi denormal = _mm512_sllv_epi32(repeat32(1 << 21), e);
    const vi normal   = _mm512_slli_epi32(sub32(e, repeat32(1)), 23);
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(normal, _mm512_cmplt_epi32_mask(e, repeat32(2)), denormal));
}
inline vf load_i8(const void * p)        { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *) p))); }
inline void store_f(float * p, vf a)     { _mm512_storeu_ps(p, a); }
inline void store(void * p, vi a)        { _mm512_storeu_si512(p, a); }
inline vi to_int(vf a)                   { return _mm512_cvtps_epi32(a); }
inline vf max(vf a, vf b)                { return _mm512_max_ps(a, b); }
inline uint32_t nonzero(vf a)            { return _mm512_cmp_ps_mask(a, zero(), _CMP_NEQ_UQ); }  // a bit for each lane
inline bool no_number(vf a, vf b)        { return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) != 0; }  // in any lane
// a where x is above the limit, else x.
inline vf where_above(vf x, float limit, vf a) {
    return _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_GT_OQ), a);
}
inline vf repeat_f(float x)              { return _mm512_set1_ps(x); }
inline vf to_float(vi a)                 { return _mm512_cvtepi32_ps(a); }
inline vf add(vf a, vf b)                { return _mm512_add_ps(a, b); }
inline vf sub(vf a, vf b)                { return _mm512_sub_ps(a, b); }
inline vf mul(vf a, vf b)                { return _mm512_mul_ps(a, b); }
inline vf fma(vf a, vf b, vf c)          { return _mm512_fmadd_ps(a, b, c); }
inline vf fnma(vf a, vf b, vf c)         { return _mm512_fnmadd_ps(a, b, c); }

inline float sum(vf a) {
    const __m256 x = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}

// Returns a vector whose lane i is sum(v[i]), bit for bit.
inline vf sums(const vf (&v)[16]) {
    const auto four = [&](int i) {
        const auto two = [](vf a, vf b) {
            return add(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
        };
        const vf a = two(v[i], v[i + 4]), b = two(v[i + 8], v[i + 12]);
        return add(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    };
    const auto pairs = [](vf a, vf b) {
        const __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
        return add(_mm512_castpd_ps(_mm512_unpacklo_pd(x, y)), _mm512_castpd_ps(_mm512_unpackhi_pd(x, y)));
    };
    const vf a = pairs(four(0), four(1)), b = pairs(four(2), four(3));
    return add(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
}

// Sums of four products of bytes, unsigned by signed, added to the 32-bit lanes of `acc`.
inline vi dot4(vi acc, vi u, vi s) {
#if defined(__AVX512VNNI__)
    return _mm512_dpbusd_epi32(acc, u, s);
#else
    return add32(acc, mac2(dot2(u, s), repeat16(1)));
#endif
}

// Sums of two products of 16 bits, added to the 32-bit lanes of `acc`.
inline vi mac2(vi acc, vi a, vi b) {
#if defined(__AVX512VNNI__)
    return _mm512_dpwssd_epi32(acc, a, b);
#else
    return add32(acc, mac2(a, b));
#endif
}

// 32 bits to 16: in every 16 bytes four of a, then four of b.
inline vi pack32(vi a, vi b)             { return _mm512_packs_epi32(a, b); }

// 32-bit integers in the first lanes, zeros in the others.
inline vi widen(__m128i a)               { return _mm512_zextsi128_si512(a); }
inline vi widen(__m256i a)               { return _mm512_zextsi256_si512(a); }
inline vi abs8(vi a)                     { return _mm512_abs_epi8(a); }
inline vi sign8(vi a, vi s)              { return _mm512_mask_sub_epi8(a, _mm512_movepi8_mask(s), zero_i(), a); }

// Bit i: the i-th of LANES16 halves is not x.
inline uint32_t differ16(const void * p, int16_t x) { return _mm512_cmpneq_epi16_mask(load(p), repeat16(x)); }

#else

constexpr int VB = 32;
using vi = __m256i;
using vf = __m256;

inline vi load(const void * p)           { return _mm256_loadu_si256((const __m256i *) p); }
inline vi repeat8(const void * p)        { int64_t x; memcpy(&x, p, 8); return _mm256_set1_epi64x(x); }
inline vi repeat(int8_t x)               { return _mm256_set1_epi8(x); }
inline vi repeat16(int16_t x)            { return _mm256_set1_epi16(x); }
inline vi repeat32(int32_t x)            { return _mm256_set1_epi32(x); }
inline vi zero_i()                       { return _mm256_setzero_si256(); }
inline vi and_(vi a, vi b)               { return _mm256_and_si256(a, b); }
inline vi or_(vi a, vi b)                { return _mm256_or_si256(a, b); }
inline vi xor_(vi a, vi b)               { return _mm256_xor_si256(a, b); }
inline vi add32(vi a, vi b)              { return _mm256_add_epi32(a, b); }
inline vi sub8(vi a, vi b)               { return _mm256_sub_epi8(a, b); }
inline vi high_bytes(vi a)               { return _mm256_srai_epi16(a, 8); }  // signed, as 16 bits
inline vi add16(vi a, vi b)              { return _mm256_add_epi16(a, b); }
inline vi mac2(vi a, vi b)               { return _mm256_madd_epi16(a, b); }
inline vi dot2(vi u, vi s)               { return _mm256_maddubs_epi16(u, s); }
inline vi sub32(vi a, vi b)              { return _mm256_sub_epi32(a, b); }
inline vi negate32(vi a)                 { return _mm256_sub_epi32(_mm256_setzero_si256(), a); }
template <int N> vi right(vi a)          { return _mm256_srli_epi16(a, N); }
template <int N> vi left(vi a)           { return _mm256_slli_epi16(a, N); }
inline vi lookup(__m128i table, vi i)    { return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), i); }
inline vi shuffle8(vi a, __m128i i)      { return _mm256_shuffle_epi8(a, _mm256_broadcastsi128_si256(i)); }
inline vi repeat64(int64_t x)            { return _mm256_set1_epi64x(x); }
inline vi low64(vi a, vi b)              { return _mm256_unpacklo_epi64(a, b); }
inline vi high64(vi a, vi b)             { return _mm256_unpackhi_epi64(a, b); }
inline vi add_where(vi a, vi from, vi bits, int8_t x) {  // one bit in each byte of `bits`
    return _mm256_add_epi8(a, and_(_mm256_cmpeq_epi8(and_(from, bits), bits), repeat(x)));
}

inline vf zero()                         { return _mm256_setzero_ps(); }
inline vf load_f(const float * p)        { return _mm256_loadu_ps(p); }
inline vf load_f16(const void * p)       { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) p)); }
inline vf load_bf16(const void * p) {
    const vi x = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *) p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
}
inline vf low_halves(vi a)               { return _mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_permute4x64_epi64(a, 8))); }
inline vf power_of_two(vi e) {
    const vi denormal = _mm256_sllv_epi32(repeat32(1 << 21), e);
    const vi normal   = _mm256_slli_epi32(sub32(e, repeat32(1)), 23);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, denormal, _mm256_cmpgt_epi32(repeat32(2), e)));
}
inline vf load_i8(const void * p)        { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *) p))); }
inline void store_f(float * p, vf a)     { _mm256_storeu_ps(p, a); }
inline void store(void * p, vi a)        { _mm256_storeu_si256((__m256i *) p, a); }
inline vi to_int(vf a)                   { return _mm256_cvtps_epi32(a); }
inline vf max(vf a, vf b)                { return _mm256_max_ps(a, b); }
inline uint32_t nonzero(vf a)            { return (uint32_t) _mm256_movemask_ps(_mm256_cmp_ps(a, zero(), _CMP_NEQ_UQ)); }
inline bool no_number(vf a, vf b)        { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q)) != 0; }
inline vf where_above(vf x, float limit, vf a) {
    return _mm256_blendv_ps(x, a, _mm256_cmp_ps(x, _mm256_set1_ps(limit), _CMP_GT_OQ));
}
inline vf repeat_f(float x)              { return _mm256_set1_ps(x); }
inline vf to_float(vi a)                 { return _mm256_cvtepi32_ps(a); }
inline vf add(vf a, vf b)                { return _mm256_add_ps(a, b); }
inline vf sub(vf a, vf b)                { return _mm256_sub_ps(a, b); }
inline vf mul(vf a, vf b)                { return _mm256_mul_ps(a, b); }
inline vf fma(vf a, vf b, vf c)          { return _mm256_fmadd_ps(a, b, c); }
inline vf fnma(vf a, vf b, vf c)         { return _mm256_fnmadd_ps(a, b, c); }

inline float sum(vf a) {
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}

inline vf sums(const vf (&v)[8]) {
    const auto two = [&](int i) {
        return add(_mm256_permute2f128_ps(v[i], v[i + 4], 0x20), _mm256_permute2f128_ps(v[i], v[i + 4], 0x31));
    };
    const auto pairs = [](vf a, vf b) {
        const __m256d x = _mm256_castps_pd(a), y = _mm256_castps_pd(b);
        return add(_mm256_castpd_ps(_mm256_unpacklo_pd(x, y)), _mm256_castpd_ps(_mm256_unpackhi_pd(x, y)));
    };
    const vf a = pairs(two(0), two(1)), b = pairs(two(2), two(3));
    return add(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd));
}

inline vi dot4(vi acc, vi u, vi s) {
#if defined(__AVXVNNI__)
    return _mm256_dpbusd_avx_epi32(acc, u, s);
#else
    return add32(acc, mac2(dot2(u, s), repeat16(1)));
#endif
}

inline vi mac2(vi acc, vi a, vi b) {
#if defined(__AVXVNNI__)
    return _mm256_dpwssd_avx_epi32(acc, a, b);
#else
    return add32(acc, mac2(a, b));
#endif
}

inline vi pack32(vi a, vi b)             { return _mm256_packs_epi32(a, b); }
inline vi widen(__m128i a)               { return _mm256_zextsi128_si256(a); }
inline vi widen(__m256i a)               { return a; }
inline vi abs8(vi a)                     { return _mm256_abs_epi8(a); }
inline vi sign8(vi a, vi s)              { return _mm256_sign_epi8(a, s); }

inline uint32_t differ16(const void * p, int16_t x) {
    const vi equal = _mm256_cmpeq_epi16(load(p), repeat16(x));
    return (uint16_t) ~_mm_movemask_epi8(_mm_packs_epi16(_mm256_castsi256_si128(equal), _mm256_extracti128_si256(equal, 1)));
}

#endif

// For the vectors in use: dot4 above.
#if (defined(SELFSPEC_AVX512) && defined(__AVX512VNNI__)) || (!defined(SELFSPEC_AVX512) && defined(__AVXVNNI__))
#define SELFSPEC_VNNI 1
constexpr bool HAS_VNNI = true;
#else
constexpr bool HAS_VNNI = false;
#endif

constexpr int VL      = VB/4;  // 32-bit lanes of a vector
constexpr int LANES16 = VB/2;

// Sums of eight products of bytes in 16-bit lanes, which hold them if the unsigned ones are below 32.
inline vi dot8(const vi (&u)[4], const vi (&s)[4]) {
    return add16(add16(dot2(u[0], s[0]), dot2(u[1], s[1])), add16(dot2(u[2], s[2]), dot2(u[3], s[3])));
}

// Four times dot4, for unsigned bytes below 32.
inline vi dot16(vi acc, const vi (&u)[4], const vi (&s)[4]) {
    if constexpr (!HAS_VNNI) {
        return add32(acc, mac2(dot8(u, s), repeat16(1)));
    }
    for (int i = 0; i < 4; i++) {
        acc = dot4(acc, u[i], s[i]);
    }
    return acc;
}

// Fetches into the second-level cache. The processor's own prefetching ends with the page, and a kernel that multiplies
// for several tokens is too far from the next one to hide the wait.
template <size_t SIZE> inline void fetch(const char * p) {
    for (size_t i = 0; i < SIZE; i += 64) {
        _mm_prefetch(p + i, _MM_HINT_T1);
    }
}

constexpr int AHEAD = 4096;
template <size_t SIZE> inline void prefetch(const void * p) { fetch<SIZE>((const char *) p + AHEAD); }

}  // namespace selfspec
#endif
