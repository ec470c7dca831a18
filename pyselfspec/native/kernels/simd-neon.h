// The operations of simd.h for 64-bit ARM: vectors of 16 bytes. Comments that hold for all processors are in simd-avx512.h.
//
// Integers multiply as signed bytes here, so signed weights need no offset; small unsigned weights keep theirs, which costs
// nothing. Without the dot product of ARMv8.2, sums are those of 16-bit products; where lanes have the same numbers either way,
// results have the same bits.
#pragma once

#include <arm_neon.h>

namespace selfspec {

constexpr int VB = 16;
using vi = int8x16_t;
using vf = float32x4_t;

// Each operation chooses the type of lanes.
inline vi          as_vi(int16x8_t a)    { return vreinterpretq_s8_s16(a); }
inline vi          as_vi(int32x4_t a)    { return vreinterpretq_s8_s32(a); }
inline vi          as_vi(int64x2_t a)    { return vreinterpretq_s8_s64(a); }
inline vi          as_vi(uint8x16_t a)   { return vreinterpretq_s8_u8(a); }
inline vi          as_vi(uint32x4_t a)   { return vreinterpretq_s8_u32(a); }
inline int16x8_t   as_16(vi a)           { return vreinterpretq_s16_s8(a); }
inline int32x4_t   as_32(vi a)           { return vreinterpretq_s32_s8(a); }
inline int64x2_t   as_64(vi a)           { return vreinterpretq_s64_s8(a); }
inline uint8x16_t  as_u8(vi a)           { return vreinterpretq_u8_s8(a); }
inline uint32x4_t  as_u32(vi a)          { return vreinterpretq_u32_s8(a); }

inline vi load(const void * p)           { return vld1q_s8((const int8_t *) p); }
inline vi repeat(int8_t x)               { return vdupq_n_s8(x); }
inline vi repeat32(int32_t x)            { return as_vi(vdupq_n_s32(x)); }
inline vi repeat64(int64_t x)            { return as_vi(vdupq_n_s64(x)); }
inline vi zero_i()                       { return vdupq_n_s8(0); }
inline vi and_(vi a, vi b)               { return vandq_s8(a, b); }
inline vi or_(vi a, vi b)                { return vorrq_s8(a, b); }
inline vi xor_(vi a, vi b)               { return veorq_s8(a, b); }
inline vi add32(vi a, vi b)              { return as_vi(vaddq_s32(as_32(a), as_32(b))); }
inline vi sub32(vi a, vi b)              { return as_vi(vsubq_s32(as_32(a), as_32(b))); }
inline vi max32(vi a, vi b)              { return as_vi(vmaxq_s32(as_32(a), as_32(b))); }
inline int32_t largest32(vi a)           { return vmaxvq_s32(as_32(a)); }
template <int N> vi right(vi a)          { return as_vi(vshrq_n_u8(as_u8(a), N)); }
template <int N> vi left(vi a)           { return as_vi(vshlq_n_u8(as_u8(a), N)); }
inline vi right(vi a, int n)             { return n == 0 ? a : as_vi(vshlq_u8(as_u8(a), vdupq_n_s8((int8_t) -n))); }
inline vi left(vi a, int n)              { return n == 0 ? a : as_vi(vshlq_u8(as_u8(a), vdupq_n_s8((int8_t) n))); }
template <int N> vi left32(vi a)         { return as_vi(vshlq_n_s32(as_32(a), N)); }
template <int N> vi right32(vi a)        { return as_vi(vshrq_n_u32(as_u32(a), N)); }
inline vi low64(vi a, vi b)              { return as_vi(vzip1q_s64(as_64(a), as_64(b))); }
inline vi high64(vi a, vi b)             { return as_vi(vzip2q_s64(as_64(a), as_64(b))); }
inline vi even_words(vi a, vi b)         { return as_vi(vuzp1q_s32(as_32(a), as_32(b))); }
inline vi odd_words(vi a, vi b)          { return as_vi(vuzp2q_s32(as_32(a), as_32(b))); }
inline vi lookup(vi table, vi i)         { return vqtbl1q_s8(table, as_u8(i)); }
inline vi shuffle8(vi a, vi i)           { return lookup(a, i); }  // an index that is negative gives 0
inline vi add_where(vi a, vi from, vi bits, int8_t x) {
    return vaddq_s8(a, and_(as_vi(vtstq_s8(from, bits)), repeat(x)));
}
inline vi sub8(vi a, vi b)               { return vsubq_s8(a, b); }
inline vi spread_bits(uint64_t x) {  // bit i as all bits of byte i
    const uint8x16_t bytes = vcombine_u8(vdup_n_u8((uint8_t) x), vdup_n_u8((uint8_t) (x >> 8)));
    return as_vi(vtstq_u8(bytes, vreinterpretq_u8_u64(vdupq_n_u64(0x8040201008040201))));
}

inline vf as_floats(vi a)                { return vreinterpretq_f32_s8(a); }
inline vi as_ints(vf a)                  { return vreinterpretq_s8_f32(a); }
inline vf zero()                         { return vdupq_n_f32(0); }
inline vf load_f(const float * p)        { return vld1q_f32(p); }
inline vf from_halves(uint16x4_t a)      { return vcvt_f32_f16(vreinterpret_f16_u16(a)); }
inline vf load_f16(const void * p)       { return from_halves(vld1_u16((const uint16_t *) p)); }
inline vf load_bf16(const void * p)      { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16((const uint16_t *) p), 16)); }
inline vf low_halves(vi a)               { return vcvt_f32_f16(vreinterpret_f16_s8(vget_low_s8(a))); }
inline vf load_i8(const void * p) {
    int32_t bytes;
    memcpy(&bytes, p, sizeof(bytes));
    const int16x4_t words = vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(bytes))));
    return vcvtq_f32_s32(vmovl_s16(words));
}
inline vf power_of_two(vi e) {
    const int32x4_t denormal = vshlq_s32(vdupq_n_s32(1 << 21), as_32(e));
    const int32x4_t normal   = vshlq_n_s32(vsubq_s32(as_32(e), vdupq_n_s32(1)), 23);
    return vreinterpretq_f32_s32(vbslq_s32(vcgtq_s32(vdupq_n_s32(2), as_32(e)), denormal, normal));
}
inline void store_f(float * p, vf a)     { vst1q_f32(p, a); }
inline void store(void * p, vi a)        { vst1q_s8((int8_t *) p, a); }
inline vi to_int(vf a)                   { return as_vi(vcvtnq_s32_f32(a)); }
inline vf to_float(vi a)                 { return vcvtq_f32_s32(as_32(a)); }
inline vf max(vf a, vf b)                { return vmaxq_f32(a, b); }
inline float largest_lane(vf a)          { return vmaxvq_f32(a); }
inline vi add_pairs(vi acc, vi a) {
    return vreinterpretq_s8_u64(vpadalq_u32(vreinterpretq_u64_s8(acc), vreinterpretq_u32_s8(a)));
}
inline vf repeat_f(float x)              { return vdupq_n_f32(x); }
inline vf add(vf a, vf b)                { return vaddq_f32(a, b); }
inline vf sub(vf a, vf b)                { return vsubq_f32(a, b); }
inline vf mul(vf a, vf b)                { return vmulq_f32(a, b); }
inline vf fma(vf a, vf b, vf c)          { return vfmaq_f32(c, a, b); }
inline vf fnma(vf a, vf b, vf c)         { return vfmsq_f32(c, a, b); }
inline uint32x4_t is_number(vf a)        { return vceqq_f32(a, a); }
inline vf where_above(vf x, float limit, vf a) { return vbslq_f32(vcgtq_f32(x, vdupq_n_f32(limit)), a, x); }
inline vf keep_no_number(vf x, vf a)     { return vbslq_f32(is_number(x), a, x); }
inline bool no_number(vf a, vf b)        { return vminvq_u32(vandq_u32(is_number(a), is_number(b))) == 0; }
inline uint32_t nonzero(vf a) {
    const uint32x4_t bits = {1, 2, 4, 8};
    return vaddvq_u32(vbicq_u32(bits, vceqq_f32(a, zero())));
}
inline uint32_t differ16(const void * p, int16_t x) {
    const uint16x8_t bits = {1, 2, 4, 8, 16, 32, 64, 128};
    return vaddvq_u16(vbicq_u16(bits, vceqq_s16(as_16(load(p)), vdupq_n_s16(x))));
}

