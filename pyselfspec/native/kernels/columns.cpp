// Products with quantised weights that upstream has repacked: eight rows side by side, eight values of each in turn
// (block_q4_0x8, block_iq4_nlx8, block_q4_Kx8).
//
// A vector of unpacked weights holds eight values of every row, so eight values of a token are repeated across it and
// 32-bit lanes 2c and 2c+1 of the product belong to row c. No sum ever crosses lanes before the end.
#include "product.h"

#if defined(SELFSPEC_KERNELS)

#define GGML_COMMON_IMPL_CPP
#include "repack.h"  // declares the blocks

namespace selfspec {

namespace {

constexpr int ROWS = VB/8;  // rows in a vector: all eight, or with AVX2 half of them

#if defined(SELFSPEC_AVX512)
using vh = __m256i;  // half a vector
inline vf pairs(__m256 x) {  // every value twice
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(x));
}
inline vf pair_scales(const ggml_half * d)   { return pairs(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) d))); }
inline vf pair_bytes(__m128i x)              { return pairs(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(x))); }
inline vh bytes_to_16(__m128i x)             { return _mm256_cvtepu8_epi16(x); }
inline vh zero_h()                           { return _mm256_setzero_si256(); }
inline vh mac16(vh acc, vh x, int32_t y)     { return _mm256_add_epi32(acc, _mm256_madd_epi16(x, _mm256_set1_epi32(y))); }
inline vi first_of_pairs(vh x)               { return _mm512_cvtepu32_epi64(x); }
inline void store_pair_sums(float * to, vf x) {
    const vf sums = _mm512_add_ps(x, _mm512_shuffle_ps(x, x, 0xb1));
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 0, 0, 0, 0, 0, 0, 0, 0);
    _mm256_storeu_ps(to, _mm512_castps512_ps256(_mm512_permutexvar_ps(even, sums)));
}
#else
using vh = __m128i;
inline vf pairs(__m128 x) {
    return _mm256_permutevar8x32_ps(_mm256_castps128_ps256(x), _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
}
inline vf pair_scales(const ggml_half * d)   { return pairs(_mm_cvtph_ps(_mm_loadl_epi64((const __m128i *) d))); }
inline vf pair_bytes(__m128i x)              { return pairs(_mm_cvtepi32_ps(_mm_cvtepu8_epi32(x))); }
inline vh bytes_to_16(__m128i x)             { return _mm_cvtepu8_epi16(x); }
inline vh zero_h()                           { return _mm_setzero_si128(); }
inline vh mac16(vh acc, vh x, int32_t y)     { return _mm_add_epi32(acc, _mm_madd_epi16(x, _mm_set1_epi32(y))); }
inline vi first_of_pairs(vh x)               { return _mm256_cvtepu32_epi64(x); }
inline void store_pair_sums(float * to, vf x) {
    const vf sums = _mm256_add_ps(x, _mm256_shuffle_ps(x, x, 0xb1));
    const __m256i even = _mm256_setr_epi32(0, 2, 4, 6, 0, 0, 0, 0);
    _mm_storeu_ps(to, _mm256_castps256_ps128(_mm256_permutevar8x32_ps(sums, even)));
}
#endif

inline int32_t load_i32(const void * p)      { int32_t x; memcpy(&x, p, 4); return x; }

// --- blocks of 32, nibbles that stand for signed values ---

struct Q4_0 {
    using block = block_q4_0x8;  // repacking has flipped the top bit of every nibble; flipped back it is the value + 8
    static constexpr Form FORM = Form::q8_less8;
    static vi weights(vi raw)          { return and_(xor_(raw, repeat(8)), repeat(15)); }
    static vi dot(vi acc, vi w, vi a)  { return dot4(acc, w, a); }
};

struct IQ4_NL {
    using block = block_iq4_nlx8;
    static constexpr Form FORM = Form::q8_less_table;
    static vi weights(vi raw) {
        const __m128i table = _mm_loadu_si128((const __m128i *) kvalues_iq4nl);
        return lookup(_mm_add_epi8(table, _mm_set1_epi8((char) TABLE_OFFSET)), and_(raw, repeat(15)));
    }
    static vi dot(vi acc, vi w, vi a)  { return HAS_VNNI ? dot4(acc, w, a) : dot4(acc, abs8(w), sign8(a, w)); }
};

// ROWS rows from `first` of a group of eight, all their blocks.
template <typename W, int T>
void nibble_tile(const typename W::block * b, int first, int64_t n_blocks, const Token * tokens, int64_t row) {
    const ColumnBlock * in[T];
    vf sums[T];
    for (int t = 0; t < T; t++) {
        in[t]   = (const ColumnBlock *) tokens[t].in.values;
        sums[t] = zero();
    }
    for (int64_t i = 0; i < n_blocks; i++) {
        prefetch<sizeof(b[i])>(b + i);
        const vi raw0 = load(b[i].qs + 8*first);       // values 0-7 and 16-23
        const vi raw1 = load(b[i].qs + 8*first + 64);  // values 8-15 and 24-31
        const vi w[4] = {
            W::weights(raw0), W::weights(raw1), W::weights(right<4>(raw0)), W::weights(right<4>(raw1)),
        };
        const vf scale = pair_scales(b[i].d + first);
        for (int t = 0; t < T; t++) {
            vi products = repeat8(in[t][i].start);
            for (int j = 0; j < 4; j++) {
                products = W::dot(products, w[j], repeat8(in[t][i].values + 8*j));
            }
            sums[t] = fma(to_float(products), mul(scale, repeat_f(in[t][i].scale)), sums[t]);
        }
    }
    for (int t = 0; t < T; t++) {
        store_pair_sums(tokens[t].out + row, sums[t]);
    }
}

template <typename W>
void nibble_product(const Weights & weights, int64_t row0, int64_t row1, const Token * tokens, int n_tokens) {
    for (int64_t row = row0; row < row1; row += ROWS) {
        const int  first = (int) (row % 8);
        const auto b     = (const typename W::block *) (weights.data + (row - first)*weights.row_size);
        in_tiles<TILE>(n_tokens, [&](auto n, int t) {
            nibble_tile<W, n>(b, first, weights.k/32, tokens + t, row);
        });
    }
}

// --- Q4_K: blocks of 256 with eight 6-bit scales and minimums per row ---

// Scales and minimums of sub-block `sub`, eight rows each.
struct ScalesAndMins {
    __m128i both;
    ScalesAndMins(const block_q4_Kx8 & b, int sub) {
        uint32_t u[3];
        memcpy(u, b.scales + 12*sub, 12);
        const uint32_t s0 = u[0] & 0x3f3f3f3f;
        const uint32_t s1 = (u[2] & 0x0f0f0f0f) | (((u[0] >> 6) & 0x03030303) << 4);
        const uint32_t m0 = u[1] & 0x3f3f3f3f;
        const uint32_t m1 = ((u[2] >> 4) & 0x0f0f0f0f) | (((u[1] >> 6) & 0x03030303) << 4);
        both = _mm_setr_epi32((int) s0, (int) s1, (int) m0, (int) m1);
    }
    __m128i scales(int first) const { return first == 0 ? both : _mm_srli_si128(both, 4); }
    __m128i mins() const            { return _mm_srli_si128(both, 8); }
};

template <int T>
void q4_K_tile(const block_q4_Kx8 * b, int first, int64_t n_blocks, const Token * tokens, int64_t row) {
    const vi mask = repeat(15);
    vf sums[T];
    std::fill_n(sums, T, zero());
    for (int64_t i = 0; i < n_blocks; i++) {
        prefetch<sizeof(b[i])>(b + i);
        vf totals[T];
        vh mins[4];  // of two sub-blocks each
        std::fill_n(totals, T, zero());
        for (int pair = 0; pair < 4; pair++) {
            const ScalesAndMins lo(b[i], 2*pair);
            const ScalesAndMins hi(b[i], 2*pair + 1);
            const __m128i both_mins = _mm_unpacklo_epi8(lo.mins(), hi.mins());
            mins[pair] = bytes_to_16(first == 0 ? both_mins : _mm_srli_si128(both_mins, 8));

            vi raw[4];
            for (int j = 0; j < 4; j++) {
                raw[j] = load(b[i].qs + 256*pair + 64*j + 8*first);
            }
            for (int nibble = 0; nibble < 2; nibble++) {
                vi w[4];
                for (int j = 0; j < 4; j++) {
                    w[j] = and_(nibble == 0 ? raw[j] : right<4>(raw[j]), mask);
                }
                const vf scale = pair_bytes((nibble == 0 ? lo : hi).scales(first));
                for (int t = 0; t < T; t++) {
                    const char * a = tokens[t].in.values + 256*i + 64*pair + 32*nibble;
                    vi products = zero_i();
                    for (int j = 0; j < 4; j++) {
                        products = dot4(products, w[j], repeat8(a + 8*j));
                    }
                    totals[t] = fma(to_float(products), scale, totals[t]);
                }
            }
        }
        const vf d    = pair_scales(b[i].d + first);
        const vf dmin = pair_scales(b[i].dmin + first);
        for (int t = 0; t < T; t++) {
            const vf scale_in = repeat_f(tokens[t].in.scales[i]);
            vh below = zero_h();
            for (int pair = 0; pair < 4; pair++) {
                below = mac16(below, mins[pair], load_i32(tokens[t].in.sums + 8*i + 2*pair));
            }
            sums[t] = fma(totals[t], mul(d, scale_in), sums[t]);
            sums[t] = fnma(to_float(first_of_pairs(below)), mul(dmin, scale_in), sums[t]);
        }
    }
    for (int t = 0; t < T; t++) {
        store_pair_sums(tokens[t].out + row, sums[t]);
    }
}

void q4_K_product(const Weights & weights, int64_t row0, int64_t row1, const Token * tokens, int n_tokens) {
    for (int64_t row = row0; row < row1; row += ROWS) {
        const int  first = (int) (row % 8);
        const auto b     = (const block_q4_Kx8 *) (weights.data + (row - first)*weights.row_size);
        in_tiles<TILE>(n_tokens, [&](auto n, int t) { q4_K_tile<n>(b, first, weights.k/256, tokens + t, row); });
    }
}

}  // namespace

Scheme column_scheme(ggml_type type) {
    switch (type) {
        case GGML_TYPE_Q4_0:   return {Q4_0::FORM, nibble_product<Q4_0>};
        case GGML_TYPE_IQ4_NL: return {IQ4_NL::FORM, nibble_product<IQ4_NL>};
        case GGML_TYPE_Q4_K:   return {Form::q8k_sums, q4_K_product};
        default:               return {};
    }
}

}  // namespace selfspec
#endif
