// The operations of simd.h with AVX-512: vectors of 64 bytes. Included by simd-x86.h.
#pragma once

#define SELFSPEC_AVX512 1

namespace selfspec {

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
inline vi times16(vi a, vi b)            { return _mm512_mullo_epi16(a, b); }
inline vi minus8(vi a, vi b)             { return _mm512_subs_epu8(a, b); }  // unsigned, at least 0
inline vi mean8(vi a, vi b)              { return _mm512_avg_epu8(a, b); }  // unsigned, rounded up
inline vi mac2(vi a, vi b)               { return _mm512_madd_epi16(a, b); }
inline vi dot2(vi u, vi s)               { return _mm512_maddubs_epi16(u, s); }
inline vi sub32(vi a, vi b)              { return _mm512_sub_epi32(a, b); }
template <int N> vi left32(vi a)         { return _mm512_slli_epi32(a, N); }
template <int N> vi right32(vi a)        { return _mm512_srli_epi32(a, N); }
inline vi max32(vi a, vi b)              { return _mm512_max_epi32(a, b); }
inline vi negate32(vi a)                 { return _mm512_sub_epi32(_mm512_setzero_si512(), a); }
template <int N> vi right(vi a)          { return _mm512_srli_epi16(a, N); }  // caller masks what crosses bytes
template <int N> vi left(vi a)           { return _mm512_slli_epi16(a, N); }
inline vi lookup(v16 table, vi i)    { return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), i); }
inline vi shuffle8(vi a, v16 i)      { return _mm512_shuffle_epi8(a, _mm512_broadcast_i32x4(i)); }
inline int32_t largest32(vi a)           { return largest_of_eight(_mm256_max_epi32(_mm512_castsi512_si256(a), _mm512_extracti64x4_epi64(a, 1))); }
inline vi negate_where(vi a, uint64_t bits) { return _mm512_mask_sub_epi8(a, bits, zero_i(), a); }  // bytes whose bit is set
inline vi repeat64(int64_t x)            { return _mm512_set1_epi64(x); }
inline vi low64(vi a, vi b)              { return _mm512_unpacklo_epi64(a, b); }  // of every 16 bytes, side by side
inline vi high64(vi a, vi b)             { return _mm512_unpackhi_epi64(a, b); }
// The words at even places of every four, and at odd ones: those of a, then those of b.
inline vi even_words(vi a, vi b)         { return _mm512_castps_si512(_mm512_shuffle_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), 0x88)); }
inline vi odd_words(vi a, vi b)          { return _mm512_castps_si512(_mm512_shuffle_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), 0xdd)); }
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
inline float largest_lane(vf a) {  // of numbers
    return largest_of_eight(_mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1)));
}
inline uint32_t nonzero(vf a)            { return _mm512_cmp_ps_mask(a, zero(), _CMP_NEQ_UQ); }  // a bit for each lane
inline bool no_number(vf a, vf b)        { return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q) != 0; }  // in any lane
// a where x is above the limit, else x.
inline vf where_above(vf x, float limit, vf a) {
    return _mm512_mask_mov_ps(x, _mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_GT_OQ), a);
}
// x where it is NaN, else a.
inline vf keep_no_number(vf x, vf a)     { return _mm512_mask_mov_ps(a, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), x); }
inline vf as_floats(vi a)                { return _mm512_castsi512_ps(a); }
inline vi as_ints(vf a)                  { return _mm512_castps_si512(a); }
inline vf repeat_f(float x)              { return _mm512_set1_ps(x); }
inline vf repeat_half(uint16_t x)        { return _mm512_cvtph_ps(_mm256_set1_epi16((int16_t) x)); }
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

// Writes sixteen columns of sixteen rows, which are `stride` values apart, as rows that are `to_stride` apart.
inline void transpose(const float * rows, int64_t stride, float * to, int64_t to_stride) {
    for (int quarter = 0; quarter < 16; quarter += 4, rows += 4, to += 4*to_stride) {
        const auto four = [&](int i) {  // four values of rows i, i + 4, i + 8 and i + 12
            const auto at = [&](int j) { return _mm_loadu_ps(rows + (i + 4*j)*stride); };
            const __m256 low = _mm256_set_m128(at(1), at(0)), high = _mm256_set_m128(at(3), at(2));
            return _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
        };
        const vf x = four(0), y = four(1), z = four(2), w = four(3);
        const vf a = _mm512_unpacklo_ps(x, y), b = _mm512_unpacklo_ps(z, w);
        const vf c = _mm512_unpackhi_ps(x, y), d = _mm512_unpackhi_ps(z, w);
        store_f(to, _mm512_shuffle_ps(a, b, 0x44));
        store_f(to + to_stride, _mm512_shuffle_ps(a, b, 0xee));
        store_f(to + 2*to_stride, _mm512_shuffle_ps(c, d, 0x44));
        store_f(to + 3*to_stride, _mm512_shuffle_ps(c, d, 0xee));
    }
}