inline float sum(vf a)                   { return vaddvq_f32(a); }  // (0 + 1) + (2 + 3)
inline vf sums(const vf (&v)[4])         { return vpaddq_f32(vpaddq_f32(v[0], v[1]), vpaddq_f32(v[2], v[3])); }

// Writes four columns of four rows, which are `stride` values apart, as rows that are `to_stride` apart.
inline void transpose(const float * rows, int64_t stride, float * to, int64_t to_stride) {
    const float32x4x2_t a = vtrnq_f32(load_f(rows), load_f(rows + stride));
    const float32x4x2_t b = vtrnq_f32(load_f(rows + 2*stride), load_f(rows + 3*stride));
    for (int i = 0; i < 2; i++) {
        store_f(to + i*to_stride, vcombine_f32(vget_low_f32(a.val[i]), vget_low_f32(b.val[i])));
        store_f(to + (i + 2)*to_stride, vcombine_f32(vget_high_f32(a.val[i]), vget_high_f32(b.val[i])));
    }
}

inline vi front_digits(vi fractions) {
    return as_vi(vsubq_u8(vdupq_n_u8(0), vaddq_u8(vcgtq_u8(as_u8(fractions), vdupq_n_u8(85)), vcgtq_u8(as_u8(fractions), vdupq_n_u8(170)))));
}
inline vi times_pairs(vi a, vi by)       { return as_vi(vmulq_u8(as_u8(a), as_u8(by))); }

