// Q2_K to Q6_K, IQ4_XS and ternary weights in the file's layout.
#include "superblocks.h"

#if defined(SELFSPEC_KERNELS)

namespace selfspec {

namespace {

// The products of W-weight parts' bytes and sums of activations.
template <int W> vi with_sums(v16 bytes, const int16_t * sums) {
    if constexpr (W == 16) {
        return products16(bytes, sums);
    } else {
        return products8(bytes, sums);
    }
}

// --- weights ---

// Weights stored with 2^SHIFT added; the sums of 16 activations are used to subtract its part of the product.
template <int SHIFT> struct Shifted {
    static constexpr int W = 16;
    static constexpr Form FORM = {Layout::q8k_sums16};
    Scales<16> scales;

    Shifted(v16 of_parts, ggml_half d) : scales{of_parts, from_half(d)} {}
    vf finish(vi total, const Activations & in, int64_t k, vf acc) const {
        const vi less = left32<SHIFT>(with_sums<16>(scales.bytes, in.sums + k/16));
        return fma(to_float(sub32(total, less)), scales.with(in, k), acc);
    }
};

struct Q6_K : Shifted<5> {
    using block = block_q6_K;
    const block * b;

    explicit Q6_K(const block * b) : Shifted(load16(b->scales), b->d), b(b) {}

    // Four low bits, and two more elsewhere. Runs of 32 alternate between the lower and the upper nibbles of 64 bytes; each
    // takes the next two bits of 32 bytes.
    Small vector(int i) const {
        const int first = i*VB;
        const vi  ql    = load(b->ql + 64*(first/128) + first%64);
        return {or_(and_(first%128 < 64 ? ql : right<4>(ql), repeat(15)), high_pairs(b->qh, i))};
    }
};

// Two low bits, and a third elsewhere.
struct Q3_K : Shifted<2> {
    using block = block_q3_K;
    const block * b;

    explicit Q3_K(const block * b) : Shifted(six_bits(b->scales), b->d), b(b) {}
    Small vector(int i) const { return {with_bit<2>(runs<2>(b->qs, i), b->hmask, i)}; }

    static v16 six_bits(const uint8_t * from) {  // sixteen scales stored with 32 added
        uint32_t u[3];
        memcpy(u, from, 12);
        const auto four = [&](int i) {
            return ((u[i%2] >> (i/2*4)) & 0x0f0f0f0f) | (((u[2] >> (2*i)) & 0x03030303) << 4);
        };
        return plus8(words16(four(0), four(1), four(2), four(3)), -32);
    }
};

// -1, 0 and 1 with 1 added; a block has only one scale.
struct Ternary {
    static constexpr int  W    = K_STEP;
    static constexpr Form FORM = {Layout::q8k_sums32};
    Scales<W> scales;

    explicit Ternary(ggml_half d) : scales{plus8(words16(0, 0, 0, 0), 1), from_half(d)} {}
    vf finish(vi total, const Activations & in, int64_t k, vf acc) const {
        const vi less = with_sums<32>(scales.bytes, in.sums + k/32);
        return fma(to_float(sub32(PairScales<Tiny, W>::sum(total), less)), scales.with(in, k), acc);
    }
};

struct TQ2_0 : Ternary {
    using block = block_tq2_0;
    const block * b;

    explicit TQ2_0(const block * b) : Ternary(b->d), b(b) {}
    Tiny vector(int i) const { return {runs<2>(b->qs, i)}; }
};

// By weight of a block of TQ1_0: the power of three that brings its digit to the front.
struct Powers {
    uint8_t of[K_STEP] = {};
    constexpr Powers() {
        constexpr uint8_t POWER[] = {1, 3, 9, 27, 81};
        for (int i = 0; i < K_STEP; i++) {
            of[i] = POWER[i < 160 ? i/32 : i < 240 ? (i - 160)/16 : (i - 240)/4];
        }
    }
};
constexpr Powers POWERS;

// Five digits of base 3 in a byte, as a fraction: its product with 3^i has digit i in front. The first 32 bytes have 160 weights, 16
// more 80, and the last four, with four digits each, 16.
struct TQ1_0 : Ternary {
    using block = block_tq1_0;
    const block * b;

    explicit TQ1_0(const block * b) : Ternary(b->d), b(b) {}
    Tiny vector(int i) const {
#if defined(SELFSPEC_AVX2)
        if (i < 5) {  // all of one power: additions take less time than products
            vi x = load(b->qs);
            for (int power = 0; power < i; power++) {
                x = add8(x, add8(x, x));
            }
            return {front_digits(x)};
        }
#endif
        const auto part = [&](int j) { return sixteen(VB/16*i + j/2); };
        return {front_digits(times_pairs(every_second(0, part), load(POWERS.of + i*VB)))};
    }

