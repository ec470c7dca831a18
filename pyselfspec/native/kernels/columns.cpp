// Products with quantised weights that upstream has repacked: eight rows side by side, eight values of each in turn
// (block_q4_0x8, block_iq4_nlx8, block_mxfp4x8, block_q4_Kx8, block_q2_Kx8).
//
// A vector of unpacked weights holds eight values of every row, so eight values of a token are repeated across it and
// 32-bit lanes 2c and 2c+1 of the product belong to row c. No sum ever crosses lanes before the end.
#include "product.h"

#if defined(__AVX2__) && defined(SELFSPEC_KERNELS)

#define GGML_COMMON_IMPL_CPP
#include "repack.h"  // declares the blocks

namespace selfspec {

namespace {

constexpr int ROWS  = VB/8;    // rows in a vector: all eight, or with AVX2 half of them
constexpr int PARTS = 8/ROWS;

#if defined(SELFSPEC_AVX512)
using vh = __m256i;  // half a vector
inline vf pairs(__m256 x) {  // every value twice
    const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(x));
}
inline vf pair_scales(const ggml_half * d)   { return pairs(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) d))); }
inline vf pair_bytes(__m128i x)              { return pairs(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(x))); }
inline vi pair_ints(__m128i x)               { return _mm512_cvtepu8_epi32(_mm_unpacklo_epi8(x, x)); }
inline vi bytes_to_64(__m128i x)             { return _mm512_cvtepu8_epi64(x); }
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
inline vi pair_ints(__m128i x)               { return _mm256_cvtepu8_epi32(_mm_unpacklo_epi8(x, x)); }
inline vi bytes_to_64(__m128i x)             { return _mm256_cvtepu8_epi64(x); }
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

inline vf pair_powers(const uint8_t * e) {
    return power_of_two(pair_ints(_mm_loadl_epi64((const __m128i *) e)));
}
inline int32_t load_i32(const void * p)      { int32_t x; memcpy(&x, p, 4); return x; }

template <int T> void store_sums(const vf (&sums)[PARTS][T], const Token * tokens, int64_t row) {
    for (int t = 0; t < T; t++) {
        for (int part = 0; part < PARTS; part++) {
            store_pair_sums(tokens[t].out + row + ROWS*part, sums[part][t]);
        }
    }
}

// The low bytes of x, each as four words.
inline vi each_of_four(__m128i x) {
    const __m128i words = _mm_setr_epi8(0, -1, 0, -1, 0, -1, 0, -1, 8, -1, 8, -1, 8, -1, 8, -1);
    return shuffle8(bytes_to_64(x), words);
}

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
    for (auto & of_part : sums) {
        each<T>([&](auto t) { of_part[t] = zero(); });
    }
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
    __m128i scales(int part) const { return part == 0 ? both : _mm_srli_si128(both, 4); }
    __m128i mins() const           { return _mm_srli_si128(both, 8); }
};

// Sums of products times scales: integers below 2^24, so exact in both forms. Without VNNI the scales multiply 16-bit sums.
struct Scaled {
#if defined(SELFSPEC_VNNI)
    using Sum = vf;
    static vf none()                { return zero(); }
    static vf scale(__m128i bytes)  { return pair_bytes(bytes); }
    static vf add(vf sum, const vi (&w)[4], const vi (&a)[4], vf scale) {
        return fma(to_float(dot16(zero_i(), w, a)), scale, sum);
    }
    static vf total(vf sum)         { return sum; }
#else
    using Sum = vi;
    static vi none()                { return zero_i(); }
    static vi scale(__m128i bytes)  { return each_of_four(bytes); }
    static vi add(vi sum, const vi (&w)[4], const vi (&a)[4], vi scale) { return add32(sum, mac2(dot8(w, a), scale)); }
    static vf total(vi sum)         { return to_float(sum); }
#endif
};

