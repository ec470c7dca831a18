// Products with weights in blocks of 256 in the file's layout, one row after another: memory is read in one stream, which is
// fastest.
//
// A block has integer scales for its parts of 16 or 32 weights, and a token's 256 values have one scale. Products are
// therefore scaled and summed as integers, and converted to floats once per block. With several tiles of tokens, a few rows
// are unpacked into the first-level cache, once for all tiles.
#include "product.h"

#if defined(SELFSPEC_KERNELS)

#define GGML_COMMON_DECL_CPP
#define GGML_COMMON_IMPL_CPP
#include "ggml-common.h"

#include <new>

namespace selfspec {

namespace {

constexpr int N = K_STEP/VB;  // vectors of 256 weights

// --- scales, one for W weights, and minimums ---

template <int W> struct Scales {
    v16   bytes;
    float d;
    vf with(const Activations & in, int64_t k) const { return mul(repeat_f(d), repeat_f(in.scales[k/K_STEP])); }
};

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
struct IQ4_XS {
    using block = block_iq4_xs;
    static constexpr int  W    = 32;
    static constexpr Form FORM = {Layout::q8k};
    const block * b;
    Scales<W>     scales;

    explicit IQ4_XS(const block * b) : b(b), scales{six_bits(b), from_half(b->d)} {}

    Signed vector(int i) const { return Signed(lookup(load16(kvalues_iq4nl), half_nibbles(b->qs, i))); }
    vf finish(vi total, const Activations & in, int64_t k, vf acc) const {
        return fma(to_float(total), scales.with(in, k), acc);
    }

    static v16 six_bits(const block * b) {
        uint32_t low;
        memcpy(&low, b->scales_l, 4);
        return four_and_two_bits(low, b->scales_h);
    }
};

// --- the product ---

template <typename P> using Vector = decltype(std::declval<P>().vector(0));
template <typename P> using PairOf = PairScales<Vector<P>, P::W>;

// A block that is unpacked each time it is multiplied.
template <typename P> struct Packed {
    P p;
    explicit Packed(const typename P::block * b) : p(b) {}
    Vector<P> vector(int i) const { return p.vector(i); }
    PairOf<P> scales(int i) const { return PairOf<P>(p.scales.bytes, i); }
};

// A block that was unpacked before.
template <typename P> struct Unpacked {
    P         p;
    vi        weights[N];
    PairOf<P> of_pairs[N/2];

    explicit Unpacked(const typename P::block * b) : p(b) {
        each<N>([&](auto i) { weights[i] = p.vector(i).w; });
        each<N/2>([&](auto i) { of_pairs[i] = PairOf<P>(p.scales.bytes, i); });
    }
    Vector<P> vector(int i) const         { return Vector<P>{weights[i]}; }
    const PairOf<P> & scales(int i) const { return of_pairs[i]; }
};

template <typename P, typename Block, int T>
inline void add_block(const Block & block, const Token * tokens, int64_t k, vf (&sums)[T]) {
    const auto values = [&](int t, int i) { return load(tokens[t].in.values + k + i*VB); };
    vi totals[T];
    each<T>([&](auto t) { totals[t] = zero_i(); });
    each<N/2>([&](auto i) {
        const auto x = block.vector(2*i), y = block.vector(2*i + 1);
        const auto scales = block.scales(i);
        each<T>([&](auto t) { totals[t] = scales.add(totals[t], x, y, values(t, 2*i), values(t, 2*i + 1)); });
    });
    each<T>([&](auto t) { sums[t] = block.p.finish(totals[t], tokens[t].in, k, sums[t]); });
}

// block(i): block i of the row. Flattened: sums are in registers only if nothing that takes them is called.
template <typename P, int T, typename F>
[[gnu::flatten, gnu::noinline]] void row_times_tokens(int64_t n_blocks, const Token * tokens, int64_t row, F block) {
    vf sums[T];
    each<T>([&](auto t) { sums[t] = zero(); });
    for (int64_t i = 0; i < n_blocks; i++) {
        add_block<P>(block(i), tokens, i*K_STEP, sums);
    }
    each<T>([&](auto t) { tokens[t].out[row] = sum(sums[t]); });
}

// Up to four unpacked rows, which usually fit into the L1 cache.
template <typename P> struct UnpackedRows {
    static constexpr int64_t ROOM = 64*1024/sizeof(Unpacked<P>);  // blocks

    int64_t n_blocks;  // of a row
    alignas(Unpacked<P>) char memory[ROOM*sizeof(Unpacked<P>)];

    explicit UnpackedRows(int64_t n_blocks) : n_blocks(n_blocks) {}
    int64_t at_once() const { return std::min<int64_t>(4, ROOM/n_blocks); }  // number of rows; 0 if a row is too long

    Unpacked<P> * row(int64_t i) { return (Unpacked<P> *) memory + i*n_blocks; }
    void unpack(int64_t to, const typename P::block * b) {
        for (int64_t i = 0; i < n_blocks; i++) {
            fetch_ahead<sizeof(b[i])>(b + i);
            new (row(to) + i) Unpacked<P>(b + i);
        }
    }
};

template <typename P>
void product(const Weights & weights, int64_t row0, int64_t row1, const Token * tokens, int n_tokens) {
    const int64_t n_blocks = weights.k/K_STEP;
    const auto blocks_of = [&](int64_t row) { return (const typename P::block *) (weights.data + row*weights.row_size); };
    if (UnpackedRows<P> rows(n_blocks); n_tokens > TILE && rows.at_once() > 0) {
        for (int64_t first_row = row0; first_row < row1; first_row += rows.at_once()) {
            const int64_t n_rows = std::min(rows.at_once(), row1 - first_row);
            for (int64_t i = 0; i < n_rows; i++) {
                rows.unpack(i, blocks_of(first_row + i));
            }
            in_tiles<TILE>(n_tokens, [&](auto n, int first) {
                for (int64_t i = 0; i < n_rows; i++) {
                    const Unpacked<P> * const row = rows.row(i);
                    row_times_tokens<P, n>(n_blocks, tokens + first, first_row + i, [&](int64_t j) -> auto & { return row[j]; });
                }
            });
        }
        return;
    }
    in_tiles<TILE>(row0, row1, n_tokens, [&](auto n, int first, int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; row++) {
            const auto b = blocks_of(row);
            row_times_tokens<P, n>(n_blocks, tokens + first, row, [&](int64_t i) {
                fetch_ahead<sizeof(b[i])>(b + i);
                return Packed<P>(b + i);
            });
        }
    });
}

template <typename P> constexpr Scheme SCHEME = {P::FORM, product<P>};

}  // namespace

Scheme superblock_scheme(ggml_type type) {
    switch (type) {
        case GGML_TYPE_Q2_K:   return SCHEME<Q2_K>;
        case GGML_TYPE_Q3_K:   return SCHEME<Q3_K>;
        case GGML_TYPE_Q4_K:   return SCHEME<Q4_K>;
        case GGML_TYPE_Q5_K:   return SCHEME<Q5_K>;
        case GGML_TYPE_Q6_K:   return SCHEME<Q6_K>;
        case GGML_TYPE_IQ4_XS: return SCHEME<IQ4_XS>;
        default:               return {};
    }
}

}  // namespace selfspec
#endif
