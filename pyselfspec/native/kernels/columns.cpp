// Products with blocks of 32 weights that upstream has repacked: eight rows side by side, eight values of each in turn
// (block_q4_0x8, block_iq4_nlx8, block_mxfp4x8). K-quants are in columns_k.cpp, IQ4_XS in columns_iq4_xs.cpp.
//
// A vector of unpacked weights holds eight values of every row, so eight values of a token are repeated across it and
// 32-bit lanes 2c and 2c+1 of the product belong to row c. No sum ever crosses lanes before the end.
#include "columns.h"

#if defined(__AVX2__) && defined(SELFSPEC_KERNELS)

#define GGML_COMMON_IMPL_CPP
#include "repack.h"  // declares the blocks

namespace selfspec {

namespace {

// --- blocks of 32, nibbles that encode signed values ---

struct Q4_0 {
    using block = block_q4_0x8;  // repacking flipped the top bit of every nibble; with the bit flipped back, a nibble is the value + 8
    static constexpr Form FORM = {Layout::columns, 8};
    static vf scales(const block & b, int first) { return pair_scales(b.d + first); }
    static vi weights(vi raw)          { return and_(xor_(raw, repeat(8)), repeat(15)); }
    static vi dot(vi acc, const vi (&w)[4], const vi (&a)[4]) { return dot16(acc, w, a); }
};

struct MXFP4 {
    using block = block_mxfp4x8;
    static constexpr Form FORM = {Layout::columns, 12};
    static vf scales(const block & b, int first) { return pair_powers(b.e + first); }
    static vi weights(vi raw) {
        const __m128i table = _mm_loadu_si128((const __m128i *) kvalues_mxfp4);
        return lookup(_mm_add_epi8(table, _mm_set1_epi8(12)), and_(raw, repeat(15)));
    }
    static vi dot(vi acc, const vi (&w)[4], const vi (&a)[4]) { return dot16(acc, w, a); }
};

struct IQ4_NL {
    using block = block_iq4_nlx8;
    static constexpr Form FORM = {Layout::columns, SIGN_OFFSET};
    static vf scales(const block & b, int first) { return pair_scales(b.d + first); }
    static vi weights(vi raw) {
        const __m128i table = _mm_loadu_si128((const __m128i *) kvalues_iq4nl);
        return lookup(_mm_add_epi8(table, _mm_set1_epi8((char) SIGN_OFFSET)), and_(raw, repeat(15)));
    }
    static vi dot(vi acc, const vi (&w)[4], const vi (&a)[4]) {
        for (int i = 0; i < 4; i++) {
            acc = HAS_VNNI ? dot4(acc, w[i], a[i]) : dot4(acc, abs8(w[i]), sign8(a[i], w[i]));
        }
        return acc;
    }
};

template <typename W, int T>
void nibble_tile(const typename W::block * b, int64_t n_blocks, const Token * tokens, int64_t row) {
    const ColumnBlock * in[T];
    vf sums[PARTS][T];
    for (int t = 0; t < T; t++) {
        in[t] = (const ColumnBlock *) tokens[t].in.values;
    }
    clear(sums);
    for (int64_t i = 0; i < n_blocks; i++) {
        prefetch<sizeof(b[i])>(b + i);
        for (int part = 0; part < PARTS; part++) {
            const vi raw0 = load(b[i].qs + VB*part);       // values 0-7 and 16-23
            const vi raw1 = load(b[i].qs + VB*part + 64);  // values 8-15 and 24-31
            const vi w[4] = {
                W::weights(raw0), W::weights(raw1), W::weights(right<4>(raw0)), W::weights(right<4>(raw1)),
            };
            const vf scale = W::scales(b[i], ROWS*part);
            for (int t = 0; t < T; t++) {
                vi a[4];
                for (int j = 0; j < 4; j++) {
                    a[j] = repeat8(in[t][i].values + 8*j);
                }
                const vi products = W::dot(repeat8(in[t][i].start), w, a);
                sums[part][t] = fma(to_float(products), mul(scale, repeat_f(in[t][i].scale)), sums[part][t]);
            }
        }
    }
    store_sums(sums, tokens, row);
}

template <typename W>
void nibble_product(const Weights & weights, int64_t row0, int64_t row1, const Token * tokens, int n_tokens) {
    for (int64_t row = row0; row < row1; row += 8) {
        const auto b = (const typename W::block *) (weights.data + row*weights.row_size);
        in_tiles<TILE>(n_tokens, [&](auto n, int t) { nibble_tile<W, n>(b, weights.k/32, tokens + t, row); });
    }
}

}  // namespace

Scheme column_scheme(ggml_type type) {
    switch (type) {
        case GGML_TYPE_Q4_0:   return {Q4_0::FORM, nibble_product<Q4_0>};
        case GGML_TYPE_IQ4_NL: return {IQ4_NL::FORM, nibble_product<IQ4_NL>};
        case GGML_TYPE_MXFP4:  return {MXFP4::FORM, nibble_product<MXFP4>};
        case GGML_TYPE_IQ4_XS: return iq4_xs_column_scheme();
        default:               return k_column_scheme(type);
    }
}

}  // namespace selfspec

#elif defined(SELFSPEC_KERNELS)

// Upstream's repacking is switched off for other processors, see CMakeLists.txt.
namespace selfspec {
Scheme column_scheme(ggml_type) { return {}; }
}
#endif