    // The bytes of weights 16*j to 16*j + 15.
    v16 sixteen(int j) const {
        if (j == 15) {
            uint32_t last;
            memcpy(&last, b->qh, sizeof(last));
            return words16(last, last, last, last);
        }
        return load16(b->qs + (j < 10 ? j%2*16 : 32));
    }
};

// Weights with a minimum for every PART of them, which is multiplied by the sum of PART activations and subtracted.
template <int PART> struct Minimums {
    static constexpr int  W    = PART;
    static constexpr Form FORM = {W == 16 ? Layout::q8k_sums16 : Layout::q8k_sums32};
    Scales<W> scales;
    v16       mins;
    float     dmin;

    template <typename B> Minimums(const B * b, v16 of_parts, v16 mins) :
        scales{of_parts, from_half(b->GGML_COMMON_AGGR_U.GGML_COMMON_AGGR_S.d)}, mins(mins),
        dmin(from_half(b->GGML_COMMON_AGGR_U.GGML_COMMON_AGGR_S.dmin)) {}

    vf finish(vi total, const Activations & in, int64_t k, vf acc) const {
        acc = fma(to_float(total), scales.with(in, k), acc);
        const vi below = with_sums<W>(mins, in.sums + k/W);
        return fnma(to_float(below), mul(repeat_f(dmin), repeat_f(in.scales[k/K_STEP])), acc);
    }
};

struct Q2_K : Minimums<16> {
    using block = block_q2_K;
    const block * b;

    explicit Q2_K(const block * b) : Minimums(b, four_bits<0>(load16(b->scales)), four_bits<4>(load16(b->scales))), b(b) {}
    Small vector(int i) const { return {runs<2>(b->qs, i)}; }
};

// Eight scales, then eight minimums, of six bits.
template <typename B> struct EightMinimums : Minimums<32> {
    using block = B;
    const B * b;

    explicit EightMinimums(const B * b) : EightMinimums(b, six_bits(b->scales)) {}
    EightMinimums(const B * b, v16 both) : Minimums(b, both, upper8(both)), b(b) {}

    static v16 six_bits(const uint8_t * from) {
        uint32_t u[3];
        memcpy(u, from, 12);
        const uint32_t s0 = u[0] & 0x3f3f3f3f;
        const uint32_t s1 = (u[2] & 0x0f0f0f0f) | (((u[0] >> 6) & 0x03030303) << 4);
        const uint32_t m0 = u[1] & 0x3f3f3f3f;
        const uint32_t m1 = ((u[2] >> 4) & 0x0f0f0f0f) | (((u[1] >> 6) & 0x03030303) << 4);
        return words16(s0, s1, m0, m1);
    }
};

struct Q4_K : EightMinimums<block_q4_K> {
    using EightMinimums::EightMinimums;
    Small vector(int i) const { return {runs<4>(b->qs, i)}; }
};

struct Q5_K : EightMinimums<block_q5_K> {
    using EightMinimums::EightMinimums;
    Small vector(int i) const { return {with_bit<4>(runs<4>(b->qs, i), b->qh, i)}; }
};

// Nibbles that encode signed values, with eight scales of six bits, stored with 32 added.
struct IQ4_XS : Plain<32> {
    using block = block_iq4_xs;
    const block * b;

    explicit IQ4_XS(const block * b) : Plain(six_bits(b), from_half(b->d)), b(b) {}
    Signed vector(int i) const { return Signed(lookup(load16(kvalues_iq4nl), half_nibbles(b->qs, i))); }

    static v16 six_bits(const block * b) {
        uint32_t low;
        memcpy(&low, b->scales_l, 4);
        return four_and_two_bits(low, b->scales_h);
    }
};

template <typename P> constexpr Scheme SCHEME = {P::FORM, product<P>};

}  // namespace

Scheme superblock_scheme(ggml_type type) {
    switch (type) {
        case GGML_TYPE_Q2_K:   return SCHEME<Q2_K>;
        case GGML_TYPE_Q3_K:   return SCHEME<Q3_K>;
        case GGML_TYPE_Q4_K:   return SCHEME<Q4_K>;
        case GGML_TYPE_Q5_K:   return SCHEME<Q5_K>;
        case GGML_TYPE_Q6_K:   return SCHEME<Q6_K>;
        case GGML_TYPE_TQ1_0:  return SCHEME<TQ1_0>;
        case GGML_TYPE_TQ2_0:  return SCHEME<TQ2_0>;
        case GGML_TYPE_IQ4_XS: return SCHEME<IQ4_XS>;
        default:               return {};
    }
}

}  // namespace selfspec
#endif
