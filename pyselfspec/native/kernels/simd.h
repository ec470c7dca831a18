// The vector operations used by the kernels: vectors of 64 bytes with AVX-512, of 32 with AVX2, of 16 with NEON.
//
// A kernel must give a token equal bits at every width, so floating-point operations must be done in the order in which
// they are written. A product that is added to a sum is therefore always an explicit `fma`: a compiler may or may not
// contract a product and a sum, and may decide differently in two instances of one template.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

// A tile keeps its weights in registers only if nothing that takes them is called: its parts are inlined. That takes minutes to
// compile with sanitizers, or for instructions that are emulated.
#if defined(SELFSPEC_PARTS_APART) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SELFSPEC_TILE [[gnu::noinline]]
#define SELFSPEC_PART inline
#else
#define SELFSPEC_TILE [[gnu::flatten, gnu::noinline]]
#define SELFSPEC_PART [[gnu::always_inline]] inline
#endif

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define SELFSPEC_KERNELS 1
#include "simd-x86.h"
#elif defined(__aarch64__) && defined(__ARM_NEON)
#define SELFSPEC_KERNELS 1
#include "simd-neon.h"
#endif

#if defined(SELFSPEC_KERNELS)

namespace selfspec {

constexpr int VL      = VB/4;  // 32-bit lanes of a vector
constexpr int LANES16 = VB/2;

#if defined(SELFSPEC_BF16)
constexpr bool HAS_BF16 = true;
#else
constexpr bool HAS_BF16 = false;
#endif

// Rounds to bfloat16, to the nearest even, stored as float. NaN stays NaN.
inline vf round_to_bf16(vf x) {
    const vi bits = as_ints(x);
    const vi even = and_(right32<16>(bits), repeat32(1));
    const vi up   = add32(bits, add32(even, repeat32(0x7fff)));
    return keep_no_number(x, as_floats(and_(up, repeat32((int32_t) 0xffff0000))));
}

// Scales x of IQ1 to IQ3, of three or four bits, are 2x + 1.
inline v16 odd(v16 x) { return plus8(twice8(x), 1); }

// Negates the bytes of a for which those of `which` are all ones.
inline vi negate(vi a, vi which) { return sub8(xor_(a, which), which); }

#if !defined(SELFSPEC_AVX512)
inline vi negate_where(vi a, uint64_t bits) { return negate(a, spread_bits(bits)); }
#endif

// Runs of 32 weights of a block of 256. 32 bytes hold 8/BITS runs, the first in the lowest bits; vector i has one run, part of
// one, or two.
#if !defined(SELFSPEC_AVX512)
template <int BITS> vi runs(const uint8_t * p, int i) {
    const int run = i*VB/32, bit = run*BITS;
    return and_(right(load(p + 32*(bit/8) + i*VB%32), bit%8), repeat((1 << BITS) - 1));
}

// Adds bit BIT of the weights in w: run i has bit i of 32 bytes.
template <int BIT> vi with_bit(vi w, const uint8_t * p, int i) {
    const int run   = i*VB/32;
    const vi  bytes = load(p + i*VB%32);
    return or_(w, and_(run < BIT ? left(bytes, BIT - run) : right(bytes, run - BIT), repeat(1 << BIT)));
}

// Runs of two bits as bits 4 and 5.
inline vi high_pairs(const uint8_t * p, int i) {
    const int run   = i*VB/32, bit = run%4*2;
    const vi  bytes = load(p + 32*(run/4) + i*VB%32);
    return and_(bit < 4 ? left(bytes, 4 - bit) : bit > 4 ? right(bytes, bit - 4) : bytes, repeat(0x30));
}
#endif

// Fetches a line into the second-level cache, and into the first-level cache. Not to be in a function that does nothing else and
// may not be inlined: GCC drops its calls.
[[gnu::always_inline]] inline void fetch_far(const char * p)  { __builtin_prefetch(p, 0, 2); }
[[gnu::always_inline]] inline void fetch_near(const char * p) { __builtin_prefetch(p, 0, 3); }

// Weights are fetched twice before they are multiplied: FAR_AHEAD into the second-level cache, since the processor's own
// prefetching ends with the page, and NEAR_AHEAD into the first-level cache, since instructions that wait for weights leave no
// room for those that would ask for more. An EPYC of Zen 4 class wants 8 KB or more for the first; a Xeon of Emerald Rapids class
// takes 4 to 16 KB alike, and 1 to 4 KB for the second.
constexpr int FAR_AHEAD = 8192, NEAR_AHEAD = 2048;

// Fetches what will be read as lines FIRST up to LAST at p are now.
template <int FIRST, int LAST> [[gnu::always_inline]] inline void fetch_lines(const void * p) {
#pragma GCC unroll 64
    for (int i = FIRST; i < LAST; i++) {
        fetch_far((const char *) p + FAR_AHEAD + 64*i);
        fetch_near((const char *) p + NEAR_AHEAD + 64*i);
    }
}
template <size_t SIZE> constexpr int LINES = (SIZE + 63)/64;
template <size_t SIZE> [[gnu::always_inline]] inline void fetch_ahead(const void * p) { fetch_lines<0, LINES<SIZE>>(p); }

}  // namespace selfspec
#endif
