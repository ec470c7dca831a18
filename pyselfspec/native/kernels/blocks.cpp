// Products with weights in blocks of 32 in the file's layout, or of 64 and 128, which are two and four of 32 with one head. One row
// after another: memory is read in one stream, which is fastest.
//
// Every block has its own scale. Converting and scaling the sum of each block separately would cost more than the products.
// Therefore values of several blocks are put side by side, eight of each, and the sum of four such vectors is converted and
// scaled once: lanes belong to blocks, as in columns.cpp they belong to rows.
#include "product.h"

#if defined(SELFSPEC_KERNELS)

#define GGML_COMMON_DECL_CPP
#define GGML_COMMON_IMPL_CPP
#include "ggml-common.h"

namespace selfspec {

namespace {

// --- reading the parts of the blocks of a step, which begins at b ---

// Where a step begins, in types of which one block has several times 32 weights: at the `part`-th 32 of block b.
template <typename B> struct Place {
    const B * b;
    int64_t   part;
    operator const B *() const { return b; }
};

// 16 bytes of every block: one vector of the first eight of each side by side, one of the last eight.
struct Sides {
    vi first, last;
    template <typename B> Sides(const B * b, size_t offset) {
        const auto part = [&](int i) { return load16((const char *) (b + i) + offset); };
        const vi even = every_second(0, part), odd = every_second(1, part);
        first = low64(even, odd);
        last  = high64(even, odd);
    }
};

// The scales of blocks of SPAN times 32 weights that begin with them, for types that need nothing else of the head.
template <int SPAN = 1, typename B> vf leading_scales(const B * b) {
    if constexpr (SPAN >= BLOCKS) {
        return repeat_half(b->d);
    }
    return twice([&](int i) { return b[i/SPAN].d; });
}

// --- the parts of heads, the first eight bytes of every block (scale, minimum, fifth bits): half WORD of each as floats, byte BYTE of each in all eight bytes ---

template <typename B> vi heads(const B * b) {
    return eights([&](int i) { return b + i; });
}

template <int WORD> vf halves(vi heads) {
    constexpr char A = 2*WORD, B = 8 + 2*WORD;
    return low_halves(shuffle8(heads, bytes16(A, A + 1, A, A + 1, B, B + 1, B, B + 1, -1, -1, -1, -1, -1, -1, -1, -1)));
}

template <int BYTE> vi spread(vi heads) {
    constexpr char A = BYTE, B = 8 + BYTE;
    return shuffle8(heads, bytes16(A, A, A, A, A, A, A, A, B, B, B, B, B, B, B, B));
}

// A power of two in one byte, its exponent with 128 added.
inline vf powers(vi heads) {
    const vi e = shuffle8(heads, bytes16(0, -1, -1, -1, 0, -1, -1, -1, 8, -1, -1, -1, 8, -1, -1, -1));
    return power_of_two(e);
}

// --- the types: weights, their scales, and their minimums if there are any ---

using Vectors = vi[4];

inline void nibbles(vi first, vi last, Vectors & w) {
    w[0] = and_(first, repeat(15));
    w[1] = and_(last, repeat(15));
    w[2] = and_(right<4>(first), repeat(15));
    w[3] = and_(right<4>(last), repeat(15));
}

template <typename B> void nibbles(const B * b, size_t offset, Vectors & w) {
    const Sides raw(b, offset);
    nibbles(raw.first, raw.last, w);
}

// Replaces nibbles by what they stand for.
inline void look_up(v16 table, Vectors & w) {
    each<4>([&](auto j) { w[j] = lookup(table, w[j]); });
}

// The fifth bits of 32 nibbles lie in four bytes of the head.
template <int BYTE> void add_fifth(vi head, Vectors & w) {
    const vi bits = repeat64((int64_t) 0x8040201008040201);
    w[0] = add_where(w[0], spread<BYTE>(head), bits, 16);
    w[1] = add_where(w[1], spread<BYTE + 1>(head), bits, 16);
    w[2] = add_where(w[2], spread<BYTE + 2>(head), bits, 16);
    w[3] = add_where(w[3], spread<BYTE + 3>(head), bits, 16);
}

// Weights that are in 0..31 after adding an offset: sums of eight products fit 16 bits.
struct Small {
    static constexpr int SPAN = 1;
    static vi dot(vi sum, const Vectors & w, const BlockStep & in) {
        if constexpr (HAS_VNNI) {
            each<4>([&](auto j) { sum = dot4(sum, w[j], load(in.values[j])); });
            return sum;
        }
        const vi a[4] = {load(in.values[0]), load(in.values[1]), load(in.values[2]), load(in.values[3])};
        return dot16(sum, w, a);
    }
};

// Signed weights, with SIGN_OFFSET.
struct Wide {
    static constexpr int SPAN = 1;
    static vi dot(vi sum, const Vectors & w, const BlockStep & in) {
        each<2>([&](auto j) {
            sum = dot8_signed(sum, w[2*j], w[2*j + 1], load(in.values[2*j]), load(in.values[2*j + 1]));
        });
        return sum;
    }
};

struct Q4_0 : Small {
    using block = block_q4_0;
    static constexpr Form FORM = {Layout::steps, 8};
    Vectors w;
    vf scale;
    explicit Q4_0(const block * b) : scale(leading_scales(b)) { nibbles(b, 2, w); }
};

struct Q4_1 : Small {
    using block = block_q4_1;
    static constexpr Form FORM = {Layout::steps_sums};
    Vectors w;
    vf scale, min;
    explicit Q4_1(const block * b) {
        const vi head = heads(b);
        scale = halves<0>(head);
        min   = halves<1>(head);
        nibbles(b, 4, w);
    }
};

struct Q5_0 : Small {
    using block = block_q5_0;
    static constexpr Form FORM = {Layout::steps, 16};
    Vectors w;
    vf scale;
    explicit Q5_0(const block * b) {
        const vi head = heads(b);
        scale = halves<0>(head);
        nibbles(b, 6, w);
        add_fifth<2>(head, w);
    }
};

struct Q5_1 : Small {
    using block = block_q5_1;
    static constexpr Form FORM = {Layout::steps_sums};
    Vectors w;
    vf scale, min;
    explicit Q5_1(const block * b) {
        const vi head = heads(b);
        scale = halves<0>(head);
        min   = halves<1>(head);
        nibbles(b, 8, w);
        add_fifth<4>(head, w);
    }
};

// Nibbles that encode twelve different values from -12 to 12.
struct MXFP4 : Small {
    using block = block_mxfp4;
    static constexpr Form FORM = {Layout::steps, 12};
    Vectors w;
    vf scale;
    explicit MXFP4(const block * b) : scale(powers(heads(b))) {
        nibbles(b, 1, w);
        look_up(plus8(load16(kvalues_mxfp4), 12), w);
    }
};

struct IQ4_NL : Wide {
    using block = block_iq4_nl;
    static constexpr Form FORM = {Layout::steps, SIGN_OFFSET};
    Vectors w;
    vf scale;
    explicit IQ4_NL(const block * b) : scale(leading_scales(b)) {
        nibbles(b, 2, w);
        look_up(plus8(load16(kvalues_iq4nl), SIGN_OFFSET), w);
    }
};

struct Q8_0 : Wide {
    using block = block_q8_0;
    static constexpr Form FORM = {Layout::steps, SIGN_OFFSET};
    Vectors w;
    vf scale;
    explicit Q8_0(const block * b) : scale(leading_scales(b)) {
        const Sides lo(b, 2), hi(b, 18);
        const vi    sign = repeat((int8_t) SIGN_OFFSET);
        w[0] = xor_(lo.first, sign);
        w[1] = xor_(lo.last, sign);
        w[2] = xor_(hi.first, sign);
        w[3] = xor_(hi.last, sign);
    }
};

// Four successive weights in a byte.
struct Q2_0 : Small {
    using block = block_q2_0;
    static constexpr int  SPAN = 2;
    static constexpr Form FORM = {Layout::steps_pairs, 1};
    Vectors w;
    vf scale;
    explicit Q2_0(const block * b) : scale(leading_scales<SPAN>(b)) {
        const vi raw = every_second(0, [&](int i) { return load16(b[i/2].qs); });
        w[0] = and_(raw, repeat(3));
        w[1] = and_(right<2>(raw), repeat(3));
        w[2] = and_(right<4>(raw), repeat(3));
        w[3] = and_(right<6>(raw), repeat(3));
    }
};

// A weight is the scale or minus the scale. The second lane of a block has the upper four bits of each byte.
struct Q1_0 : Small {
    using block = block_q1_0;
    static constexpr int  SPAN = 4;
    static constexpr Form FORM = {Layout::steps_bits, 1};
    Vectors w;
    vf scale;
    explicit Q1_0(Place<block> at) : scale(leading_scales<SPAN>(at.b)) {
        const vi raw = halves_of_words([&](int i) { return at.b[i/SPAN].qs + 4*at.part; });
        w[0] = and_(left<1>(raw), repeat(2));
        w[1] = and_(raw, repeat(2));
        w[2] = and_(right<1>(raw), repeat(2));
        w[3] = and_(right<2>(raw), repeat(2));
    }
};

// The nibbles of MXFP4, with a scale for every 16 of them: each lane of a block has its own.
struct NVFP4 : Small {
    using block = block_nvfp4;
    static constexpr int  SPAN = 2;
    static constexpr Form FORM = {Layout::steps_halves, 12};
    Vectors w;
    vf scale;
    explicit NVFP4(const block * b) : scale(floats_of_a_byte(widen_fours([&](int i) { return b[i].d; }))) {
        const auto part = [&](int i) { return load16(b[i/2].qs + 16*(i%2)); };
        const vi even = every_second(0, part), odd = every_second(1, part);
        nibbles(even_words(even, odd), odd_words(even, odd), w);
        look_up(plus8(load16(kvalues_mxfp4), 12), w);
    }

