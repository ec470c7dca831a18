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
        case Layout::f32:
        case Layout::f16:  return 4;
        case Layout::bf16: return HAS_BF16 ? 2 : 4;
        default:           return 1;
    }
}

static int64_t n_scales(Form form, int64_t k) { return form.layout >= Layout::q8k ? padded(form, k)/256 : 0; }

// The number of values per stored sum; 0 if no sums are stored.
static int64_t sums_of(Form form) { return form.layout == Layout::q8k_sums16 ? 16 : form.layout == Layout::q8k_sums32 ? 32 : 0; }

static size_t values_end(Form form, int64_t k) {
    const int64_t n = padded(form, k);
    return aligned(form.layout >= Layout::q8k ? n/run_values(form.layout)*run_size(form.layout) : n*value_size(form));
}
static size_t scales_end(Form form, int64_t k) { return values_end(form, k) + aligned(n_scales(form, k)*sizeof(float)); }

size_t activation_size(Form form, int64_t k) {
    switch (form.layout) {
        case Layout::steps:
        case Layout::steps_sums:
        case Layout::steps_halves:
        case Layout::steps_pairs:
        case Layout::steps_bits: return aligned(padded(form, k)/STEP*sizeof(BlockStep));
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
    const vi size = repeat32(0x7fffffff);
    vi top = zero_i();
    for (int i = 0; i < n; i += VL) {
        top = max32(top, and_(size, load(x + i)));
    }
    const int32_t bits = largest32(top);
    float largest;
    memcpy(&largest, &bits, sizeof(bits));
    const float inverse = largest != 0 ? 127/largest : 0;
    for (int i = 0; i < n; i += 32) {
        store_rounded(q + i, x + i, inverse);
    }
    return largest/127;
}

static int16_t sum_of(const int8_t * q, int64_t n) { return (int16_t) std::accumulate(q, q + n, 0); }

// Which of a block's 32 values belongs to byte `byte` of its eight in vector `vector` of a step.
static constexpr int place_in_block(Layout layout, int vector, int byte) {
    switch (layout) {
        case Layout::steps_halves: return 16*(byte/4) + 4*vector + byte%4;
        case Layout::steps_pairs:  return 4*byte + vector;
        case Layout::steps_bits:   return 8*(byte%4) + 4*(byte/4) + vector;
        default:                   return 8*vector + byte;
    }
}

template <Layout LAYOUT> static void reorder(int8_t (&q)[32]) {
    int8_t from[32];
    memcpy(from, q, sizeof(q));
    for (int i = 0; i < 32; i++) {
        q[i] = from[place_in_block(LAYOUT, i/8, i%8)];
    }
}

// Writes block i of a step.
static void prepare_block(Form form, BlockStep & step, int64_t i, const float * x) {
    int8_t q[32];
    const float scale = quantise(x, 32, q);
    const int   lower = sum_of(q, 16), upper = sum_of(q + 16, 16);
    switch (form.layout) {
        case Layout::steps_halves: reorder<Layout::steps_halves>(q); break;
        case Layout::steps_pairs:  reorder<Layout::steps_pairs>(q); break;
        case Layout::steps_bits:   reorder<Layout::steps_bits>(q); break;
        default:                   break;
    }
    for (int j = 0; j < 4; j++) {
        memcpy(step.values[j] + 8*i, q + 8*j, 8);
    }
    step.scales[2*i] = step.scales[2*i + 1] = scale;
    if (form.layout == Layout::steps_sums) {
        step.sums[2*i]     = scale*(lower + upper);
        step.sums[2*i + 1] = 0;
    } else {
        step.start[2*i]     = -form.offset*lower;
        step.start[2*i + 1] = -form.offset*upper;
    }
}

static void prepare_run(Form form, ColumnRun & run, const int8_t * values) {
    constexpr int LANES = std::max(1, VB/32);  // of a row in a vector, four values each
    memcpy(run.values, values, 32);
    std::fill_n(run.starts, 4, 0);
    for (int i = 0; i < 8; i++) {
        const int at = (form.layout == Layout::q8k_start ? 0 : i/(2*LANES)*LANES) + i%LANES;
        if (form.layout == Layout::q8k_halves) {
            run.halves[at][0] -= form.offset*sum_of(values + 4*i, 2);
            run.halves[at][1] -= form.offset*sum_of(values + 4*i + 2, 2);
        } else {
            run.starts[at] -= form.offset*sum_of(values + 4*i, 4);
        }
    }
}

// Which of 64 values belongs to byte `byte` of a row in vector `i`: value i of eight, or such that a lane has the scale of 16.
static int coded_place(Form form, int i, int byte) {
    if (form.layout == Layout::q8k_coded32) {
        return 8*byte + i;
    }
    return 32*(i/4) + i%4 + 8*(byte%2) + 4*(byte/2%2) + 16*(byte/4);
}

static void prepare_coded(Form form, CodedRun & run, const int8_t * values) {
    std::fill_n(run.starts, 4, 0);
    for (int i = 0; i < 8; i++) {
        const int first = form.layout == Layout::q8k_coded16 ? i/4*2 : 0;
        for (int byte = 0; byte < 8; byte++) {
            const int8_t value = values[coded_place(form, i, byte)];
            run.values[8*i + byte] = value;
            run.starts[first + byte/4] -= form.offset*value;
        }
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
        case Layout::f16: {
            ggml_fp16_t halves[K_STEP];
            for (int64_t i = 0; i < n; i += 8) {
                store_halves(halves + i, x + i);
            }
            for (int64_t i = 0; i < n; i += VL) {
                store_f(floats + i, load_f16(halves + i));
            }
            break;
        }
        case Layout::bf16:
            for (int64_t i = 0; i < n; i += VL) {
#if defined(SELFSPEC_BF16)
                store_bf16((ggml_bf16_t *) base + k0 + i, load_f(x + i));
#else
                store_f(floats + i, round_to_bf16(load_f(x + i)));
#endif
            }
            break;
        case Layout::steps:
        case Layout::steps_sums:
        case Layout::steps_halves:
        case Layout::steps_pairs:
        case Layout::steps_bits:
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
        case Layout::q8k_start:
        case Layout::q8k_starts:
        case Layout::q8k_halves:
        case Layout::q8k_coded32:
        case Layout::q8k_coded16: {
            int8_t bytes[K_STEP];
            scales[k0/K_STEP] = quantise(x, (int) n, bytes);
            const int values = run_values(form.layout);
            for (int64_t i = 0; i < n; i += values) {
                char * const run = base + (k0 + i)/values*run_size(form.layout);
                if (form.layout >= Layout::q8k_coded32) {
                    prepare_coded(form, *(CodedRun *) run, bytes + i);
                } else {
                    prepare_run(form, *(ColumnRun *) run, bytes + i);
                }
            }
            break;
        }
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