// Adds 32-bit lanes, which are not negative, to the 64-bit lanes of `acc`, two to each.
inline vi add_pairs(vi acc, vi a) {
    return _mm512_add_epi64(_mm512_add_epi64(acc, and_(a, repeat64(0xffffffff))), _mm512_srli_epi64(a, 32));
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

inline uint64_t top_bits(vi a)           { return _mm512_movepi8_mask(a); }
inline vi where(uint64_t bits, vi a, vi b) { return _mm512_mask_blend_epi8(bits, b, a); }  // a where the byte's bit is set
inline vi choose(vi bits, vi a, vi b)    { return _mm512_ternarylogic_epi32(bits, a, b, 0xca); }  // those of a, and the others of b
inline vi pairs_low(vi a, vi b)          { return _mm512_unpacklo_epi16(a, b); }  // of bytes, of every 16
inline vi pairs_high(vi a, vi b)         { return _mm512_unpackhi_epi16(a, b); }

#if defined(__AVX512VBMI__)
#define SELFSPEC_VBMI 1
// Bytes of a table of 64 or 128; the indices' upper bits may be anything.
inline vi lookup64(vi table, vi i)       { return _mm512_permutexvar_epi8(i, table); }
inline vi lookup128(const void * table, vi i) { return _mm512_permutex2var_epi8(load(table), i, load((const char *) table + 64)); }
#endif

#if defined(__AVX512BF16__)
#define SELFSPEC_BF16 1
inline vf mac_bf16(vi w, vi a, vf acc)   { return _mm512_dpbf16_ps(acc, (__m512bh) w, (__m512bh) a); }
inline void store_bf16(void * p, vf a) {
    const __m256bh b = _mm512_cvtneps_pbh(a);
    memcpy(p, &b, sizeof(b));
}
#endif

// part(i), 16 bytes each, of every second i side by side. Any execution unit can load from memory, while an insertion needs
// the shuffle unit.
template <typename F> vi every_second(int first, F part) {
    vi all = _mm512_castsi128_si512(part(first));
    all = _mm512_mask_broadcast_i64x2(all, 0x0c, part(first + 2));
    all = _mm512_mask_broadcast_i64x2(all, 0x30, part(first + 4));
    return _mm512_mask_broadcast_i64x2(all, 0xc0, part(first + 6));
}

// The eight bytes at each at(i), side by side.
template <typename F> SELFSPEC_PART vi eights(F at) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(join(two_eights(at(0), at(1)), two_eights(at(2), at(3)))),
                              join(two_eights(at(4), at(5)), two_eights(at(6), at(7))), 1);
}

// The four bytes at each at(i), side by side.
template <typename F> SELFSPEC_PART vi fours(F at) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(join(four_fours(at, 0), four_fours(at, 4))),
                              join(four_fours(at, 8), four_fours(at, 12)), 1);
}

// The four bytes at each at(i) as 32 bits each.
template <typename F> vi widen_fours(F at) { return _mm512_cvtepi8_epi32(four_fours(at, 0)); }

// 32 bits of each block, twice, the second time shifted right by four; callers mask what crosses bytes. at(0), at(4), ... have the
// words of four blocks.
template <typename F> vi halves_of_words(F at) {
    const vi eight = _mm512_castsi256_si512(join(load16(at(0)), load16(at(4))));
    const vi words = _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7), eight);
    return _mm512_srlv_epi32(words, repeat64((int64_t) 4 << 32));
}

// Each half(i) as a float, twice.
template <typename F> vf twice(F half) {
    const __m128i all = _mm_unpacklo_epi64(four_halves(half, 0), four_halves(half, 4));
    return _mm512_cvtph_ps(join(_mm_unpacklo_epi16(all, all), _mm_unpackhi_epi16(all, all)));
}

// Runs of weights: a vector has two.
inline vi halves16(int lo, int hi)       { return _mm512_inserti64x4(repeat16((int16_t) lo), _mm256_set1_epi16((int16_t) hi), 1); }
inline vi halves8(int lo, int hi)        { return _mm512_inserti64x4(repeat((int8_t) lo), _mm256_set1_epi8((int8_t) hi), 1); }
inline vi load_twice(const void * p)     { return _mm512_broadcast_i64x4(load256(p)); }

template <int BITS> vi runs(const uint8_t * p, int i) {
    const int shift = 2*i*BITS%8;
    return and_(_mm512_srlv_epi16(load_twice(p + 32*(2*i*BITS/8)), halves16(shift, shift + BITS)), repeat((1 << BITS) - 1));
}

template <int BIT> vi with_bit(vi w, const uint8_t * p, int i) {
    return add_where(w, load_twice(p), halves8(1 << 2*i, 1 << (2*i + 1)), 1 << BIT);
}

inline vi high_pairs(const uint8_t * p, int i) {
    const vi bytes = load_twice(p + 32*(i/2));
    const vi up    = _mm512_inserti64x4(_mm512_set1_epi16(4), _mm256_set1_epi16(2), 1);
    const vi down  = _mm512_inserti64x4(zero_i(), _mm256_set1_epi16(2), 1);
    return and_(i%2 == 0 ? _mm512_sllv_epi16(bytes, up) : _mm512_srlv_epi16(bytes, down), repeat(0x30));
}

inline vi half_nibbles(const uint8_t * p, int i) {
    const vi bytes = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 1, 0, 1, 2, 3, 2, 3), _mm512_castsi256_si512(load256(p + 32*i)));
    return and_(_mm512_srlv_epi64(bytes, _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4)), repeat(15));
}

}  // namespace selfspec
