// Products of pyselfspec/native/kernels against sums over the weights as ggml unpacks them, and against themselves at
// other widths. Odd numbers of rows and of values; every buffer ends where its contents end, for AddressSanitizer.
// Prints what was wrong, if anything.
#include "columns.h"
#include "repack.h"
#include "selfspec-kernels.h"

#define GGML_COMMON_DECL_CPP
#include "ggml-common.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <vector>

using namespace selfspec;

namespace {

std::mt19937 rng(1);
int          n_failed = 0;
int64_t      n_compared = 0;  // results

struct Aligned {
    explicit Aligned(size_t size) : data((char *) aligned_alloc(64, size), free) {}
    std::unique_ptr<char, void (*)(void *)> data;
};

std::vector<float> random_floats(int64_t n) {
    std::normal_distribution<float> normal;
    std::vector<float> out(n);
    for (auto & x : out) {
        x = normal(rng);
    }
    return out;
}

// Eight rows of blocks with 4 bits side by side, eight bytes of each in turn, as upstream repacks them.
template <typename Block>
std::vector<char> interleaved(const std::vector<char> & rows, int64_t n_rows, int64_t n_blocks, uint8_t flip) {
    std::vector<char> out(rows.size());
    char * to = out.data();
    const auto * from = (const Block *) rows.data();
    for (int64_t group = 0; group < n_rows; group += 8) {
        for (int64_t b = 0; b < n_blocks; b++) {
            const auto block = [&](int r) { return from + (group + r)*n_blocks + b; };
            constexpr size_t SCALE = offsetof(Block, qs);
            for (int r = 0; r < 8; r++, to += SCALE) {
                memcpy(to, block(r), SCALE);
            }
            for (int part = 0; part < 2; part++) {
                for (int r = 0; r < 8; r++) {
                    for (int i = 0; i < 8; i++) {
                        *to++ = (char) (block(r)->qs[8*part + i] ^ flip);
                    }
                }
            }
        }
    }
    return out;
}

// Eight scales of 6 bits, then eight minimums, which Q4_K packs into 12 bytes.
using SixBits = std::array<uint8_t, 16>;

SixBits unpacked(const uint8_t * from) {
    SixBits x;
    for (int i = 0; i < 4; i++) {
        x[i]      = from[i] & 63;
        x[i + 4]  = (from[i + 8] & 15) | (from[i] >> 6 << 4);
        x[i + 8]  = from[i + 4] & 63;
        x[i + 12] = (from[i + 8] >> 4) | (from[i + 4] >> 6 << 4);
    }
    return x;
}

void pack(const SixBits & x, uint8_t * to) {
    for (int i = 0; i < 4; i++) {
        to[i]     = (uint8_t) (x[i] | (x[i + 4] >> 4 << 6));
        to[i + 4] = (uint8_t) (x[i + 8] | (x[i + 12] >> 4 << 6));
        to[i + 8] = (uint8_t) ((x[i + 4] & 15) | (x[i + 12] << 4));
    }
}

// The fifth bits of Q5_K; Q4_K has none.
void interleave_high(const block_q4_K &, block_q4_Kx8 *, int) {}
void interleave_high(const block_q5_K & row, block_q5_Kx8 * to, int r) {
    for (int part = 0; part < 4; part++) {
        memcpy(to->qh + 64*part + 8*r, row.qh + 8*part, 8);
    }
}

// The same for Q4_K and Q5_K, whose scales are packed by sub-block instead of by row.
template <typename From, typename To>
std::vector<char> interleaved_32s(const std::vector<char> & rows, int64_t n_rows, int64_t n_blocks) {
    std::vector<char> out(rows.size());
    auto * to = (To *) out.data();
    const auto * from = (const From *) rows.data();
    for (int64_t group = 0; group < n_rows; group += 8) {
        for (int64_t b = 0; b < n_blocks; b++, to++) {
            SixBits of_sub_block[8];
            for (int r = 0; r < 8; r++) {
                const From & row = from[(group + r)*n_blocks + b];
                to->d[r]    = row.GGML_COMMON_AGGR_U.GGML_COMMON_AGGR_S.d;
                to->dmin[r] = row.GGML_COMMON_AGGR_U.GGML_COMMON_AGGR_S.dmin;
                const SixBits of_row = unpacked(row.scales);
                for (int i = 0; i < 8; i++) {
                    of_sub_block[i][r]     = of_row[i];
                    of_sub_block[i][r + 8] = of_row[i + 8];
                }
                for (int part = 0; part < 16; part++) {
                    memcpy(to->qs + 64*part + 8*r, row.qs + 8*part, 8);
                }
                interleave_high(row, to, r);
            }
            for (int i = 0; i < 8; i++) {
                pack(of_sub_block[i], to->scales + 12*i);
            }
        }
    }
    return out;
}

// The same for Q2_K, where the scales of two sub-blocks stay together.
std::vector<char> interleaved_q2_K(const std::vector<char> & rows, int64_t n_rows, int64_t n_blocks) {
    std::vector<char> out(rows.size());
    auto * to = (block_q2_Kx8 *) out.data();
    const auto * from = (const block_q2_K *) rows.data();
    for (int64_t group = 0; group < n_rows; group += 8) {
        for (int64_t b = 0; b < n_blocks; b++, to++) {
            for (int r = 0; r < 8; r++) {
                const block_q2_K & row = from[(group + r)*n_blocks + b];
                to->d[r]    = row.GGML_COMMON_AGGR_U.GGML_COMMON_AGGR_S.d;
                to->dmin[r] = row.GGML_COMMON_AGGR_U.GGML_COMMON_AGGR_S.dmin;
                for (int part = 0; part < 8; part++) {
                    memcpy(to->scales + 16*part + 2*r, row.scales + 2*part, 2);
                    memcpy(to->qs + 64*part + 8*r, row.qs + 8*part, 8);
                }
            }
        }
    }
    return out;
}

// The same for Q6_K, which has a scale of 8 bits for every 16 values.
std::vector<char> interleaved_q6_K(const std::vector<char> & rows, int64_t n_rows, int64_t n_blocks) {
    std::vector<char> out(rows.size());
    auto * to = (block_q6_Kx8 *) out.data();
    const auto * from = (const block_q6_K *) rows.data();
    for (int64_t group = 0; group < n_rows; group += 8) {
        for (int64_t b = 0; b < n_blocks; b++, to++) {
            for (int r = 0; r < 8; r++) {
                const block_q6_K & row = from[(group + r)*n_blocks + b];
                to->d[r] = row.d;
                for (int part = 0; part < 16; part++) {
                    to->scales[8*part + r] = row.scales[part];
                    memcpy(to->ql + 64*part + 8*r, row.ql + 8*part, 8);
                }
                for (int part = 0; part < 8; part++) {
                    memcpy(to->qh + 64*part + 8*r, row.qh + 8*part, 8);
                }
            }
        }
    }
    return out;
}

// The same for types in layouts of ours, by the function that loads models.
std::vector<char> interleaved_by_library(ggml_type type, const std::vector<char> & rows, int64_t n_rows, int64_t k) {
    std::vector<char> out(n_rows*column_scheme(type).row_size(type, k));
    ggml_tensor to = {};
    to.type = type;
    to.data = out.data();
    std::copy_n(std::array<int64_t, 4>{k, n_rows, 1, 1}.data(), 4, to.ne);
    if (selfspec_interleave(&to, rows.data(), rows.size()) != 0) {
        abort();
    }
    return out;
}

// Writes a scale to a block of IQ1_M, where it is in the upper bits of four numbers.
void set_scale(block_iq1_m & block, ggml_fp16_t scale) {
    for (int i = 0; i < 4; i++) {
        block.scales[2*i + 1] = (uint8_t) ((block.scales[2*i + 1] & 15) | (scale >> 4*i & 15) << 4);
    }
}

// Weights of a type from floats. Of types whose quantization takes long: any bytes, which stand for weights as well, with a scale
// that is a number.
std::vector<char> weights_of(ggml_type type, const std::vector<float> & source, int64_t n_rows, int64_t k) {
    std::vector<char> rows(n_rows*ggml_row_size(type, k));
    if (!codebook_scheme(type).kernel) {
        ggml_quantize_chunk(type, source.data(), rows.data(), 0, n_rows, k, nullptr);
        return rows;
    }
    std::generate(rows.begin(), rows.end(), [] { return (char) rng(); });
    for (size_t i = 0; i < rows.size(); i += ggml_type_size(type)) {
        const ggml_fp16_t scale = ggml_fp32_to_fp16(0.01f);
        if (type == GGML_TYPE_IQ1_M) {
            set_scale(*(block_iq1_m *) (rows.data() + i), scale);
        } else {
            memcpy(rows.data() + i, &scale, sizeof(scale));
        }
    }
    return rows;
}

std::vector<char> in_columns(ggml_type type, const std::vector<char> & rows, int64_t n_rows, int64_t k) {
    switch (type) {
        case GGML_TYPE_Q4_0:   return interleaved<block_q4_0>(rows, n_rows, k/32, 0x88);
        case GGML_TYPE_IQ4_NL: return interleaved<block_iq4_nl>(rows, n_rows, k/32, 0);
        case GGML_TYPE_MXFP4:  return interleaved<block_mxfp4>(rows, n_rows, k/32, 0);
        case GGML_TYPE_Q4_K:   return interleaved_32s<block_q4_K, block_q4_Kx8>(rows, n_rows, k/256);
        case GGML_TYPE_Q5_K:   return interleaved_32s<block_q5_K, block_q5_Kx8>(rows, n_rows, k/256);
        case GGML_TYPE_Q2_K:   return interleaved_q2_K(rows, n_rows, k/256);
        case GGML_TYPE_Q6_K:   return interleaved_q6_K(rows, n_rows, k/256);
        default:               return interleaved_by_library(type, rows, n_rows, k);
    }
}

struct Case {
    ggml_type type;
    Scheme    scheme;
    bool      in_columns;
    int64_t   n_rows, k;
};

void fail(const Case & c, int width, const char * what) {
    printf("%s%s, %d rows of %d, width %d: %s\n", ggml_type_name(c.type), c.in_columns ? " in columns" : "", (int) c.n_rows,
        (int) c.k, width, what);
    n_failed++;
}

// What rounding the activations may add to a sum, and the order of additions: for floats a share of every product, for
// bytes half a step of every activation, which is 1/254 of the largest.
float allowed(const Case & c, const float * w, const float * x) {
    float products = 0, sum = 0, largest = 0;
    for (int64_t i = 0; i < c.k; i++) {
        products += std::fabs(w[i]*x[i]);
        sum      += std::fabs(w[i]);
        largest   = std::max(largest, std::fabs(x[i]));
    }
    const float order = 1e-5f*products;
    switch (c.scheme.form.layout) {
        case Layout::f32:  return order;
        case Layout::f16:  return order + products/2048;
        case Layout::bf16: return order + products/256;
        default:           return order + sum*largest/254;
    }
}

void check(const Case & c) {
    constexpr int N = 77;
    static_assert(MAX_WIDTH == 32, "the widths below are around it");
    const size_t  row_size = c.scheme.row_size(c.type, c.k);
    const auto    source   = random_floats(c.n_rows*c.k);
    auto          rows     = weights_of(c.type, source, c.n_rows, c.k);

    std::vector<float> w(source);
    if (const auto unpack = ggml_get_type_traits(c.type)->to_float) {
        unpack(rows.data(), w.data(), c.n_rows*c.k);
    }
    if (c.in_columns) {
        rows = in_columns(c.type, rows, c.n_rows, c.k);
    }

    const auto   x    = random_floats(N*c.k);
    const size_t size = activation_size(c.scheme.form, c.k);
    Aligned      activations(N*size);
    std::vector<Token> tokens(N);
    std::vector<float> one(N*c.n_rows), wide(N*c.n_rows);
    const Weights weights = {rows.data(), row_size, c.k};
    for (int t = 0; t < N; t++) {
        char * base = activations.data.get() + t*size;
        prepare(c.scheme.form, c.k, 0, c.k, x.data() + t*c.k, base);
        tokens[t] = {activation_view(c.scheme.form, c.k, base), one.data() + t*c.n_rows};
        c.scheme.kernel(weights, 0, c.n_rows, &tokens[t], 1);
    }
    for (int t = 0; t < N; t++) {
        for (int64_t r = 0; r < c.n_rows; r++) {
            const float * wr = w.data() + r*c.k;
            const float * xt = x.data() + t*c.k;
            double want = 0;
            for (int64_t i = 0; i < c.k; i++) {
                want += (double) wr[i]*xt[i];
            }
            if (!(std::fabs(one[t*c.n_rows + r] - want) <= allowed(c, wr, xt))) {
                return fail(c, 1, "not the product");
            }
        }
    }
    for (int width : {2, 3, 4, 5, 6, 7, 8, 9, 10, 13, 16, 17, 24, 31, 32, 33, N}) {
        std::fill(wide.begin(), wide.end(), NAN);
        for (int t = 0; t < width; t++) {
            tokens[t].out = wide.data() + t*c.n_rows;
        }
        c.scheme.kernel(weights, 0, c.n_rows, tokens.data(), width);
        n_compared += width*c.n_rows;
        if (memcmp(wide.data(), one.data(), width*c.n_rows*sizeof(float)) != 0) {
            return fail(c, width, "other bits than at width 1");
        }
    }
}

// A broken activation breaks every result of its token, and no other token's.
void check_not_numbers(const Case & c) {
    auto rows = weights_of(c.type, std::vector<float>(c.n_rows*c.k, 1), c.n_rows, c.k);
    if (c.in_columns) {
        rows = in_columns(c.type, rows, c.n_rows, c.k);
    }
    const size_t size = activation_size(c.scheme.form, c.k);
    Aligned      activations(2*size);
    std::vector<float> out(2*c.n_rows);
    std::vector<Token> tokens;
    for (int t = 0; t < 2; t++) {
        auto   x    = random_floats(c.k);
        char * base = activations.data.get() + t*size;
        x[rng()%c.k] = t == 0 ? NAN : 1;
        prepare(c.scheme.form, c.k, 0, c.k, x.data(), base);
        tokens.push_back({activation_view(c.scheme.form, c.k, base), out.data() + t*c.n_rows});
    }
    c.scheme.kernel({rows.data(), c.scheme.row_size(c.type, c.k), c.k}, 0, c.n_rows, tokens.data(), 2);
    for (int64_t r = 0; r < c.n_rows; r++) {
        if (!std::isnan(out[r]) || !std::isfinite(out[c.n_rows + r])) {
            return fail(c, 2, "hides or spreads what is not a number");
        }
    }
}

// The masked cells of attention are found by comparing halves.
void check_differ16() {
    const int16_t wanted = (int16_t) 0xfc00;
    for (int round = 0; round < 1000; round++) {
        std::vector<int16_t> halves(LANES16);
        uint32_t want = 0;
        for (int i = 0; i < LANES16; i++) {
            halves[i] = rng()%2 ? wanted : (int16_t) rng();
            want |= (uint32_t) (halves[i] != wanted) << i;
        }
        if (differ16(halves.data(), wanted) != want) {
            printf("differ16 finds other lanes\n");
            n_failed++;
            return;
        }
    }
}

}  // namespace