// Two sub-blocks of ROWS rows; `scales` for the one in the lower nibbles and the one in the upper.
template <int T>
void add_pair(const uint8_t * qs, const __m128i (&scales)[2], const Token * tokens, int64_t k, Scaled::Sum (&totals)[T]) {
    vi raw[4];
    for (int j = 0; j < 4; j++) {
        raw[j] = load(qs + 64*j);
    }
    for (int nibble = 0; nibble < 2; nibble++) {
        vi w[4];
        for (int j = 0; j < 4; j++) {
            w[j] = and_(nibble == 0 ? raw[j] : right<4>(raw[j]), repeat(15));
        }
        const auto scale = Scaled::scale(scales[nibble]);
        for (int t = 0; t < T; t++) {
            vi a[4];
            for (int j = 0; j < 4; j++) {
                a[j] = repeat8(tokens[t].in.values + k + 32*nibble + 8*j);
            }
            totals[t] = Scaled::add(totals[t], w, a, scale);
        }
    }
}

template <int T>
void q4_K_tile(const block_q4_Kx8 * b, int64_t n_blocks, const Token * tokens, int64_t row) {
    vf sums[PARTS][T];
    for (auto & of_part : sums) {
        each<T>([&](auto t) { of_part[t] = zero(); });
    }
    for (int64_t i = 0; i < n_blocks; i++) {
        prefetch<sizeof(b[i])>(b + i);
        Scaled::Sum totals[PARTS][T];
        vh mins[PARTS][4];  // of two sub-blocks each
        for (auto & of_part : totals) {
            each<T>([&](auto t) { of_part[t] = Scaled::none(); });
        }
        for (int pair = 0; pair < 4; pair++) {
            const ScalesAndMins lo(b[i], 2*pair);
            const ScalesAndMins hi(b[i], 2*pair + 1);
            const __m128i both_mins = _mm_unpacklo_epi8(lo.mins(), hi.mins());
#pragma GCC unroll 1  // unrolled, the activations of both parts would be spilled to memory
            for (int part = 0; part < PARTS; part++) {
                mins[part][pair] = bytes_to_16(part == 0 ? both_mins : _mm_srli_si128(both_mins, 8));
                add_pair<T>(b[i].qs + 256*pair + VB*part, {lo.scales(part), hi.scales(part)}, tokens, 256*i + 64*pair,
                            totals[part]);
            }
        }
        for (int part = 0; part < PARTS; part++) {
            const vf d    = pair_scales(b[i].d + ROWS*part);
            const vf dmin = pair_scales(b[i].dmin + ROWS*part);
            for (int t = 0; t < T; t++) {
                const vf scale_in = repeat_f(tokens[t].in.scales[i]);
                vh below = zero_h();
                for (int pair = 0; pair < 4; pair++) {
                    below = mac16(below, mins[part][pair], load_i32(tokens[t].in.sums + 8*i + 2*pair));
                }
                sums[part][t] = fma(Scaled::total(totals[part][t]), mul(d, scale_in), sums[part][t]);
                sums[part][t] = fnma(to_float(first_of_pairs(below)), mul(dmin, scale_in), sums[part][t]);
            }
        }
    }
    store_sums(sums, tokens, row);
}

void q4_K_product(const Weights & weights, int64_t row0, int64_t row1, const Token * tokens, int n_tokens) {
    for (int64_t row = row0; row < row1; row += 8) {
        const auto b = (const block_q4_Kx8 *) (weights.data + row*weights.row_size);
        in_tiles<TILE>(n_tokens, [&](auto n, int t) { q4_K_tile<n>(b, weights.k/256, tokens + t, row); });
    }
}

// --- Q2_K: blocks of 256 with sixteen 4-bit scales and minimums per row ---

// Two sub-blocks of 16 are in equal bits of 32 bytes of a row, and their scales are side by side. Sums of eight products of
// two-bit weights fit 16 bits, so integer sums are multiplied by integer scales, with VNNI too.
struct ScalePair {
    __m128i both;
    ScalePair(const block_q2_Kx8 & b, int pair) : both(_mm_loadu_si128((const __m128i *) (b.scales + 16*pair))) {}
    template <int SIDE> vi scales(int part) const {
        const __m128i bytes = _mm_and_si128(part == 0 ? both : _mm_srli_si128(both, 8), _mm_set1_epi8(15));
        constexpr char A = SIDE;
        return each_of_four(_mm_shuffle_epi8(bytes, _mm_setr_epi8(A, A + 2, A + 4, A + 6, A + 8, A + 10, A + 12, A + 14,
                                                                  -1, -1, -1, -1, -1, -1, -1, -1)));
    }
    vh mins(int part) const {
        const __m128i bytes = _mm_and_si128(_mm_srli_epi16(both, 4), _mm_set1_epi8(15));
        return bytes_to_16(part == 0 ? bytes : _mm_srli_si128(bytes, 8));
    }
};

