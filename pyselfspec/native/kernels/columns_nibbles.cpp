// IQ1 to IQ3 with eight rows interleaved and four bits for each weight, where there is no AVX-512 VBMI to look up their indices.
//
// In the file an index stands for eight weights (IQ1, IQ2) or four (IQ3). Looking it up takes longer than reading 4.6 bits from memory, by
// which one instruction looks up 32 weights. But weights take 1.3 (IQ3_S) to 2.9 times (IQ1_S) as much memory as in the file.
#define GGML_COMMON_DECL_CPP
#define GGML_COMMON_IMPL_CPP
#include "columns_k.h"
#include "interleave.h"

#if !defined(SELFSPEC_BYTE_TABLES)

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>

namespace selfspec {

template <> inline uint16_t scale_of(const block_iq1_m & row) { return scale_of_numbers(row.scales); }

namespace {

// A group is 64 weights of each row, in the order of IQ4_XS in columns_ours.cpp.
struct block_nibblesx8 {
    ggml_half d[8];
    uint8_t   scales[16][8];  // of 16 weights
    uint8_t   qs[1024];
};

// A weight is d/PART times its scale times a signed size. Bits of the size, from SHIFT on, are its code: a nibble is 8 + code, or for a
// negative weight 7 - code.
using Sizes = std::array<int8_t, 8>;  // by code
constexpr Sizes IN_IQ1     = {1, 0, 0, 7, 9};
constexpr Sizes IN_IQ2     = {0, 8, 0, 25, 0, 43};
constexpr Sizes IN_IQ3_XXS = {4, 12, 20, 28, 36, 44, 52, 62};
constexpr Sizes IN_IQ3_S   = {1, 3, 5, 7, 9, 11, 13, 15};

template <typename Block, int PART_, int SHIFT_, const Sizes & SIZES_> struct Type {
    using Row = Block;
    static constexpr int           PART = PART_, SHIFT = SHIFT_;
    static constexpr const Sizes & SIZES = SIZES_;
};
using IQ1_S   = Type<block_iq1_s, 8, 1, IN_IQ1>;
using IQ1_M   = Type<block_iq1_m, 8, 1, IN_IQ1>;
using IQ2_XXS = Type<block_iq2_xxs, 8, 3, IN_IQ2>;
using IQ2_XS  = Type<block_iq2_xs, 8, 3, IN_IQ2>;
using IQ2_S   = Type<block_iq2_s, 8, 3, IN_IQ2>;
using IQ3_XXS = Type<block_iq3_xxs, 4, 3, IN_IQ3_XXS>;
using IQ3_S   = Type<block_iq3_s, 1, 1, IN_IQ3_S>;

// Eight weights: bytes of their sizes, and bytes that are not zero where a weight is negative.
struct Eight {
    uint64_t sizes, negative;
};

uint64_t two_fours(uint32_t first, uint32_t second)   { return first | (uint64_t) second << 32; }
uint64_t one_bit_of_each(uint64_t byte)               { return byte*0x0101010101010101 & 0x8040201008040201; }
uint64_t seven_signs(const void * four_sevens, int i) {
    uint32_t all;
    memcpy(&all, four_sevens, 4);
    return ksigns64[all >> 7*i & 127];
}

// Eight times -1, 0 or 1 and an eighth, which is added or subtracted.
Eight with_eighth(uint64_t weights, bool subtracted) {
    Eight out = {};
    for (int shift = 0; shift < 64; shift += 8) {
        const int value = 8*(int8_t) (weights >> shift) + (subtracted ? -1 : 1);
        out.sizes    |= (uint64_t) std::abs(value) << shift;
        out.negative |= (uint64_t) (value < 0) << shift;
    }
    return out;
}

Eight eight(const block_iq1_s & b, int i) {
    return with_eighth(iq1s_grid[b.qs[i] | (b.qh[i/4] >> 3*(i%4) & 7) << 8], b.qh[i/4] >> 15);
}
Eight eight(const block_iq1_m & b, int i) {
    const int nibble = b.qh[i/2] >> 4*(i%2);
    return with_eighth(iq1s_grid[b.qs[i] | (nibble & 7) << 8], nibble >> 3 & 1);
}
Eight eight(const block_iq2_xxs & b, int i) {
    const uint16_t * part = b.qs + 4*(i/4);
    return {iq2xxs_grid[((const uint8_t *) part)[i%4]], seven_signs(part + 2, i%4)};
}
Eight eight(const block_iq2_xs & b, int i) { return {iq2xs_grid[b.qs[i] & 511], ksigns64[b.qs[i] >> 9]}; }
Eight eight(const block_iq2_s & b, int i) {
    return {iq2s_grid[b.qs[i] | (b.qh[i/4] << (8 - 2*(i%4)) & 0x300)], one_bit_of_each(b.qs[32 + i])};
}
Eight eight(const block_iq3_xxs & b, int i) {
    return {two_fours(iq3xxs_grid[b.qs[2*i]], iq3xxs_grid[b.qs[2*i + 1]]), seven_signs(b.qs + 64 + 4*(i/4), i%4)};
}
Eight eight(const block_iq3_s & b, int i) {
    const auto four = [&](int j) { return iq3s_grid[b.qs[j] | (b.qh[j/8] << (8 - j%8) & 256)]; };
    return {two_fours(four(2*i), four(2*i + 1)), one_bit_of_each(b.signs[i])};
}

// The scale of weights 16*i to 16*i + 15 has three or four bits: x for 2x + 1.
int scale_bits(const block_iq1_s & b, int i)   { return b.qh[i/2] >> 12 & 7; }
int scale_bits(const block_iq1_m & b, int i) {
    uint16_t four;
    memcpy(&four, b.scales + 2*(i/4), sizeof(four));
    return four >> 3*(i%4) & 7;
}
int scale_bits(const block_iq2_xxs & b, int i) { return b.qs[4*(i/2) + 3] >> 12; }
int scale_bits(const block_iq2_xs & b, int i)  { return b.scales[i/2] >> 4*(i%2) & 15; }
int scale_bits(const block_iq2_s & b, int i)   { return b.scales[i/2] >> 4*(i%2) & 15; }
int scale_bits(const block_iq3_xxs & b, int i) { return b.qs[64 + 4*(i/2) + 3] >> 4; }
int scale_bits(const block_iq3_s & b, int i)   { return b.scales[i/4] >> 4*(i/2%2) & 15; }

template <typename T> struct Rows : block_nibblesx8 {};

template <typename T> void interleave(const typename T::Row & row, int r, Rows<T> & to) {
    constexpr uint64_t EACH_BYTE = 0x0101010101010101;
    for (int i = 0; i < 16; i++) {
        to.scales[i][r] = (uint8_t) (2*scale_bits(row, i) + 1);
    }
    for (int i = 0; i < 32; i++) {
        const Eight    weights = eight(row, i);
        const uint64_t above   = (weights.sizes >> T::SHIFT & 7*EACH_BYTE) | 8*EACH_BYTE;
        const uint64_t top     = ((weights.negative & 127*EACH_BYTE) + 127*EACH_BYTE) | weights.negative;
        const uint64_t nibbles = above ^ 15*(top >> 7 & EACH_BYTE);
        uint8_t * const at = to.qs + 256*(i/8) + 64*(i%4) + 8*r;  // of 32 weights in lower nibbles and 32 in upper ones
        uint64_t before;
        memcpy(&before, at, 8);
        before |= nibbles << 4*(i/4%2);
        memcpy(at, &before, 8);
    }
}

}  // namespace

int interleave_codebook(ggml_tensor * t, const void * data, size_t size) {
    switch (t->type) {
        case GGML_TYPE_IQ1_S:   return interleave_all<block_iq1_s, Rows<IQ1_S>>(t, data, size);
        case GGML_TYPE_IQ1_M:   return interleave_all<block_iq1_m, Rows<IQ1_M>>(t, data, size);
        case GGML_TYPE_IQ2_XXS: return interleave_all<block_iq2_xxs, Rows<IQ2_XXS>>(t, data, size);
        case GGML_TYPE_IQ2_XS:  return interleave_all<block_iq2_xs, Rows<IQ2_XS>>(t, data, size);
        case GGML_TYPE_IQ2_S:   return interleave_all<block_iq2_s, Rows<IQ2_S>>(t, data, size);
        case GGML_TYPE_IQ3_XXS: return interleave_all<block_iq3_xxs, Rows<IQ3_XXS>>(t, data, size);
        case GGML_TYPE_IQ3_S:   return interleave_all<block_iq3_s, Rows<IQ3_S>>(t, data, size);
        default:                return -1;
    }
}

#if defined(__AVX2__) && defined(SELFSPEC_KERNELS)

namespace {

// Weights are unsigned with the largest size added.
template <typename T> struct Nibbles {
    using block = block_nibblesx8;
    using Total = vi;
    struct Scale { vi first, second; };
    static constexpr int  GROUPS = 4, RUNS = 2, PAIRS = 0, OFFSET = *std::max_element(T::SIZES.begin(), T::SIZES.end());
    static constexpr Form FORM   = {Layout::q8k_halves, OFFSET};
    const block & b;
    int           group;
    vi            raw[PER_RUN];

    Nibbles(const block & b, int group) : b(b), group(group) {
        each<PER_RUN>([&](auto j) { raw[j] = eight_rows(b.qs + 256*group, j); });
    }
    template <int RUN> vi weights(int j) const {
        alignas(16) static constexpr auto TABLE = [] {
            std::array<int8_t, 16> table = {};
            for (int i = 0; i < 8; i++) {
                table[8 + i] = (int8_t) (OFFSET + T::SIZES[i]);
                table[7 - i] = (int8_t) (OFFSET - T::SIZES[i]);
            }
            return table;
        }();
        return lookup(load16(TABLE.data()), and_(RUN == 0 ? raw[j] : right<4>(raw[j]), repeat(15)));
    }
    template <int RUN> Scale scale() const {
        const v16 sides = load16(b.scales[4*group + 2*RUN]);
        return {row_words(sides), row_words(upper8(sides))};
    }

    template <typename W> static vi add(vi total, W w, const int8_t * values, const Scale & scale) {
        return add_from_halves<OFFSET>(total, w, values, scale);
    }
    static vf finish(const block & b, vi total, vi, vf scale_in, vf sum) {
        return fma(to_float(total), mul(mul(row_halves(b.d), repeat_f(1.0f/T::PART)), scale_in), sum);
    }
};

template <typename T> constexpr Scheme NIBBLES = {Nibbles<T>::FORM, product<Nibbles<T>>, INT32_MAX, sizeof(block_nibblesx8)/8};

}  // namespace

Scheme codebook_column_scheme(ggml_type type) {
    switch (type) {
        case GGML_TYPE_IQ1_S:   return NIBBLES<IQ1_S>;
        case GGML_TYPE_IQ1_M:   return NIBBLES<IQ1_M>;
        case GGML_TYPE_IQ2_XXS: return NIBBLES<IQ2_XXS>;
        case GGML_TYPE_IQ2_XS:  return NIBBLES<IQ2_XS>;
        case GGML_TYPE_IQ2_S:   return NIBBLES<IQ2_S>;
        case GGML_TYPE_IQ3_XXS: return NIBBLES<IQ3_XXS>;
        case GGML_TYPE_IQ3_S:   return NIBBLES<IQ3_S>;
        default:                return {};
    }
}

#endif

}  // namespace selfspec
#endif
