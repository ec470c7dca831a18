// Vectors of AVX-512 and VNNI for programs that are compiled without them: SIMDe's, and what SIMDe 0.7.4 lacks. To be included before
// everything else, with EMULATED_AVX512, EMULATED_AVX512_VNNI or EMULATED_AVX_VNNI.
#pragma once

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>

#include <cmath>
#include <cstring>

namespace emulated {

// f(i, a) for each lane of the result, a being the lanes of the operand.
template <typename To, typename Lane, typename FromLane, typename From, typename F> To lanes(From from, F f) {
    FromLane a[sizeof(From)/sizeof(FromLane)];
    Lane     out[sizeof(To)/sizeof(Lane)];
    memcpy(a, &from, sizeof(from));
    for (size_t i = 0; i < sizeof(To)/sizeof(Lane); i++) {
        out[i] = f(i, a);
    }
    To to;
    memcpy(&to, out, sizeof(to));
    return to;
}

template <typename Lane, typename Less> uint32_t mask(simde__m512i a, simde__m512i b, Less is) {
    Lane x[64/sizeof(Lane)], y[64/sizeof(Lane)];
    memcpy(x, &a, 64);
    memcpy(y, &b, 64);
    uint32_t bits = 0;
    for (size_t i = 0; i < 64/sizeof(Lane); i++) {
        bits |= (uint32_t) is(x[i], y[i]) << i;
    }
    return bits;
}

template <typename To, typename Lane, typename FromLane, typename From> To converted(From from) {
    return lanes<To, Lane, FromLane>(from, [](size_t i, const FromLane * a) { return (Lane) a[i]; });
}

// The first lanes, the others being zero.
template <typename From> simde__m512i extended(From from) {
    return lanes<simde__m512i, char, char>(from, [](size_t i, const char * a) { return i < sizeof(From) ? a[i] : (char) 0; });
}

inline simde__m512 halves_to_floats(__m256i x) {
    const __m256 parts[2] = {_mm256_cvtph_ps(_mm256_castsi256_si128(x)), _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1))};
    simde__m512 to;
    memcpy(&to, parts, sizeof(to));
    return to;
}

inline simde__m512i broadcast_where(simde__m512i from, uint8_t where, __m128i x) {
    int64_t two[2];
    memcpy(two, &x, sizeof(two));
    return lanes<simde__m512i, int64_t, int64_t>(from, [&](size_t i, const int64_t * a) { return where >> i & 1 ? two[i%2] : a[i]; });
}

inline simde__m512 shuffled_quarters(simde__m512 a, simde__m512 b, int order) {
    __m128 x[4], y[4], out[4];
    memcpy(x, &a, sizeof(x));
    memcpy(y, &b, sizeof(y));
    for (int i = 0; i < 4; i++) {
        out[i] = (i < 2 ? x : y)[order >> 2*i & 3];
    }
    simde__m512 to;
    memcpy(&to, out, sizeof(to));
    return to;
}

inline __m256i dot4(__m256i sums, __m256i u, __m256i s) {
    uint8_t a[32];
    memcpy(a, &u, sizeof(a));
    int8_t b[32];
    memcpy(b, &s, sizeof(b));
    return lanes<__m256i, int32_t, int32_t>(sums, [&](size_t i, const int32_t * c) {
        const size_t j = 4*i;
        return c[i] + a[j]*b[j] + a[j + 1]*b[j + 1] + a[j + 2]*b[j + 2] + a[j + 3]*b[j + 3];
    });
}

}  // namespace emulated

#define _mm512_cmplt_epi32_mask(a, b)     emulated::mask<int32_t>(a, b, [](int32_t x, int32_t y) { return x < y; })
#define _mm512_cmpneq_epi16_mask(a, b)    emulated::mask<int16_t>(a, b, [](int16_t x, int16_t y) { return x != y; })
#define _mm512_cvtepi32_ps(a)             emulated::converted<simde__m512, float, int32_t>(a)
#define _mm512_cvtepi8_epi32(a)           emulated::converted<simde__m512i, int32_t, int8_t>(a)
#define _mm512_cvtepi8_epi64(a)           emulated::converted<simde__m512i, int64_t, int8_t>(a)
#define _mm512_cvtepu16_epi32(a)          emulated::converted<simde__m512i, int32_t, uint16_t>(a)
#define _mm512_cvtps_epi32(a)             emulated::lanes<simde__m512i, int32_t, float>(a, [](size_t i, const float * x) { return (int32_t) lrintf(x[i]); })
#define _mm512_cvtph_ps(a)                emulated::halves_to_floats(a)
#define _mm512_extractf32x8_ps(a, i)      emulated::lanes<__m256, float, float>(a, [](size_t j, const float * x) { return x[8*(i) + j]; })
#define _mm512_kortestz(a, b)             ((uint16_t) ((a) | (b)) == 0)
#define _mm512_mask_broadcast_i64x2(a, where, x) emulated::broadcast_where(a, where, x)
#define _mm512_shuffle_f32x4(a, b, order) emulated::shuffled_quarters(a, b, order)
#define _mm512_zextsi128_si512(a)         emulated::extended(a)
#define _mm512_zextsi256_si512(a)         emulated::extended(a)
#undef _mm512_madd_epi16  // of SIMDe 0.7.4 has too many parameters
#define _mm512_madd_epi16(a, b)           simde_mm512_madd_epi16(a, b)

#if defined(EMULATED_AVX_VNNI)
#define _mm256_dpbusd_avx_epi32(c, a, b)  emulated::dot4(c, a, b)
#define _mm256_dpwssd_avx_epi32(c, a, b)  _mm256_add_epi32(c, _mm256_madd_epi16(a, b))
#define __AVXVNNI__ 1
#else
#define __AVX512F__ 1
#define __AVX512BW__ 1
#define __AVX512DQ__ 1
#define __AVX512VL__ 1
#endif
#if defined(EMULATED_AVX512_VNNI)
#define __AVX512VNNI__ 1
#endif
