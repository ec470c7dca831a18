// Products with weights in blocks of 256 in the file's layout, one row after another: memory is read in one stream, which is
// fastest.
//
// A block has integer scales for its parts of 16 or 32 weights, and a token's 256 values have one scale. Products are
// therefore scaled and summed as integers, and converted to floats once per block. For many tokens, a few rows are
// unpacked into the first-level cache, once for all tiles.
#pragma once

#include "product.h"

#if defined(SELFSPEC_KERNELS)

#define GGML_COMMON_DECL_CPP
#define GGML_COMMON_IMPL_CPP
#include "ggml-common.h"

namespace selfspec {

namespace {

constexpr int N = K_STEP/VB;  // vectors of 256 weights

// Integer scales, one for W weights, and the block's.
template <int W> struct Scales {
    v16   bytes;
    float d;
    vf with(const Activations & in, int64_t k) const { return mul(repeat_f(d), repeat_f(in.scales[k/K_STEP])); }
};

// Signed weights without a minimum.
template <int PART> struct Plain {
    static constexpr int  W    = PART;
    static constexpr Form FORM = {Layout::q8k};
    Scales<W> scales;

    Plain(v16 of_parts, float d) : scales{of_parts, d} {}
    vf finish(vi total, const Activations & in, int64_t k, vf acc) const { return fma(to_float(total), scales.with(in, k), acc); }
};

// --- the product ---
//
// A type P of blocks has
//   vector(i)   vector i of the weights, Small or Signed
//   scales      one for W weights
//   finish(total, in, k, acc)   adds the scaled products of a block to acc
//   FORM        the activations' form

template <typename P> using Vector = decltype(std::declval<P>().vector(0));
template <typename P> using PairOf = PairScales<Vector<P>, P::W>;

// A block that is unpacked each time it is multiplied.
template <typename P> struct Packed {
    P p;
    explicit Packed(const typename P::block * b) : p(b) {}
    SELFSPEC_PART Vector<P> vector(int i) const { return p.vector(i); }
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
SELFSPEC_PART void add_block(const Block & block, const Token * tokens, int64_t k, vf (&sums)[T]) {
    const auto values = [&](int t, int i) { return load(tokens[t].in.values + k + i*VB); };
    vi totals[T];
    each<T>([&](auto t) { totals[t] = zero_i(); });
    each<N/2>([&](auto i) {
        const auto x = block.vector(2*i), y = block.vector(2*i + 1);
        const auto & scales = block.scales(i);  // not copied: with AVX2 GCC copies halves of vectors, and loading them whole then waits
        each<T>([&](auto t) { totals[t] = scales.add(totals[t], x, y, values(t, 2*i), values(t, 2*i + 1)); });
    });
    each<T>([&](auto t) { sums[t] = block.p.finish(totals[t], tokens[t].in, k, sums[t]); });
}

// block(row, i): block i of a row. Flattened: sums are in registers only if nothing that takes them is called.
template <typename P, int T, typename F>
SELFSPEC_TILE void rows_times_tokens(int64_t n_blocks, int64_t row0, int64_t row1, const Token * tokens, F block) {
    for (int64_t row = row0; row < row1; row++) {
        vf sums[T];
        each<T>([&](auto t) { sums[t] = zero(); });
        for (int64_t i = 0; i < n_blocks; i++) {
            add_block<P>(block(row, i), tokens, i*K_STEP, sums);
        }
        each<T>([&](auto t) { tokens[t].out[row] = sum(sums[t]); });
    }
}

// PACKED: the most tokens for which unpacking once does not pay. Eight are two tiles with AVX2, and one with AVX-512 and NEON.
template <typename P, int PACKED = 8>
void product(const Weights & weights, int64_t row0, int64_t row1, const Token * tokens, int n_tokens) {
    const int64_t n_blocks = weights.k/K_STEP;
    const auto at = [&](int64_t row, int64_t i) {
        const auto b = (const typename P::block *) (weights.data + row*weights.row_size) + i;
        fetch_ahead<sizeof(*b)>(b);
        return b;
    };
    in_tiles<TILE, PACKED, Packed<P>, Unpacked<P>>(n_blocks, row0, row1, n_tokens, at,
        [&](auto n, int first, int64_t begin, int64_t end, auto block) {
            rows_times_tokens<P, n>(n_blocks, begin, end, tokens + first, block);
        });
}

}  // namespace

}  // namespace selfspec
#endif
