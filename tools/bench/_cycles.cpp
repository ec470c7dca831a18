// Cycles that products of pyselfspec/native/kernels take, beside upstream's product of one row and one token. For every
// type of weights a line: its name, its layout, the weights in 64 bytes, and the cycles for 64 bytes of weights, upstream's
// ("-" if there is none) and ours at each width. The time-stamp counter's cycles, the least of the runs, since others use
// the machine too. Few bytes of weights stay in the second-level cache; more than the caches hold come from memory.
//
// Usage: _cycles VALUES_IN_A_ROW BYTES_OF_WEIGHTS RUNS WIDTH...
#include "product.h"

#define GGML_COMMON_DECL_CPP
#include "ggml-common.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include <sys/mman.h>
#include <x86intrin.h>

using namespace selfspec;

extern "C" {
// tables of upstream's CPU backend, which is not linked
float ggml_table_f32_f16[1 << 16];
float ggml_table_f32_e8m0_half[1 << 8];
float ggml_table_f32_ue4m3[1 << 8];

using Dot = void(int n, float * out, size_t, const void * weights, size_t, const void * activations, size_t, int);
Dot ggml_vec_dot_q8_0_q8_0, ggml_vec_dot_q4_0_q8_0, ggml_vec_dot_q4_1_q8_1, ggml_vec_dot_q5_0_q8_0, ggml_vec_dot_q5_1_q8_1,
    ggml_vec_dot_iq4_nl_q8_0, ggml_vec_dot_mxfp4_q8_0, ggml_vec_dot_q2_K_q8_K, ggml_vec_dot_q3_K_q8_K,
    ggml_vec_dot_q4_K_q8_K, ggml_vec_dot_q5_K_q8_K, ggml_vec_dot_q6_K_q8_K, ggml_vec_dot_iq4_xs_q8_K,
    ggml_vec_dot_q1_0_q8_0, ggml_vec_dot_q2_0_q8_0, ggml_vec_dot_nvfp4_q8_0, ggml_vec_dot_tq1_0_q8_K, ggml_vec_dot_tq2_0_q8_K,
    ggml_vec_dot_iq1_s_q8_K, ggml_vec_dot_iq1_m_q8_K,
    ggml_vec_dot_iq2_xxs_q8_K, ggml_vec_dot_iq2_xs_q8_K, ggml_vec_dot_iq2_s_q8_K, ggml_vec_dot_iq3_xxs_q8_K, ggml_vec_dot_iq3_s_q8_K;
}

namespace {

constexpr size_t HUGE_PAGE = 2 << 20;

const std::map<ggml_type, Dot *> UPSTREAM = {
    {GGML_TYPE_Q8_0, ggml_vec_dot_q8_0_q8_0}, {GGML_TYPE_Q4_0, ggml_vec_dot_q4_0_q8_0},
    {GGML_TYPE_Q4_1, ggml_vec_dot_q4_1_q8_1}, {GGML_TYPE_Q5_0, ggml_vec_dot_q5_0_q8_0},
    {GGML_TYPE_Q5_1, ggml_vec_dot_q5_1_q8_1}, {GGML_TYPE_IQ4_NL, ggml_vec_dot_iq4_nl_q8_0},
    {GGML_TYPE_MXFP4, ggml_vec_dot_mxfp4_q8_0}, {GGML_TYPE_Q2_K, ggml_vec_dot_q2_K_q8_K},
    {GGML_TYPE_Q3_K, ggml_vec_dot_q3_K_q8_K}, {GGML_TYPE_Q4_K, ggml_vec_dot_q4_K_q8_K},
    {GGML_TYPE_Q5_K, ggml_vec_dot_q5_K_q8_K}, {GGML_TYPE_Q6_K, ggml_vec_dot_q6_K_q8_K},
    {GGML_TYPE_IQ4_XS, ggml_vec_dot_iq4_xs_q8_K}, {GGML_TYPE_IQ2_XXS, ggml_vec_dot_iq2_xxs_q8_K},
    {GGML_TYPE_IQ2_XS, ggml_vec_dot_iq2_xs_q8_K}, {GGML_TYPE_IQ2_S, ggml_vec_dot_iq2_s_q8_K},
    {GGML_TYPE_IQ3_XXS, ggml_vec_dot_iq3_xxs_q8_K}, {GGML_TYPE_IQ3_S, ggml_vec_dot_iq3_s_q8_K},
    {GGML_TYPE_IQ1_S, ggml_vec_dot_iq1_s_q8_K}, {GGML_TYPE_IQ1_M, ggml_vec_dot_iq1_m_q8_K},
    {GGML_TYPE_TQ1_0, ggml_vec_dot_tq1_0_q8_K}, {GGML_TYPE_TQ2_0, ggml_vec_dot_tq2_0_q8_K},
    {GGML_TYPE_Q1_0, ggml_vec_dot_q1_0_q8_0}, {GGML_TYPE_Q2_0, ggml_vec_dot_q2_0_q8_0}, {GGML_TYPE_NVFP4, ggml_vec_dot_nvfp4_q8_0},
};

uint64_t least(int n_runs, const std::function<void()> & f) {
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < n_runs; i++) {
        const uint64_t start = __rdtsc();
        f();
        best = std::min<uint64_t>(best, __rdtsc() - start);
    }
    return best;
}