inline vf repeat_half(uint16_t x)        { return from_halves(vdup_n_u16(x)); }

// --- 16 bytes ---

using v16 = vi;

inline v16 load16(const void * p)        { return load(p); }
inline v16 plus8(v16 a, int x)           { return vaddq_s8(a, repeat((int8_t) x)); }
inline v16 words16(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    return as_vi(vcombine_s64(vcreate_s64(a | (uint64_t) b << 32), vcreate_s64(c | (uint64_t) d << 32)));
}
inline v16 upper8(v16 a)                 { return vextq_s8(a, zero_i(), 8); }
inline v16 twice8(v16 a)                 { return vshlq_n_s8(a, 1); }
inline v16 alternate(v16 a, v16 b)       { return vzip1q_s8(a, b); }
template <int SHIFT> v16 four_bits(v16 a) { return and_(right(a, SHIFT), repeat(15)); }
template <typename... T> v16 bytes16(T... x) {
    const int8_t all[16] = {(int8_t) x...};
    return load(all);
}

template <typename F> vi every_second(int first, F part) { return part(first); }
template <typename F> SELFSPEC_PART vi eights(F at) {
    return vcombine_s8(vld1_s8((const int8_t *) at(0)), vld1_s8((const int8_t *) at(1)));
}
template <typename F> SELFSPEC_PART vi fours(F at) { return as_vi(uint32x4_t{*at(0), *at(1), *at(2), *at(3)}); }
template <typename F> vi widen_fours(F at) {
    uint32_t bytes;
    memcpy(&bytes, at(0), sizeof(bytes));
    return as_vi(vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(bytes)))));
}
template <typename F> vi halves_of_words(F at) {  // at(0) has those of two blocks
    const int32x2_t words = vreinterpret_s32_s8(vld1_s8((const int8_t *) at(0)));
    const vi        twice = as_vi(vzip1q_s32(vcombine_s32(words, words), vcombine_s32(words, words)));
    return as_vi(vshlq_u8(as_u8(twice), repeat64((int64_t) 0xfcfcfcfc00000000)));
}
template <typename F> vf twice(F half) {
    return from_halves(vreinterpret_u16_u32(vzip1_u32(vreinterpret_u32_u16(vdup_n_u16(half(0))), vreinterpret_u32_u16(vdup_n_u16(half(1))))));
}

// 16 bytes hold 32 weights, the first half in the low nibbles.
inline vi half_nibbles(const uint8_t * p, int i) {
    const vi bytes = load(p + i/2*16);
    return i%2 == 0 ? and_(bytes, repeat(15)) : right<4>(bytes);
}

// --- halves and activations ---

