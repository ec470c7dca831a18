// IQ2 and IQ3 in the file's layout: an index stands for eight or four weights of a table, whose signs are stored apart.
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

// Scales of four bits, x, are 2x + 1.
v16 odd(v16 x) { return plus8(twice8(x), 1); }

// Negates the bytes of w for which those of `signs` are all ones.
vi negate(vi w, vi signs) { return sub8(xor_(w, signs), signs); }

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
template <int STRIDE> struct SignsAndScales {
    const char * first;

    uint64_t part(int i) const { return read<4>(first + STRIDE*i); }
    v16 scales() const         { return odd(top_nibbles<STRIDE>(first)); }

    SELFSPEC_PART vi with_signs(vi w, int i) const {
        if constexpr (VB == 64) {
            return negate_where(w, even(part(2*i) | part(2*i + 1) << 32));
        }
        return negate(w, eights([&](int j) {
            const int eight = EIGHTS*i + j;
            return ksigns64 + (part(eight/4) >> 7*(eight%4) & 127);
        }));
    }
};

// Scales of which every byte of x has two, the first in its lower bits.
v16 odd_nibbles(uint64_t x) {
    const v16 both = words16((uint32_t) x, (uint32_t) (x >> 32), 0, 0);
    return odd(alternate(four_bits<0>(both), four_bits<4>(both)));
}

struct IQ2_XXS : Plain<32> {
    using block = block_iq2_xxs;
    const block *     b;
    SignsAndScales<8> more;

    explicit IQ2_XXS(const block * b) : IQ2_XXS(b, {(const char *) (b->qs + 2)}) {}
    IQ2_XXS(const block * b, SignsAndScales<8> more) : Plain(more.scales(), from_half(b->d)/8), b(b), more(more) {}

    SELFSPEC_PART Signed vector(int i) const {
        const auto at = [&](int j) {
            const int eight = EIGHTS*i + j;
            return iq2xxs_grid + ((const uint8_t *) b->qs)[8*(eight/4) + eight%4];
        };
        return Signed(more.with_signs(eights(at), i));
    }
};

struct IQ2_XS : Plain<16> {
    using block = block_iq2_xs;
    const block * b;

    explicit IQ2_XS(const block * b) : Plain(odd_nibbles(read<sizeof(b->scales)>(b->scales)), from_half(b->d)/8), b(b) {}

    SELFSPEC_PART Signed vector(int i) const {
        const auto index = [&](int j) { return b->qs[EIGHTS*i + j]; };
        const vi signs = eights([&](int j) { return ksigns64 + (index(j) >> 9); });
        return Signed(negate(eights([&](int j) { return iq2xs_grid + (index(j) & 511); }), signs));
    }
};

struct IQ2_S : Plain<16> {
    using block = block_iq2_s;
    const block * b;

    explicit IQ2_S(const block * b) : Plain(odd_nibbles(read<sizeof(b->scales)>(b->scales)), from_half(b->d)/8), b(b) {}

    SELFSPEC_PART Signed vector(int i) const {
        const auto at = [&](int j) {
            const int eight = EIGHTS*i + j;
            return iq2s_grid + (b->qs[eight] | (b->qh[eight/4] << (8 - 2*(eight%4)) & 0x300));
        };
        return Signed(negate_where(eights(at), read<EIGHTS>(b->qs + 32 + EIGHTS*i)));
    }
};

struct IQ3_XXS : Plain<32> {
    using block = block_iq3_xxs;
    const block *     b;
    SignsAndScales<4> more;

    explicit IQ3_XXS(const block * b) : IQ3_XXS(b, {(const char *) (b->qs + 64)}) {}
    IQ3_XXS(const block * b, SignsAndScales<4> more) : Plain(more.scales(), from_half(b->d)/4), b(b), more(more) {}

    SELFSPEC_PART Signed vector(int i) const {
        return Signed(more.with_signs(fours([&](int j) { return iq3xxs_grid + b->qs[FOURS*i + j]; }), i));
    }
};

struct IQ3_S : Plain<32> {
    using block = block_iq3_s;
    const block * b;

    explicit IQ3_S(const block * b) : Plain(odd_nibbles(read<sizeof(b->scales)>(b->scales)), from_half(b->d)), b(b) {}

    SELFSPEC_PART Signed vector(int i) const {
        const auto at = [&](int j) {
            const int four = FOURS*i + j;
            return iq3s_grid + (b->qs[four] | (b->qh[four/8] << (8 - four%8) & 256));
        };
        return Signed(negate_where(fours(at), read<EIGHTS>(b->signs + EIGHTS*i)));
    }
};

// Upstream unpacks them into tiles for prompts.
template <typename P> constexpr Scheme SCHEME = {P::FORM, product<P>, MAX_WIDTH};

}  // namespace

Scheme codebook_scheme(ggml_type type) {
    switch (type) {
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
