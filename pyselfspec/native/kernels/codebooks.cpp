// IQ1 to IQ3 in the file's layout: an index stands for eight or four weights of a table; IQ2 and IQ3 store their signs apart.
#include "interleave.h"
#include "superblocks.h"

#if defined(SELFSPEC_KERNELS)

namespace selfspec {

namespace {

constexpr int EIGHTS = VB/8, FOURS = VB/4;  // in a vector

template <size_t SIZE> SELFSPEC_PART uint64_t read(const void * p) {
    uint64_t x = 0;
    memcpy(&x, p, SIZE);
    return x;
}

// Four times seven signs in the lower bits of both halves: eight each, which are an even number.
SELFSPEC_PART uint64_t even(uint64_t x) {
    constexpr uint64_t SEVEN = 0x0000007f0000007f;
    const uint64_t signs = (x & SEVEN) | (x << 1 & SEVEN << 8) | (x << 2 & SEVEN << 16) | (x << 3 & SEVEN << 24);
    uint64_t sum = signs ^ signs >> 4;
    sum ^= sum >> 2;
    sum ^= sum >> 1;
    return signs | (sum & 0x0101010101010101) << 7;
}

// Eight parts of 32 weights have 32 bits each, every STRIDE bytes: four times seven signs, and a scale in the upper four bits.
template <int STRIDE> struct SignsBesideScales : Plain<32> {
    const char * parts;

    SignsBesideScales(const void * parts, float d) :
        Plain(odd(top_nibbles<STRIDE>((const char *) parts)), d), parts((const char *) parts) {}

    uint64_t part(int i) const { return read<4>(parts + STRIDE*i); }
    SELFSPEC_PART vi with_signs(vi w, int i) const {  // of vector i
        if constexpr (VB == 64) {
            return negate_where(w, even(part(2*i) | part(2*i + 1) << 32));
        }
        return negate(w, eights([&](int j) {
            const int eight = EIGHTS*i + j;
            return ksigns64 + (part(eight/4) >> 7*(eight%4) & 127);
        }));
    }
};

// Scales of which every byte has two, the first in its lower bits.
template <size_t SIZE> v16 odd_nibbles(const uint8_t (&bytes)[SIZE]) {
    const uint64_t x    = read<SIZE>(bytes);
    const v16      both = words16((uint32_t) x, (uint32_t) (x >> 32), 0, 0);
    return odd(alternate(four_bits<0>(both), four_bits<4>(both)));
}

struct IQ2_XXS : SignsBesideScales<8> {
    using block = block_iq2_xxs;
    const block * b;

    explicit IQ2_XXS(const block * b) : SignsBesideScales(b->qs + 2, from_half(b->d)/8), b(b) {}

    SELFSPEC_PART Signed vector(int i) const {
        const auto at = [&](int j) {
            const int eight = EIGHTS*i + j;
            return iq2xxs_grid + ((const uint8_t *) b->qs)[8*(eight/4) + eight%4];
        };
        return Signed(with_signs(eights(at), i));
    }
};

struct IQ2_XS : Plain<16> {
    using block = block_iq2_xs;
    const block * b;

    explicit IQ2_XS(const block * b) : Plain(odd_nibbles(b->scales), from_half(b->d)/8), b(b) {}

    SELFSPEC_PART Signed vector(int i) const {
        const auto index = [&](int j) { return b->qs[EIGHTS*i + j]; };
        const vi signs = eights([&](int j) { return ksigns64 + (index(j) >> 9); });
        return Signed(negate(eights([&](int j) { return iq2xs_grid + (index(j) & 511); }), signs));
    }
};

struct IQ2_S : Plain<16> {
    using block = block_iq2_s;
    const block * b;

    explicit IQ2_S(const block * b) : Plain(odd_nibbles(b->scales), from_half(b->d)/8), b(b) {}

    SELFSPEC_PART Signed vector(int i) const {
        const auto at = [&](int j) {
            const int eight = EIGHTS*i + j;
            return iq2s_grid + (b->qs[eight] | (b->qh[eight/4] << (8 - 2*(eight%4)) & 0x300));
        };
        return Signed(negate_where(eights(at), read<EIGHTS>(b->qs + 32 + EIGHTS*i)));
    }
};

struct IQ3_XXS : SignsBesideScales<4> {
    using block = block_iq3_xxs;
    const block * b;

    explicit IQ3_XXS(const block * b) : SignsBesideScales(b->qs + 64, from_half(b->d)/4), b(b) {}