inline float from_half(uint16_t x) {
    __fp16 half;
    memcpy(&half, &x, sizeof(half));
    return half;
}
inline void store_halves(void * p, const float * x) {
    vst1q_u16((uint16_t *) p, vreinterpretq_u16_f16(vcombine_f16(vcvt_f16_f32(load_f(x)), vcvt_f16_f32(load_f(x + 4)))));
}
inline void store_rounded(int8_t * to, const float * x, float factor) {
    const auto four  = [&](int i) { return vqmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(load_f(x + i), factor))); };
    const auto eight = [&](int i) { return vqmovn_s16(vcombine_s16(four(i), four(i + 4))); };
    for (int i = 0; i < 32; i += 16) {
        store(to + i, vcombine_s8(eight(i), eight(i + 8)));
    }
}

// --- products of bytes ---

constexpr bool HAS_VNNI    = false;  // the product of unsigned by signed bytes on x86
constexpr int  SIGN_OFFSET = 0;

inline int16x8_t low_products(vi w, vi a)                    { return vmull_s8(vget_low_s8(w), vget_low_s8(a)); }
inline int16x8_t high_products(vi w, vi a)                   { return vmull_high_s8(w, a); }
inline int16x8_t low_products(int16x8_t acc, vi w, vi a)     { return vmlal_s8(acc, vget_low_s8(w), vget_low_s8(a)); }
inline int16x8_t high_products(int16x8_t acc, vi w, vi a)    { return vmlal_high_s8(acc, w, a); }

// Sums of four neighbours, in the lanes where a dot product has them.
inline int32x4_t fours(int16x8_t low, int16x8_t high)        { return vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)); }

inline vi dot4(vi acc, vi w, vi a) {
#if defined(__ARM_FEATURE_DOTPROD)
    return as_vi(vdotq_s32(as_32(acc), w, a));
#else
    return add32(acc, as_vi(fours(low_products(w, a), high_products(w, a))));
#endif
}

// Twice dot4: two products of signed bytes fit 16 bits, unless both are -128, which an activation never is.
inline vi dot8_signed(vi acc, vi w, vi x, vi a, vi b) {
#if defined(__ARM_FEATURE_DOTPROD)
    return dot4(dot4(acc, w, a), x, b);
#else
    return add32(acc, as_vi(fours(low_products(low_products(w, a), x, b), high_products(high_products(w, a), x, b))));
#endif
}

// Four times dot4, for bytes below 32: sums of four products fit 16 bits.
inline vi dot16(vi acc, const vi (&w)[4], const vi (&a)[4]) {
#if defined(__ARM_FEATURE_DOTPROD)
    return dot4(dot4(dot4(dot4(acc, w[0], a[0]), w[1], a[1]), w[2], a[2]), w[3], a[3]);
#else
    int16x8_t low = low_products(w[0], a[0]), high = high_products(w[0], a[0]);
    for (int i = 1; i < 4; i++) {
        low  = low_products(low, w[i], a[i]);
        high = high_products(high, w[i], a[i]);
    }
    return add32(acc, as_vi(fours(low, high)));
#endif
}

inline vi products8(v16 bytes, const int16_t * x) {
    const int16x8_t words = vmovl_s8(vget_low_s8(bytes)), by = vld1q_s16(x);
    return as_vi(vmlal_high_s16(vmull_s16(vget_low_s16(words), vget_low_s16(by)), words, by));
}
inline vi products16(v16 bytes, const int16_t * x) { return add32(products8(bytes, x), products8(upper8(bytes), x + 8)); }

inline v16 four_and_two_bits(uint32_t low, uint32_t high) {
    const uint8x8_t  bytes = vreinterpret_u8_u32(vdup_n_u32(low));
    const uint8x8_t  fours = vzip1_u8(vand_u8(bytes, vdup_n_u8(15)), vshr_n_u8(bytes, 4));
    const int16x8_t  down  = {0, -2, -4, -6, -8, -10, -12, -14};
    const uint8x8_t  twos  = vand_u8(vmovn_u16(vshlq_u16(vdupq_n_u16((uint16_t) high), down)), vdup_n_u8(3));
    const uint8x8_t  all   = vsub_u8(vorr_u8(fours, vshl_n_u8(twos, 4)), vdup_n_u8(32));
    return as_vi(vcombine_u8(all, all));
}

