// Q2_K, Q4_K, Q5_K and Q6_K in the layouts to which upstream repacks them (block_q2_Kx8, block_q4_Kx8, block_q5_Kx8, block_q6_Kx8).
#include "columns_k.h"

#if defined(__AVX2__) && defined(SELFSPEC_KERNELS)

#define GGML_COMMON_IMPL_CPP
#include "repack.h"  // declares the blocks

namespace selfspec {

namespace {

// The blocks' scales and minimums for the whole of it.
template <typename B> vf add_scaled(const B & b, vi total, vi below, vf scale_in, vf sum) {
    sum = fma(to_float(total), mul(row_halves(b.d), scale_in), sum);
    return fnma(to_float(below), mul(row_halves(b.dmin), scale_in), sum);
}

// --- Q4_K and Q5_K: blocks of 256 with eight 6-bit scales and minimums per row ---

// Scales and minimums of sub-block `sub`, eight rows each.
struct ScalesAndMins {
    __m128i scales, mins;

    ScalesAndMins(const uint8_t * packed, int sub) {
        uint32_t u[3];
        memcpy(u, packed + 12*sub, 12);
        const uint32_t s0 = u[0] & 0x3f3f3f3f;
        const uint32_t s1 = (u[2] & 0x0f0f0f0f) | (((u[0] >> 6) & 0x03030303) << 4);
        const uint32_t m0 = u[1] & 0x3f3f3f3f;
        const uint32_t m1 = ((u[2] >> 4) & 0x0f0f0f0f) | (((u[1] >> 6) & 0x03030303) << 4);
        scales = _mm_setr_epi32((int) s0, (int) s1, (int) m0, (int) m1);
        mins   = _mm_srli_si128(scales, 8);
    }
};

// Adds bit `bit` of the bytes in qh, which have the fifth bits of eight sub-blocks. A block of Q4_K has none.
inline vi with_fifth_bit(const block_q4_Kx8 &, vi w, int, int)        { return w; }
inline vi with_fifth_bit(const block_q5_Kx8 & b, vi w, int j, int bit) {
    return add_where(w, eight_rows(b.qh, j), repeat((int8_t) (1 << bit)), 16);
}

// Two sub-blocks: one in the lower nibbles, one in the upper.
template <typename B, int LIMIT> struct Of32s {
    using block = B;
    using Total = vi;
    using Scale = vi;
    static constexpr Form FORM = {Layout::q8k_sums32};
    static constexpr int  GROUPS = 4, RUNS = 2, PAIRS = 1;
    const B &           b;
    int                 group;
    const ScalesAndMins sub[2];
    vi                  raw[PER_RUN];

    Of32s(const B & b, int group) : b(b), group(group), sub{{b.scales, 2*group}, {b.scales, 2*group + 1}} {
        each<PER_RUN>([&](auto j) { raw[j] = eight_rows(b.qs + 256*group, j); });
    }
    template <int RUN> vi weights(int j) const {
        return with_fifth_bit(b, and_(RUN == 0 ? raw[j] : right<4>(raw[j]), repeat(15)), j, 2*group + RUN);
    }
    template <int RUN> vi scale() const { return row_factors(sub[RUN].scales); }
    __m128i pairs(int) const            { return _mm_unpacklo_epi8(sub[0].mins, sub[1].mins); }

    template <typename W> static vi add(vi total, W w, const int8_t * values, vi scale) {
        return add_products<LIMIT, 0, PER_RUN>(total, w, values, scale);
    }
    static vf finish(const B & b, vi total, vi below, vf scale_in, vf sum) { return add_scaled(b, total, below, scale_in, sum); }
};

using Q4_K = Of32s<block_q4_Kx8, 16>;
using Q5_K = Of32s<block_q5_Kx8, 32>;

// --- Q2_K and Q6_K: blocks of 256 with sixteen scales per row ---

// Scales and minimums of four bits.
struct Q2_K : TwoBits<block_q2_Kx8, 4> {
    using TwoBits::TwoBits;
    template <int RUN> vi weights(int j) const { return two_bits<RUN>(j); }

    __m128i both(int run) const { return _mm_loadu_si128((const __m128i *) (b.scales + 64*group + 16*run)); }
    template <int RUN> Scale scale() const {
        const __m128i bytes = _mm_and_si128(both(RUN), _mm_set1_epi8(15));
        const __m128i sides = _mm_shuffle_epi8(bytes, _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
        return scale_of(sides);
    }
    __m128i pairs(int run) const { return _mm_and_si128(_mm_srli_epi16(both(run), 4), _mm_set1_epi8(15)); }
    static vf finish(const block & b, vi total, vi below, vf scale_in, vf sum) {
        return add_scaled(b, total, below, scale_in, sum);
    }
};

// Signed scales of eight bits, and weights stored with 32 added. Four low bits of a weight are in ql, two in qh. A sum of products begins
// where 32 times the activations is subtracted, so that those of eight weights fit 16 bits and have one mac2.
struct Q6_K : Of16s<64> {
    using block = block_q6_Kx8;
    static constexpr Form FORM  = {HAS_VNNI ? Layout::q8k_starts : Layout::q8k_halves, 32};
    static constexpr int  PAIRS = 0;
    const block & b;
    int           group;
    vi            high[PER_RUN];

    Q6_K(const block & b, int group) : b(b), group(group) {
        each<PER_RUN>([&](auto j) { high[j] = eight_rows(b.qh + 256*group, j); });
    }
    template <int RUN> vi weights(int j) const {
        const vi raw = eight_rows(b.ql + 512*group + 256*(RUN%2), j);
        const vi up  = RUN < 2 ? left<RUN == 0 ? 4 : 2>(high[j]) : right<RUN == 3 ? 2 : 0>(high[j]);
        return or_(and_(RUN < 2 ? raw : right<4>(raw), repeat(15)), and_(up, repeat(0x30)));
    }

    template <int RUN> Scale scale() const { return scale_of(load16(b.scales + 64*group + 16*RUN)); }

    template <typename W> static vi add(vi total, W w, const int8_t * values, const Scale & scale) {
        if constexpr (!HAS_VNNI) {
            return add_from_halves<32>(total, w, values, scale);
        }
        const int32_t * starts = ((const ColumnRun *) values)->starts;
        each<PER_RUN/2>([&](auto i) {
            const vi first = dot4(for_rows(starts + EACH/4*i), w(2*i), for_rows(values + EACH*2*i));
            const vi both  = dot4(first, w(2*i + 1), for_rows(values + EACH*(2*i + 1)));
            total = mac2(total, both, i < PER_RUN/4 ? scale.first : scale.second);
        });
        return total;
    }
    static vf finish(const block & b, vi total, vi, vf scale_in, vf sum) {
        return fma(to_float(total), mul(row_halves(b.d), scale_in), sum);
    }
};

}  // namespace

Scheme k_column_scheme(ggml_type type) {
    switch (type) {
        case GGML_TYPE_Q2_K: return COLUMNS<Q2_K>;
        case GGML_TYPE_Q4_K: return COLUMNS<Q4_K>;
        case GGML_TYPE_Q5_K: return COLUMNS<Q5_K>;
        case GGML_TYPE_Q6_K: return COLUMNS<Q6_K>;
        default:             return our_column_scheme(type);
    }
}

}  // namespace selfspec
#endif