    // Halves of numbers with four bits of exponent and three of mantissa (E4M3, unsigned); NaN counts as 0, as it does upstream.
    static vf floats_of_a_byte(vi lanes) {
        const vi size   = and_(lanes, repeat32(0x7f));
        const vi number = sub32(right32<7>(add32(size, repeat32(1))), repeat32(1));  // no bits for NaN
        return mul(as_floats(left32<20>(and_(size, number))), repeat_f(0x1p119f));
    }
};

// --- the product ---

template <typename P, int T> void add_step(const P & p, const BlockStep * const (&in)[T], int64_t i, vf (&sums)[T]) {
    each<T>([&](auto t) {
        const BlockStep & step = in[t][i];
        if constexpr (P::FORM.layout == Layout::steps_sums) {
            const vi total = P::dot(zero_i(), p.w, step);
            sums[t] = fma(to_float(total), mul(p.scale, load_f(step.scales)), sums[t]);
            sums[t] = fma(p.min, load_f(step.sums), sums[t]);
        } else {
            const vi total = P::dot(P::FORM.offset != 0 ? load(step.start) : zero_i(), p.w, step);
            sums[t] = fma(to_float(total), mul(p.scale, load_f(step.scales)), sums[t]);
        }
    });
}

// Tokens of a tile. With AVX2 more than six do not fit into the registers.
constexpr int MOST = VB == 32 ? 6 : 8;

// step(row, i): step i of a row. Flattened: sums are in registers only if nothing that takes them is called.
template <typename P, int T, typename F>
[[gnu::flatten, gnu::noinline]] void rows_times_tokens(int64_t n_steps, int64_t row0, int64_t row1, const Token * tokens, F step) {
    const BlockStep * in[T];
    each<T>([&](auto t) { in[t] = (const BlockStep *) tokens[t].in.values; });
    for (int64_t row = row0; row < row1; row++) {
        vf sums[T];
        each<T>([&](auto t) { sums[t] = zero(); });
        for (int64_t i = 0; i < n_steps; i++) {
            add_step<P, T>(step(row, i), in, i, sums);
        }
        each<T>([&](auto t) { tokens[t].out[row] = sum(sums[t]); });
    }
}

template <typename P>
void product(const Weights & weights, int64_t row0, int64_t row1, const Token * tokens, int n_tokens) {
    using block = typename P::block;
    constexpr int64_t SPAN = P::SPAN;
    const int64_t n_blocks = weights.k/32, n_steps = (n_blocks + BLOCKS - 1)/BLOCKS;
    const auto blocks_of = [=](int64_t row) { return (const block *) (weights.data + row*weights.row_size); };
    const auto multiply  = [&](auto n, int first, int64_t begin, int64_t end, auto step) {
        rows_times_tokens<P, n>(n_steps, begin, end, tokens + first, step);
    };
    if (n_blocks < BLOCKS) {
        block padded[BLOCKS] = {};
        in_tiles<MOST, 2*TILE, P, P>(n_steps, row0, row1, n_tokens, [&](int64_t row, int64_t) {
            std::copy_n(blocks_of(row), n_blocks/SPAN, padded);
            return Place<block>{padded, 0};
        }, multiply);
        return;
    }
    in_tiles<MOST, 2*TILE, P, P>(n_steps, row0, row1, n_tokens, [=](int64_t row, int64_t i) {
        const int64_t first = SPAN%BLOCKS == 0 ? i*BLOCKS : first_block(i, n_blocks);
        const Place<block> at = {blocks_of(row) + first/SPAN, BLOCKS%SPAN == 0 ? 0 : first%SPAN};
        fetch_ahead<BLOCKS*sizeof(block)/SPAN>(at.b);
        return at;
    }, multiply);
}

template <typename P> constexpr Scheme SCHEME = {P::FORM, product<P>};

}  // namespace

Scheme block_scheme(ggml_type type) {
    switch (type) {
        case GGML_TYPE_Q8_0:   return SCHEME<Q8_0>;
        case GGML_TYPE_Q4_0:   return SCHEME<Q4_0>;
        case GGML_TYPE_Q4_1:   return SCHEME<Q4_1>;
        case GGML_TYPE_Q5_0:   return SCHEME<Q5_0>;
        case GGML_TYPE_Q5_1:   return SCHEME<Q5_1>;
        case GGML_TYPE_MXFP4:  return SCHEME<MXFP4>;
        case GGML_TYPE_IQ4_NL: return SCHEME<IQ4_NL>;
        case GGML_TYPE_NVFP4:  return SCHEME<NVFP4>;
        case GGML_TYPE_Q2_0:   return SCHEME<Q2_0>;
        case GGML_TYPE_Q1_0:   return SCHEME<Q1_0>;
        default:               return {};
    }
}

}  // namespace selfspec
#endif