template <int STRIDE> v16 top_nibbles(const char * p) {
    const auto word = [&](int i) { uint32_t x; memcpy(&x, p + STRIDE*i, 4); return x; };
    const auto tops = [&](int i) {
        const uint32x4_t words = {word(i), word(i + 1), word(i + 2), word(i + 3)};  // by itself: Clang's shift is a macro
        return vmovn_u32(vshrq_n_u32(words, 28));
    };
    const uint8x8_t all = vmovn_u16(vcombine_u16(tops(0), tops(4)));
    return as_vi(vcombine_u8(all, all));
}

// --- scaled sums ---

// Weights below 64: sums of four products fit 16 bits.
struct Small {
    static constexpr bool FOUR_FIT = true;
    vi w;
};

struct Signed {
    static constexpr bool FOUR_FIT = false;
    vi w;
    explicit Signed(vi w) : w(w) {}
};

// Weights of two bits: 16 bits hold sums of all products of a block.
struct Tiny {
    vi w;
};

// The scales of vectors 2i and 2i + 1 of a block of 256 weights, one for W weights: all 16 weights of a vector have one.
// Without the dot product 16-bit sums are multiplied, so the scales have 16 bits.
template <typename V, int W> struct PairScales {
    static constexpr int N = 32/W;
#if defined(__ARM_FEATURE_DOTPROD)
    using Scale = int32x4_t;
    static Scale spread(v16 scales, int i) {
        const int16x8_t words = eight(scales, i);
        const Scale     four  = vmovl_s16(i%8 < 4 ? vget_low_s16(words) : vget_high_s16(words));
        return vdupq_n_s32(four[i%4]);
    }
#else
    using Scale = int16x8_t;
    static Scale spread(v16 scales, int i) { return vdupq_n_s16(eight(scales, i)[i%8]); }
#endif
    static int16x8_t eight(v16 scales, int i) { return i < 8 ? vmovl_s8(vget_low_s8(scales)) : vmovl_high_s8(scales); }
    Scale scale[N];

    PairScales() = default;
    PairScales(v16 scales, int i) {
        for (int j = 0; j < N; j++) {
            scale[j] = spread(scales, i*N + j);
        }
    }

    vi add(vi total, const V & x, const V & y, vi a, vi b) const { return as_vi(sum(as_32(total), x.w, y.w, a, b)); }

private:
#if defined(__ARM_FEATURE_DOTPROD)
    int32x4_t sum(int32x4_t total, vi x, vi y, vi a, vi b) const {
        const vi of_x = dot4(zero_i(), x, a);
        if constexpr (N == 1) {
            return vmlaq_s32(total, as_32(dot4(of_x, y, b)), scale[0]);
        }
        return vmlaq_s32(vmlaq_s32(total, as_32(of_x), scale[0]), as_32(dot4(zero_i(), y, b)), scale[N - 1]);
    }
#else
    int32x4_t sum(int32x4_t total, vi x, vi y, vi a, vi b) const {
        const int16x8_t of_x = high_products(low_products(x, a), x, a);
        if constexpr (N == 1 && V::FOUR_FIT) {
            return scaled(total, high_products(low_products(of_x, y, b), y, b), scale[0]);
        }
        return scaled(scaled(total, of_x, scale[0]), high_products(low_products(y, b), y, b), scale[N - 1]);
    }
    static int32x4_t scaled(int32x4_t total, int16x8_t products, int16x8_t by) {
        return vmlal_high_s16(vmlal_s16(total, vget_low_s16(products), vget_low_s16(by)), products, by);
    }
#endif
};

// All of a block have one scale, which finish() multiplies by.
template <> struct PairScales<Tiny, 256> {
    PairScales() = default;
    PairScales(v16, int) {}

#if defined(__ARM_FEATURE_DOTPROD)
    vi add(vi total, const Tiny & x, const Tiny & y, vi a, vi b) const { return dot4(dot4(total, x.w, a), y.w, b); }
    static vi sum(vi total) { return total; }
#else
    vi add(vi total, const Tiny & x, const Tiny & y, vi a, vi b) const {
        return as_vi(high_products(low_products(high_products(low_products(as_16(total), x.w, a), x.w, a), y.w, b), y.w, b));
    }
    static vi sum(vi total) { return as_vi(vpaddlq_s16(as_16(total))); }
#endif
};

}  // namespace selfspec