template <int T>
void q2_K_tile(const block_q2_Kx8 * b, int64_t n_blocks, const Token * tokens, int64_t row) {
    vf sums[PARTS][T];
    for (auto & of_part : sums) {
        each<T>([&](auto t) { of_part[t] = zero(); });
    }
    for (int64_t i = 0; i < n_blocks; i++) {
        prefetch<sizeof(b[i])>(b + i);
        for (int part = 0; part < PARTS; part++) {
            vi totals[T];
            vh below[T];
            each<T>([&](auto t) {
                totals[t] = zero_i();
                below[t]  = zero_h();
            });
            for (int half = 0; half < 2; half++) {
                const uint8_t * qs = b[i].qs + 256*half + VB*part;
                const vi raw[4] = {load(qs), load(qs + 64), load(qs + 128), load(qs + 192)};
                each<4>([&](auto run) {
                    vi w[4];
                    each<4>([&](auto j) { w[j] = and_(right<2*run>(raw[j]), repeat(3)); });
                    const int       pair = 4*half + run;
                    const ScalePair scale_pair(b[i], pair);
                    const vi first = scale_pair.scales<0>(part), second = scale_pair.scales<1>(part);
                    const vh mins  = scale_pair.mins(part);
                    each<T>([&](auto t) {
                        const int8_t * values = (const int8_t *) tokens[t].in.values + 256*i + 32*pair;
                        const auto products = [&](int j) { return dot2(w[j], repeat8(values + 8*j)); };
                        totals[t] = add32(totals[t], mac2(add16(products(0), products(1)), first));
                        totals[t] = add32(totals[t], mac2(add16(products(2), products(3)), second));
                        below[t]  = mac16(below[t], mins, load_i32(tokens[t].in.sums + 16*i + 2*pair));
                    });
                });
            }
            const vf d    = pair_scales(b[i].d + ROWS*part);
            const vf dmin = pair_scales(b[i].dmin + ROWS*part);
            each<T>([&](auto t) {
                const vf scale_in = repeat_f(tokens[t].in.scales[i]);
                sums[part][t] = fma(to_float(totals[t]), mul(d, scale_in), sums[part][t]);
                sums[part][t] = fnma(to_float(first_of_pairs(below[t])), mul(dmin, scale_in), sums[part][t]);
            });
        }
    }
    store_sums(sums, tokens, row);
}

void q2_K_product(const Weights & weights, int64_t row0, int64_t row1, const Token * tokens, int n_tokens) {
    for (int64_t row = row0; row < row1; row += 8) {
        const auto b = (const block_q2_Kx8 *) (weights.data + row*weights.row_size);
        in_tiles<TILE>(n_tokens, [&](auto n, int t) { q2_K_tile<n>(b, weights.k/256, tokens + t, row); });
    }
}

}  // namespace

Scheme column_scheme(ggml_type type) {
    switch (type) {
        case GGML_TYPE_Q4_0:   return {Q4_0::FORM, nibble_product<Q4_0>};
        case GGML_TYPE_IQ4_NL: return {IQ4_NL::FORM, nibble_product<IQ4_NL>};
        case GGML_TYPE_MXFP4:  return {MXFP4::FORM, nibble_product<MXFP4>};
        case GGML_TYPE_Q4_K:   return {{Layout::q8k_sums32}, q4_K_product};
        case GGML_TYPE_Q2_K:   return {{Layout::q8k_sums16}, q2_K_product};
        default:               return {};
    }
}

}  // namespace selfspec

#elif defined(SELFSPEC_KERNELS)

// Upstream's repacking is switched off for other processors, see CMakeLists.txt.
namespace selfspec {
Scheme column_scheme(ggml_type) { return {}; }
}
#endif