int main() {
    check_differ16();
    int n_kinds = 0;
    const auto check_all = [&](ggml_type type, const Scheme & scheme, bool in_columns) {
        if (!scheme.kernel) {
            return;
        }
        n_kinds++;
        const int64_t size = ggml_blck_size(type);
        for (int64_t n_rows : {1, 2, 3, 5, 7, 13}) {
            for (int64_t n_blocks : {1, 2, 3, 5, 9, 17}) {
                const int64_t odd = size == 1 ? n_blocks*n_blocks*3 : n_blocks*size;
                const Case c = {type, scheme, in_columns, in_columns ? 8*n_rows : n_rows, odd};
                check(c);
                check_not_numbers(c);
            }
        }
    };
    for (int i = 0; i < GGML_TYPE_COUNT; i++) {
        const auto type = (ggml_type) i;
        if (ggml_get_type_traits(type)->to_float && !file_scheme(type, GGML_PREC_UNDEFINED).kernel) {
            printf("%s has no kernel\n", ggml_type_name(type));
            n_failed++;
        }
        check_all(type, file_scheme(type, GGML_PREC_UNDEFINED), false);
        check_all(type, column_scheme(type), true);
    }
    // rows of which few have room to be unpacked at once, and one that has none
    for (const ggml_type type : {GGML_TYPE_Q8_0, GGML_TYPE_Q6_K}) {
        check({type, file_scheme(type, GGML_PREC_UNDEFINED), false, 5, 49152});
        check({type, file_scheme(type, GGML_PREC_UNDEFINED), false, 5, 110592});
    }
    for (const ggml_type type : {GGML_TYPE_F16, GGML_TYPE_BF16}) {
        const Scheme unrounded = float_scheme(type, GGML_PREC_F32);
        n_failed += unrounded.form.layout != Layout::f32;
        check_all(type, unrounded, false);
    }
    printf("%d kinds of weights, %lld results compared, %d wrong\n", n_kinds, (long long) n_compared, n_failed);
    return n_failed > 0;
}
