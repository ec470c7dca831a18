// Products with quantised weights that upstream has repacked: eight rows side by side, eight values of each in turn
// (block_q4_0x8, block_iq4_nlx8, block_mxfp4x8, block_q4_Kx8, block_q5_Kx8, block_q2_Kx8, block_q6_Kx8). IQ4_XS is in
// columns_iq4_xs.cpp.
//
// A vector of unpacked weights holds eight values of every row, so eight values of a token are repeated across it and
// 32-bit lanes 2c and 2c+1 of the product belong to row c. No sum ever crosses lanes before the end.
#include "columns.h"

#if defined(__AVX2__) && defined(SELFSPEC_KERNELS)

#define GGML_COMMON_IMPL_CPP
#include "repack.h"  // declares the blocks

namespace selfspec {

namespace {

// The low bytes of x, each as four words.
inline vi four_words(vi of_64_bits) {
    const __m128i low = _mm_setr_epi8(0, 1, 0, 1, 0, 1, 0, 1, 8, 9, 8, 9, 8, 9, 8, 9);
    return shuffle8(of_64_bits, low);
}
inline vi each_of_four(__m128i x)        { return four_words(bytes_to_64(x)); }
inline vi each_of_four_signed(__m128i x) { return four_words(signed_to_64(x)); }

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

// --- Q4_K and Q5_K: blocks of 256 with eight 6-bit scales and minimums per row ---

// Scales and minimums of sub-block `sub`, eight rows each.
struct ScalesAndMins {
    __m128i both;
    ScalesAndMins(const uint8_t * packed, int sub) {
        uint32_t u[3];
        memcpy(u, packed + 12*sub, 12);
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

// Adds bit `bit` of the bytes in qh, which have the fifth bits of eight sub-blocks. A block of Q4_K has none.
inline vi with_fifth_bit(const block_q4_Kx8 &, vi w, int, int)            { return w; }
inline vi with_fifth_bit(const block_q5_Kx8 & b, vi w, int first, int bit) {
    return add_where(w, load(b.qh + first), repeat((int8_t) (1 << bit)), 16);
}

// Two sub-blocks of ROWS rows; `scales` for the one in the lower nibbles and the one in the upper.
template <int T, typename B>
void add_pair(const B & b, int pair, int part, const __m128i (&scales)[2], const Token * tokens, int64_t k,
              Scaled::Sum (&totals)[T]) {
    vi raw[4];
    for (int j = 0; j < 4; j++) {
        raw[j] = load(b.qs + 256*pair + VB*part + 64*j);
    }
    for (int nibble = 0; nibble < 2; nibble++) {
        vi w[4];
        for (int j = 0; j < 4; j++) {
            const vi low = and_(nibble == 0 ? raw[j] : right<4>(raw[j]), repeat(15));
            w[j] = with_fifth_bit(b, low, VB*part + 64*j, 2*pair + nibble);
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

template <typename B, int T>
void tile_of_32s(const B * b, int64_t n_blocks, const Token * tokens, int64_t row) {
    vf sums[PARTS][T];
    clear(sums);
    for (int64_t i = 0; i < n_blocks; i++) {
        prefetch<sizeof(b[i])>(b + i);
        Scaled::Sum totals[PARTS][T];
        vh mins[PARTS][4];  // of two sub-blocks each
        for (auto & of_part : totals) {
            each<T>([&](auto t) { of_part[t] = Scaled::none(); });
        }
        for (int pair = 0; pair < 4; pair++) {
            const ScalesAndMins lo(b[i].scales, 2*pair);
            const ScalesAndMins hi(b[i].scales, 2*pair + 1);
            const __m128i both_mins = _mm_unpacklo_epi8(lo.mins(), hi.mins());
#pragma GCC unroll 1  // unrolled, the activations of both parts would be spilled to memory
            for (int part = 0; part < PARTS; part++) {
                mins[part][pair] = bytes_to_16(part == 0 ? both_mins : _mm_srli_si128(both_mins, 8));
                add_pair<T>(b[i], pair, part, {lo.scales(part), hi.scales(part)}, tokens, 256*i + 64*pair, totals[part]);
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

template <typename B>
void product_of_32s(const Weights & weights, int64_t row0, int64_t row1, const Token * tokens, int n_tokens) {
    for (int64_t row = row0; row < row1; row += 8) {
        const auto b = (const B *) (weights.data + row*weights.row_size);
        in_tiles<TILE>(n_tokens, [&](auto n, int t) { tile_of_32s<B, n>(b, weights.k/256, tokens + t, row); });
    }
}

// --- Q2_K and Q6_K: blocks of 256 with sixteen scales per row ---

// Two sub-blocks of 16 are in equal bits of 32 bytes of a row, and their scales are side by side. Sums of four products of
// weights of six bits fit 16 bits, so integer sums are multiplied by integer scales, with VNNI too.

// Scales and minimums of four bits.
struct Q2_K {
    using block = block_q2_Kx8;
    const block & b;
    int           part;
    vi            raw[4];

    Q2_K(const block & b, int half, int part) : b(b), part(part) {
        each<4>([&](auto j) { raw[j] = load(b.qs + 256*half + VB*part + 64*j); });
    }
    template <int RUN> vi weights(int j) const { return and_(right<2*RUN>(raw[j]), repeat(3)); }

    __m128i both(int pair) const { return _mm_loadu_si128((const __m128i *) (b.scales + 16*pair)); }
    template <int SIDE> vi scales(int pair) const {
        const __m128i bytes = _mm_and_si128(part == 0 ? both(pair) : _mm_srli_si128(both(pair), 8), _mm_set1_epi8(15));
        constexpr char A = SIDE;
        return each_of_four(_mm_shuffle_epi8(bytes, _mm_setr_epi8(A, A + 2, A + 4, A + 6, A + 8, A + 10, A + 12, A + 14,
                                                                  -1, -1, -1, -1, -1, -1, -1, -1)));
    }
    vh mins(int pair) const {
        const __m128i bytes = _mm_and_si128(_mm_srli_epi16(both(pair), 4), _mm_set1_epi8(15));
        return bytes_to_16(part == 0 ? bytes : _mm_srli_si128(bytes, 8));
    }
    static vf finish(const block & b, int part, vi total, vh below, vf scale_in, vf sum) {
        sum = fma(to_float(total), mul(pair_scales(b.d + ROWS*part), scale_in), sum);
        return fnma(to_float(first_of_pairs(below)), mul(pair_scales(b.dmin + ROWS*part), scale_in), sum);
    }
};

// Signed scales of eight bits, and weights stored with 32 added. Four low bits of a weight are in ql, two in qh.
struct Q6_K {
    using block = block_q6_Kx8;
    const block &   b;
    const uint8_t * ql;
    int             part;
    vi              high[4];

    Q6_K(const block & b, int half, int part) : b(b), ql(b.ql + 512*half + VB*part), part(part) {
        each<4>([&](auto j) { high[j] = load(b.qh + 256*half + VB*part + 64*j); });
    }
    template <int RUN> vi weights(int j) const {
        const vi raw = load(ql + 256*(RUN%2) + 64*j);
        const vi up  = RUN < 2 ? left<RUN == 0 ? 4 : 2>(high[j]) : right<RUN == 3 ? 2 : 0>(high[j]);
        return or_(and_(RUN < 2 ? raw : right<4>(raw), repeat(15)), and_(up, repeat(0x30)));
    }

    __m128i side(int pair, int i) const { return _mm_loadl_epi64((const __m128i *) (b.scales + 16*pair + 8*i + ROWS*part)); }
    template <int SIDE> vi scales(int pair) const { return each_of_four_signed(side(pair, SIDE)); }
    vh mins(int pair) const { return signed_to_16(_mm_unpacklo_epi8(side(pair, 0), side(pair, 1))); }
    static vf finish(const block & b, int part, vi total, vh below, vf scale_in, vf sum) {
        const vi exact = sub32(total, left32<5>(first_of_pairs(below)));
        return fma(to_float(exact), mul(pair_scales(b.d + ROWS*part), scale_in), sum);
    }
};

template <typename W, int T>
void tile_of_16s(const typename W::block * b, int64_t n_blocks, const Token * tokens, int64_t row) {
    vf sums[PARTS][T];
    clear(sums);
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
                const W of(b[i], half, part);
                each<4>([&](auto run) {
                    vi w[4];
                    each<4>([&](auto j) { w[j] = of.template weights<run>(j); });
                    const int pair = 4*half + run;
                    const vi  first = of.template scales<0>(pair), second = of.template scales<1>(pair);
                    const vh  mins = of.mins(pair);
                    each<T>([&](auto t) {
                        const int8_t * values = (const int8_t *) tokens[t].in.values + 256*i + 32*pair;
                        const auto products = [&](int j) { return dot2(w[j], repeat8(values + 8*j)); };
                        totals[t] = mac2(totals[t], add16(products(0), products(1)), first);
                        totals[t] = mac2(totals[t], add16(products(2), products(3)), second);
                        below[t]  = mac16(below[t], mins, load_i32(tokens[t].in.sums + 16*i + 2*pair));
                    });
                });
            }
            each<T>([&](auto t) {
                sums[part][t] = W::finish(b[i], part, totals[t], below[t], repeat_f(tokens[t].in.scales[i]), sums[part][t]);
            });
        }
    }
    store_sums(sums, tokens, row);
}

template <typename W>
void product_of_16s(const Weights & weights, int64_t row0, int64_t row1, const Token * tokens, int n_tokens) {
    for (int64_t row = row0; row < row1; row += 8) {
        const auto b = (const typename W::block *) (weights.data + row*weights.row_size);
        in_tiles<TILE>(n_tokens, [&](auto n, int t) { tile_of_16s<W, n>(b, weights.k/256, tokens + t, row); });
    }
}

}  // namespace

Scheme column_scheme(ggml_type type) {
    switch (type) {
        case GGML_TYPE_Q4_0:   return {Q4_0::FORM, nibble_product<Q4_0>};
        case GGML_TYPE_IQ4_NL: return {IQ4_NL::FORM, nibble_product<IQ4_NL>};
        case GGML_TYPE_MXFP4:  return {MXFP4::FORM, nibble_product<MXFP4>};
        case GGML_TYPE_Q4_K:   return {{Layout::q8k_sums32}, product_of_32s<block_q4_Kx8>};
        case GGML_TYPE_Q5_K:   return {{Layout::q8k_sums32}, product_of_32s<block_q5_Kx8>};
        case GGML_TYPE_Q2_K:   return {{Layout::q8k_sums16}, product_of_16s<Q2_K>};
        case GGML_TYPE_Q6_K:   return {{Layout::q8k_sums16}, product_of_16s<Q6_K>};
        case GGML_TYPE_IQ4_XS: return iq4_xs_column_scheme();
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
