// Products with blocks of 32 weights that upstream has repacked: eight rows side by side, eight values of each in turn
// (block_q4_0x8, block_iq4_nlx8, block_mxfp4x8). Blocks of 256 are in columns_k.cpp.
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
    static vf scales(const block & b)  { return row_halves(b.d); }
    static vi weights(vi raw)          { return and_(xor_(raw, repeat(8)), repeat(15)); }
    template <typename V> static vi add(vi start, V w, const int8_t * values) { return add_run<16>(start, w, values); }
};

struct MXFP4 {
    using block = block_mxfp4x8;
    static constexpr Form FORM = {Layout::columns, 12};
    static vf scales(const block & b)  { return power_of_two(and_(row_ints(eight_bytes(b.e)), repeat32(255))); }
    static vi weights(vi raw) {
        const __m128i table = _mm_loadu_si128((const __m128i *) kvalues_mxfp4);
        return lookup(_mm_add_epi8(table, _mm_set1_epi8(12)), and_(raw, repeat(15)));
    }
    template <typename V> static vi add(vi start, V w, const int8_t * values) { return add_run<25>(start, w, values); }
};

struct IQ4_NL {
    using block = block_iq4_nlx8;
    static constexpr Form FORM = {Layout::columns, SIGN_OFFSET};
    static vf scales(const block & b)  { return row_halves(b.d); }
    static vi weights(vi raw) {
        const __m128i table = _mm_loadu_si128((const __m128i *) kvalues_iq4nl);
        return lookup(_mm_add_epi8(table, _mm_set1_epi8((char) SIGN_OFFSET)), and_(raw, repeat(15)));
    }
    template <typename V> static vi add(vi start, V w, const int8_t * values) { return add_signed_run(start, w, values); }
};

template <typename W, int T>
SELFSPEC_TILE void tile(const typename W::block * b, int64_t n_blocks, const Token * tokens, int64_t row) {
    const ColumnBlock * in[T];
    vf sums[T];
    each<T>([&](auto t) {
        in[t]   = (const ColumnBlock *) tokens[t].in.values;
        sums[t] = zero();
    });
    for (int64_t i = 0; i < n_blocks; i++) {
        fetch_ahead<sizeof(b[i])>(b + i);
        vi w[PER_RUN];
        each<PER_RUN/2>([&](auto j) {  // values 0 to 15 are in the lower nibbles
            const vi raw = eight_rows(b[i].qs, j);
            w[j]             = W::weights(raw);
            w[j + PER_RUN/2] = W::weights(right<4>(raw));
        });
        const vf scale = W::scales(b[i]);
        each_token<T>([&](auto t) {
            const vi products = W::add(for_rows(in[t][i].start), [&](int j) { return w[j]; }, in[t][i].values);
            sums[t] = fma(to_float(products), mul(scale, repeat_f(in[t][i].scale)), sums[t]);
        });
    }
    store_sums(sums, tokens, row);
}

template <typename W>
void product(const Weights & weights, int64_t row0, int64_t row1, const Token * tokens, int n_tokens) {
    for (int64_t row = row0; row < row1; row += 8) {
        const auto b = (const typename W::block *) (weights.data + row*weights.row_size);
        in_tiles<COLUMN_TILE>(n_tokens, [&](auto n, int t) { tile<W, n>(b, weights.k/32, tokens + t, row); });
    }
}

}  // namespace

Scheme column_scheme(ggml_type type) {
    switch (type) {
        case GGML_TYPE_Q4_0:   return {Q4_0::FORM, product<Q4_0>};
        case GGML_TYPE_IQ4_NL: return {IQ4_NL::FORM, product<IQ4_NL>};
        case GGML_TYPE_MXFP4:  return {MXFP4::FORM, product<MXFP4>};
        default:               return k_column_scheme(type);
    }
}

}  // namespace selfspec

#elif defined(SELFSPEC_KERNELS)

// Upstream's repacking is switched off for other processors, see CMakeLists.txt.
namespace selfspec {
Scheme column_scheme(ggml_type) { return {}; }
Scheme our_column_scheme(ggml_type) { return {}; }
}
#endif
