// Conversion of activations to the form that a kernel multiplies, once per token and product, for all weight rows.
#include "product.h"

#if defined(SELFSPEC_KERNELS)

#include <numeric>

namespace selfspec {

static int64_t up(int64_t n, int64_t multiple) { return (n + multiple - 1)/multiple*multiple; }
static size_t  aligned(size_t n)               { return (size_t) up((int64_t) n, 64); }

static bool is_quantised(Form form) { return form.layout >= Layout::steps; }

// Float kernels need whole vectors, the others whole steps.
static int64_t padded(Form form, int64_t k) { return up(k, is_quantised(form) ? K_STEP : 64); }

static size_t value_size(Form form) {
    switch (form.layout) {
        case Layout::f32:  return 4;
        case Layout::f16:  return 2;
#if defined(__AVX512BF16__)
        case Layout::bf16: return 2;
#else
        case Layout::bf16: return 4;
#endif
        default:           return 1;
    }
}

static int64_t n_scales(Form form, int64_t k) { return form.layout >= Layout::q8k ? padded(form, k)/256 : 0; }

// The number of values per stored sum; 0 if no sums are stored.
static int64_t sums_of(Form form) { return form.layout == Layout::q8k_sums16 ? 16 : form.layout == Layout::q8k_sums32 ? 32 : 0; }

static size_t values_end(Form form, int64_t k) { return aligned(padded(form, k)*value_size(form)); }
static size_t scales_end(Form form, int64_t k) { return values_end(form, k) + aligned(n_scales(form, k)*sizeof(float)); }

size_t activation_size(Form form, int64_t k) {
    switch (form.layout) {
        case Layout::steps:
        case Layout::steps_sums: return aligned(padded(form, k)/STEP*sizeof(BlockStep));
        case Layout::columns:    return aligned(padded(form, k)/32*sizeof(ColumnBlock));
        default:                 break;
    }
    const int64_t part = sums_of(form);
    return scales_end(form, k) + (part > 0 ? aligned(padded(form, k)/part*sizeof(int16_t)) : 0);
}

Activations activation_view(Form form, int64_t k, const char * base) {
    return {base, (const float *) (base + values_end(form, k)), (const int16_t *) (base + scales_end(form, k))};
}

// Rounds n values (a multiple of 32) to bytes, q = x/scale to the nearest even; returns the scale. Absolute values are
// compared as integers, among which NaN is the largest: it becomes the scale, so that the results are NaN as well.
static float quantise(const float * x, int n, int8_t * q) {
    const __m256i size = _mm256_set1_epi32(0x7fffffff);
    __m256i top = _mm256_setzero_si256();
    for (int i = 0; i < n; i += 8) {
        top = _mm256_max_epi32(top, _mm256_and_si256(size, _mm256_loadu_si256((const __m256i *) (x + i))));
    }
    __m128i top4 = _mm_max_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
    top4 = _mm_max_epi32(top4, _mm_shuffle_epi32(top4, 0x4e));
    top4 = _mm_max_epi32(top4, _mm_shuffle_epi32(top4, 0xb1));
    const float largest = _mm_cvtss_f32(_mm_castsi128_ps(top4));

    const __m256  inverse = _mm256_set1_ps(largest != 0 ? 127/largest : 0);
    const __m256i order   = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const auto rounded = [&](int i) { return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i), inverse)); };
    for (int i = 0; i < n; i += 32) {
        const __m256i lo = _mm256_packs_epi32(rounded(i), rounded(i + 8));
        const __m256i hi = _mm256_packs_epi32(rounded(i + 16), rounded(i + 24));
        _mm256_storeu_si256((__m256i *) (q + i), _mm256_permutevar8x32_epi32(_mm256_packs_epi16(lo, hi), order));
    }
    return largest/127;
}

static int16_t sum_of(const int8_t * q, int64_t n) { return (int16_t) std::accumulate(q, q + n, 0); }

