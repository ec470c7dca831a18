// The operations of simd.h with AVX2: vectors of 32 bytes. Included by simd-x86.h. Comments are in simd-avx512.h.
#pragma once

#define SELFSPEC_AVX2 1

namespace selfspec {

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
inline vi times16(vi a, vi b)            { return _mm256_mullo_epi16(a, b); }
inline vi add8(vi a, vi b)               { return _mm256_add_epi8(a, b); }
inline vi minus8(vi a, vi b)             { return _mm256_subs_epu8(a, b); }
inline vi mean8(vi a, vi b)              { return _mm256_avg_epu8(a, b); }
inline vi mac2(vi a, vi b)               { return _mm256_madd_epi16(a, b); }
inline vi dot2(vi u, vi s)               { return _mm256_maddubs_epi16(u, s); }
inline vi sub32(vi a, vi b)              { return _mm256_sub_epi32(a, b); }
template <int N> vi left32(vi a)         { return _mm256_slli_epi32(a, N); }
template <int N> vi right32(vi a)        { return _mm256_srli_epi32(a, N); }
inline vi max32(vi a, vi b)              { return _mm256_max_epi32(a, b); }
inline vi negate32(vi a)                 { return _mm256_sub_epi32(_mm256_setzero_si256(), a); }
template <int N> vi right(vi a)          { return _mm256_srli_epi16(a, N); }
template <int N> vi left(vi a)           { return _mm256_slli_epi16(a, N); }
inline vi right(vi a, int n)             { return _mm256_srli_epi16(a, n); }
inline vi left(vi a, int n)              { return _mm256_slli_epi16(a, n); }
inline vi lookup(v16 table, vi i)    { return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), i); }
inline vi shuffle8(vi a, v16 i)      { return _mm256_shuffle_epi8(a, _mm256_broadcastsi128_si256(i)); }
inline int32_t largest32(vi a)           { return largest_of_eight(a); }
inline vi spread_bits(uint64_t x) {  // bit i as all bits of byte i
    const vi of_each = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const vi bits    = _mm256_set1_epi64x((int64_t) 0x8040201008040201);
    return _mm256_cmpeq_epi8(and_(_mm256_shuffle_epi8(repeat32((int32_t) x), of_each), bits), bits);
}
inline vi repeat64(int64_t x)            { return _mm256_set1_epi64x(x); }
inline vi low64(vi a, vi b)              { return _mm256_unpacklo_epi64(a, b); }
inline vi high64(vi a, vi b)             { return _mm256_unpackhi_epi64(a, b); }
inline vi even_words(vi a, vi b)         { return _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0x88)); }
inline vi odd_words(vi a, vi b)          { return _mm256_castps_si256(_mm256_shuffle_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), 0xdd)); }
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
inline float largest_lane(vf a)          { return largest_of_eight(a); }
inline uint32_t nonzero(vf a)            { return (uint32_t) _mm256_movemask_ps(_mm256_cmp_ps(a, zero(), _CMP_NEQ_UQ)); }
inline bool no_number(vf a, vf b)        { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q)) != 0; }
inline vf where_above(vf x, float limit, vf a) {
    return _mm256_blendv_ps(x, a, _mm256_cmp_ps(x, _mm256_set1_ps(limit), _CMP_GT_OQ));
}
inline vf keep_no_number(vf x, vf a)     { return _mm256_blendv_ps(a, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q)); }
inline vf as_floats(vi a)                { return _mm256_castsi256_ps(a); }
inline vi as_ints(vf a)                  { return _mm256_castps_si256(a); }
inline vf repeat_f(float x)              { return _mm256_set1_ps(x); }
inline vf repeat_half(uint16_t x)        { return _mm256_cvtph_ps(_mm_set1_epi16((int16_t) x)); }
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

// Writes eight columns of eight rows, which are `stride` values apart, as rows that are `to_stride` apart.
inline void transpose(const float * rows, int64_t stride, float * to, int64_t to_stride) {
    for (int half = 0; half < 8; half += 4, rows += 4, to += 4*to_stride) {
        const auto two = [&](int i) {  // four values of rows i and i + 4
            return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(rows + i*stride)), _mm_loadu_ps(rows + (i + 4)*stride), 1);
        };
        const vf a = _mm256_unpacklo_ps(two(0), two(1)), b = _mm256_unpacklo_ps(two(2), two(3));
        const vf c = _mm256_unpackhi_ps(two(0), two(1)), d = _mm256_unpackhi_ps(two(2), two(3));
        store_f(to, _mm256_shuffle_ps(a, b, 0x44));
        store_f(to + to_stride, _mm256_shuffle_ps(a, b, 0xee));
        store_f(to + 2*to_stride, _mm256_shuffle_ps(c, d, 0x44));
        store_f(to + 3*to_stride, _mm256_shuffle_ps(c, d, 0xee));
    }
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

inline vi add_pairs(vi acc, vi a) {
    return _mm256_add_epi64(_mm256_add_epi64(acc, and_(a, repeat64(0xffffffff))), _mm256_srli_epi64(a, 32));
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

template <typename F> vi every_second(int first, F part) { return join(part(first), part(first + 2)); }
template <typename F> SELFSPEC_PART vi eights(F at) { return join(two_eights(at(0), at(1)), two_eights(at(2), at(3))); }
template <typename F> SELFSPEC_PART vi fours(F at)  { return join(four_fours(at, 0), four_fours(at, 4)); }
template <typename F> vi widen_fours(F at) { return _mm256_cvtepi8_epi32(_mm_unpacklo_epi32(_mm_loadu_si32(at(0)), _mm_loadu_si32(at(1)))); }
template <typename F> vi halves_of_words(F at) {
    const vi twice = _mm256_setr_epi8(0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7, 8, 9, 10, 11, 8, 9, 10, 11, 12, 13, 14, 15, 12, 13, 14, 15);
    const vi words = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(load16(at(0))), twice);
    return _mm256_srlv_epi32(words, repeat64((int64_t) 4 << 32));
}
template <typename F> vf twice(F half) {
    const __m128i all = four_halves(half, 0);
    return _mm256_cvtph_ps(_mm_unpacklo_epi16(all, all));
}

inline vi half_nibbles(const uint8_t * p, int i) {
    const vi bytes = _mm256_broadcastsi128_si256(load16(p + 16*i));
    return and_(_mm256_srlv_epi64(bytes, _mm256_setr_epi64x(0, 0, 4, 4)), repeat(15));
}

}  // namespace selfspec