    SELFSPEC_PART Signed vector(int i) const {
        return Signed(with_signs(fours([&](int j) { return iq3xxs_grid + b->qs[FOURS*i + j]; }), i));
    }
};

struct IQ3_S : Plain<32> {
    using block = block_iq3_s;
    const block * b;

    explicit IQ3_S(const block * b) : Plain(odd_nibbles(b->scales), from_half(b->d)), b(b) {}

    SELFSPEC_PART Signed vector(int i) const {
        const auto at = [&](int j) {
            const int four = FOURS*i + j;
            return iq3s_grid + (b->qs[four] | (b->qh[four/8] << (8 - four%8) & 256));
        };
        return Signed(negate_where(fours(at), read<EIGHTS>(b->signs + EIGHTS*i)));
    }
};

// IQ1: eight weights of -1, 0 and 1 from a table, to each of which an eighth is added or subtracted. Here all are times eight.

// 32 weights have one scale, and add or subtract alike: that is done with the sums of their activations.
struct IQ1_S {
    using block = block_iq1_s;
    static constexpr int  W    = 32;
    static constexpr Form FORM = {Layout::q8k_sums32};
    const block * b;
    Scales<W>     scales;
    v16           eighths;  // scales with the sign of the eighth

    explicit IQ1_S(const block * b) : b(b) {
        int8_t x[16] = {}, with_sign[16] = {};
        for (int i = 0; i < 8; i++) {
            x[i]         = (int8_t) (2*(b->qh[i] >> 12 & 7) + 1);
            with_sign[i] = (int8_t) (b->qh[i] >> 15 ? -x[i] : x[i]);
        }
        scales  = {load16(x), from_half(b->d)/8};
        eighths = load16(with_sign);
    }

    SELFSPEC_PART Signed vector(int i) const {
        const auto at = [&](int j) {
            const int eight = EIGHTS*i + j;
            return iq1s_grid + (b->qs[eight] | (b->qh[eight/4] >> 3*(eight%4) & 7) << 8);
        };
        return Signed(eights(at));
    }

    vf finish(vi total, const Activations & in, int64_t k, vf acc) const {
        const vi all = add32(left32<3>(total), products8(eighths, in.sums + k/32));
        return fma(to_float(all), scales.with(in, k), acc);
    }
};

// Four numbers have four scales of three bits each, and the block's scale in their upper bits.
struct IQ1_M : Plain<16> {
    using block = block_iq1_m;
    const block * b;

    explicit IQ1_M(const block * b) : Plain(three_bits(read<8>(b->scales)), from_half(scale_of_numbers(b->scales))/8), b(b) {}

    SELFSPEC_PART Signed vector(int i) const {
        static constexpr uint64_t LESS[] = {0xffffffffffffffff, 0x0101010101010101};
        const auto nibble = [&](int j) { return b->qh[(EIGHTS*i + j)/2] >> 4*((EIGHTS*i + j)%2); };
        const auto weight = [&](int j) { return iq1s_grid + (b->qs[EIGHTS*i + j] | (nibble(j) & 7) << 8); };
        const auto less   = [&](int j) { return LESS + (nibble(j) >> 3 & 1); };
        return Signed(sub8(and_(left<3>(eights(weight)), repeat((int8_t) 0xf8)), eights(less)));
    }

    static v16 three_bits(uint64_t from) {
        const auto four = [&](int i) {
            const uint32_t x = (uint32_t) (from >> 16*i);
            return (x & 7) | (x & 7 << 3) << 5 | (x & 7 << 6) << 10 | (x & 7 << 9) << 15;
        };
        return odd(words16(four(0), four(1), four(2), four(3)));
    }
};

// Upstream unpacks them into tiles for prompts.
template <typename P> constexpr Scheme SCHEME = {P::FORM, product<P, TILE>, MAX_WIDTH};

}  // namespace

Scheme codebook_scheme(ggml_type type) {
    switch (type) {
        case GGML_TYPE_IQ1_S:   return SCHEME<IQ1_S>;
        case GGML_TYPE_IQ1_M:   return SCHEME<IQ1_M>;
        case GGML_TYPE_IQ2_XXS: return SCHEME<IQ2_XXS>;
        case GGML_TYPE_IQ2_XS:  return SCHEME<IQ2_XS>;
        case GGML_TYPE_IQ2_S:   return SCHEME<IQ2_S>;
        case GGML_TYPE_IQ3_XXS: return SCHEME<IQ3_XXS>;
        case GGML_TYPE_IQ3_S:   return SCHEME<IQ3_S>;
        default:                return {};
    }
}

}  // namespace selfspec
#endif