#if !defined(__AVX512BF16__)
// Rounds to bfloat16, to the nearest even, stored as float. NaN stays NaN.
static __m256 to_bf16(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i even = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up   = _mm256_add_epi32(bits, _mm256_add_epi32(even, _mm256_set1_epi32(0x7fff)));
    const __m256i high = _mm256_and_si256(up, _mm256_set1_epi32((int) 0xffff0000));
    return _mm256_blendv_ps(_mm256_castsi256_ps(high), x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}
#endif

// Writes block i of a step.
static void prepare_block(Form form, BlockStep & step, int64_t i, const float * x) {
    int8_t q[32];
    const float scale = quantise(x, 32, q);
    const int   sum   = sum_of(q, 32);
    for (int j = 0; j < 4; j++) {
        memcpy(step.values[j] + 8*i, q + 8*j, 8);
    }
    step.scales[2*i] = step.scales[2*i + 1] = scale;
    if (form.layout == Layout::steps_sums) {
        step.sums[2*i]     = scale*sum;
        step.sums[2*i + 1] = 0;
    } else {
        step.start[2*i]     = -form.offset*sum;
        step.start[2*i + 1] = 0;
    }
}

// Converts n values at x, the first of which is value k0 of the token: K_STEP values, or a multiple of 64 for floats.
static void prepare_step(Form form, int64_t k, char * base, int64_t k0, int64_t n, const float * x) {
    float *   floats = (float *) base + k0;
    int8_t *  q      = (int8_t *) base + k0;
    float *   scales = (float *) (base + values_end(form, k));
    int16_t * sums   = (int16_t *) (base + scales_end(form, k));
    switch (form.layout) {
        case Layout::f32:
            std::copy(x, x + n, floats);
            break;
        case Layout::f16:
            for (int64_t i = 0; i < n; i += 8) {
                const __m128i h = _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT);
                _mm_storeu_si128((__m128i *) ((ggml_fp16_t *) base + k0 + i), h);
            }
            break;
        case Layout::bf16:
#if defined(__AVX512BF16__)
            for (int64_t i = 0; i < n; i += 16) {
                const __m256bh b = _mm512_cvtneps_pbh(_mm512_loadu_ps(x + i));
                memcpy((ggml_bf16_t *) base + k0 + i, &b, sizeof(b));
            }
#else
            for (int64_t i = 0; i < n; i += 8) {
                _mm256_storeu_ps(floats + i, to_bf16(_mm256_loadu_ps(x + i)));
            }
#endif
            break;
        case Layout::steps:
        case Layout::steps_sums:
            for (int64_t i = 0; i < n; i += 32) {
                const int64_t block = (k0 + i)/32;
                prepare_block(form, ((BlockStep *) base)[block/BLOCKS], place_in_step(block, k/32), x + i);
            }
            break;
        case Layout::columns:
            for (int64_t i = 0; i < n; i += 32) {
                ColumnBlock & block = ((ColumnBlock *) base)[(k0 + i)/32];
                block.scale    = quantise(x + i, 32, block.values);
                block.start[0] = -form.offset*sum_of(block.values, 32);
                block.start[1] = 0;
            }
            break;
        case Layout::q8k:
            scales[k0/K_STEP] = quantise(x, (int) n, q);
            break;
        case Layout::q8k_sums16:
        case Layout::q8k_sums32:
            scales[k0/K_STEP] = quantise(x, (int) n, q);
            for (int64_t i = 0, part = sums_of(form); i < n; i += part) {
                sums[(k0 + i)/part] = sum_of(q + i, part);
            }
            break;
    }
}

void prepare(Form form, int64_t k, int64_t k0, int64_t k1, const float * x, char * base) {
    for (; k0 < k1; k0 += K_STEP) {
        const int64_t n = std::min(K_STEP, padded(form, k) - k0);
        if (k0 + n <= k) {
            prepare_step(form, k, base, k0, n, x + k0);
        } else {
            float tail[K_STEP] = {};
            std::copy(x + k0, x + k, tail);
            prepare_step(form, k, base, k0, n, tail);
        }
    }
}

}  // namespace selfspec
#endif