std::vector<char> random_rows(ggml_type type, int64_t n_rows, int64_t k) {
    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    std::vector<float> source(n_rows*k);
    for (float & x : source) {
        x = normal(rng);
    }
    std::vector<char> rows(n_rows*ggml_row_size(type, k));
    const std::vector<float> importance(k, 1);
    ggml_quantize_chunk(type, source.data(), rows.data(), 0, n_rows, k, importance.data());
    return rows;
}

using Buffer = std::unique_ptr<char, void (*)(void *)>;

// The same few rows again and again, in huge pages as the library's weights are.
Buffer filled(const std::vector<char> & rows, size_t size) {
    const size_t padded = (size + HUGE_PAGE - 1)/HUGE_PAGE*HUGE_PAGE + HUGE_PAGE;  // kernels fetch beyond the end
    Buffer buffer((char *) aligned_alloc(HUGE_PAGE, padded), free);
    madvise(buffer.get(), padded, MADV_HUGEPAGE);
    for (size_t i = 0; i < size; i += rows.size()) {
        memcpy(buffer.get() + i, rows.data(), std::min(rows.size(), size - i));
    }
    return buffer;
}

struct Setup {
    int64_t          k, n_bytes;
    int              n_runs;
    std::vector<int> widths;
};

void measure(ggml_type type, bool in_columns, const Setup & setup) {
    const int64_t k = setup.k;
    const Scheme scheme = in_columns ? column_scheme(type) : file_scheme(type, GGML_PREC_UNDEFINED);
    if (!scheme.kernel || k%ggml_blck_size(type) != 0) {
        return;
    }
    const size_t  row_size = in_columns ? scheme.row_size(type, k) : ggml_row_size(type, k);
    const int64_t n_rows   = setup.n_bytes/(int64_t) row_size/8*8;
    const double  lines    = (double) (row_size*n_rows)/64;
    // in columns any bytes that make no number too small to be normal
    const int64_t n_random = std::min<int64_t>(n_rows, 64);
    const Buffer  rows     = filled(in_columns ? std::vector<char>(row_size, 0x77) : random_rows(type, n_random, k), n_rows*row_size);
    const int     n_tokens = *std::max_element(setup.widths.begin(), setup.widths.end());
    const size_t  size     = activation_size(scheme.form, k);
    const std::unique_ptr<char, void (*)(void *)> activations((char *) aligned_alloc(64, n_tokens*size), free);
    std::vector<float> x(k, 1.0f), out(n_tokens*n_rows);
    std::vector<Token> tokens;
    for (int t = 0; t < n_tokens; t++) {
        char * base = activations.get() + t*size;
        prepare(scheme.form, k, 0, k, x.data(), base);
        tokens.push_back({activation_view(scheme.form, k, base), out.data() + t*n_rows});
    }
    printf("%s %s %.0f", ggml_type_name(type), in_columns ? "columns" : "file", 64.0*k/row_size);
    const auto dot = UPSTREAM.find(type);
    if (!in_columns && dot != UPSTREAM.end()) {
        const std::vector<char> zeros(8*k + 1024);  // any form of activations
        printf(" %.2f", least(setup.n_runs, [&] {
            for (int64_t r = 0; r < n_rows; r++) {
                dot->second((int) k, &out[r], 0, rows.get() + r*row_size, 0, zeros.data(), 0, 1);
            }
        })/lines);
    } else {
        printf(" -");
    }
    const Weights weights = {rows.get(), row_size, k};
    for (int width : setup.widths) {
        printf(" %.2f", least(setup.n_runs, [&] { scheme.kernel(weights, 0, n_rows, tokens.data(), width); })/lines);
    }
    printf("\n");
}

}  // namespace

int main(int argc, char ** argv) {
    if (argc < 5) {
        return 2;
    }
    Setup setup = {atoll(argv[1]), atoll(argv[2]), atoi(argv[3]), {}};
    for (int i = 4; i < argc; i++) {
        setup.widths.push_back(atoi(argv[i]));
    }
    for (int i = 0; i < 1 << 16; i++) {
        ggml_table_f32_f16[i] = ggml_fp16_to_fp32((ggml_fp16_t) i);
    }
    for (bool in_columns : {false, true}) {
        for (int type = 0; type < GGML_TYPE_COUNT; type++) {
            measure((ggml_type) type, in_columns, setup);
        }
    }
}
