// K-quants that upstream has repacked: eight rows side by side, eight values of each in turn (block_q4_Kx8, block_q5_Kx8,
// block_q2_Kx8, block_q6_Kx8). A block has 256 values of each row, which are eight runs of 32.
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

// --- many tokens: blocks are unpacked once, into bytes and spread scales ---

// For types whose bits lie apart, this saves a fifth of the time; Q4_K and Q2_K are unpacked as fast as they are read again.
constexpr int FEW = 2*TILE;

// K: a type of blocks, see Of32s.
template <typename K> struct Unpacked {
    vi                weights[8][4];
    typename K::Scale scales[8];
    vi                mins[K::N_FOURS];
};

// Adds block i of ROWS rows times T tokens to sums. Not inlined, so that sums stay in memory and totals in registers.
template <typename K, int T>
[[gnu::noinline]] void add_unpacked(const Unpacked<K> & from, const typename K::block & b, int part, const Token * tokens, int64_t i,
                                    vf * sums) {
    typename K::Total totals[T];
    each<T>([&](auto t) { totals[t] = K::none(); });
#pragma GCC unroll 1
    for (int run = 0; run < 8; run++) {
        each<T>([&](auto t) {
            vi a[4];
            each<4>([&](auto j) { a[j] = repeat8(tokens[t].in.values + 256*i + 32*run + 8*j); });
            totals[t] = K::add(totals[t], from.weights[run], a, from.scales[run]);
        });
    }
    each<T>([&](auto t) {
        vi below = zero_i();
        each<K::N_FOURS>([&](auto m) {
            below = mac2(below, from.mins[m], repeat8(tokens[t].in.sums + 4*K::N_FOURS*i + 4*m));
        });
        sums[t] = K::finish(b, part, totals[t], below, repeat_f(tokens[t].in.scales[i]), sums[t]);
    });
}

// AT_ONCE blocks of eight rows fit into the first-level cache beside the activations of a tile.
template <typename K>
void many(const Weights & weights, int64_t row0, int64_t row1, const Token * tokens, int n_tokens) {
    constexpr int64_t AT_ONCE = 4;
    const int64_t n_blocks = weights.k/256;
    Unpacked<K> unpacked[AT_ONCE][PARTS];
    vf sums[PARTS][MAX_TOKENS];
    for (int64_t row = row0; row < row1; row += 8) {
        const auto b = (const typename K::block *) (weights.data + row*weights.row_size);
        for (auto & of_part : sums) {
            std::fill_n(of_part, n_tokens, zero());
        }
        for (int64_t i0 = 0; i0 < n_blocks; i0 += AT_ONCE) {
            const int64_t i1 = std::min(i0 + AT_ONCE, n_blocks);
            for (int64_t i = i0; i < i1; i++) {
                prefetch<sizeof(b[i])>(b + i);
                for (int part = 0; part < PARTS; part++) {
                    Unpacked<K> & to = unpacked[i - i0][part];
                    K::unpack(b[i], part, to.weights, to.scales, to.mins);
                }
            }
            in_tiles<TILE>(n_tokens, [&](auto n, int first) {
                for (int64_t i = i0; i < i1; i++) {
                    for (int part = 0; part < PARTS; part++) {
                        add_unpacked<K, n>(unpacked[i - i0][part], b[i], part, tokens + first, i, sums[part] + first);
                    }
                }
            });
        }
        for (int t = 0; t < n_tokens; t++) {
            for (int part = 0; part < PARTS; part++) {
                store_pair_sums(tokens[t].out + row + ROWS*part, sums[part][t]);
            }
        }
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
        for (auto & of_part : totals) {
            each<T>([&](auto t) { of_part[t] = Scaled::none(); });
        }
        __m128i both_mins[4];
        for (int pair = 0; pair < 4; pair++) {
            const ScalesAndMins lo(b[i].scales, 2*pair);
            const ScalesAndMins hi(b[i].scales, 2*pair + 1);
            both_mins[pair] = _mm_unpacklo_epi8(lo.mins(), hi.mins());
#pragma GCC unroll 1  // unrolled, the activations of both parts would be spilled to memory
            for (int part = 0; part < PARTS; part++) {
                add_pair<T>(b[i], pair, part, {lo.scales(part), hi.scales(part)}, tokens, 256*i + 64*pair, totals[part]);
            }
        }
        for (int part = 0; part < PARTS; part++) {
            const vf d    = pair_scales(b[i].d + ROWS*part);
            const vf dmin = pair_scales(b[i].dmin + ROWS*part);
            const vi mins[2] = {fours(both_mins[0], both_mins[1], part), fours(both_mins[2], both_mins[3], part)};
            for (int t = 0; t < T; t++) {
                const vf scale_in = repeat_f(tokens[t].in.scales[i]);
                vi below = zero_i();
                for (int four = 0; four < 2; four++) {
                    below = mac2(below, mins[four], repeat8(tokens[t].in.sums + 8*i + 4*four));
                }
                sums[part][t] = fma(Scaled::total(totals[part][t]), mul(d, scale_in), sums[part][t]);
                sums[part][t] = fnma(to_float(below), mul(dmin, scale_in), sums[part][t]);
            }
        }
    }
    store_sums(sums, tokens, row);
}

// The blocks of eight scales, for many().
template <typename B> struct Of32s {
    using block = B;
    using Total = Scaled::Sum;
    using Scale = Total;
    static constexpr int N_FOURS = 2;

    static void unpack(const B & b, int part, vi (&w)[8][4], Scale (&scales)[8], vi (&mins)[N_FOURS]) {
        __m128i both_mins[4];
        for (int pair = 0; pair < 4; pair++) {
            const ScalesAndMins lo(b.scales, 2*pair), hi(b.scales, 2*pair + 1);
            both_mins[pair]    = _mm_unpacklo_epi8(lo.mins(), hi.mins());
            scales[2*pair]     = Scaled::scale(lo.scales(part));
            scales[2*pair + 1] = Scaled::scale(hi.scales(part));
            for (int j = 0; j < 4; j++) {
                const vi raw = load(b.qs + 256*pair + VB*part + 64*j);
                w[2*pair][j]     = with_fifth_bit(b, and_(raw, repeat(15)), VB*part + 64*j, 2*pair);
                w[2*pair + 1][j] = with_fifth_bit(b, and_(right<4>(raw), repeat(15)), VB*part + 64*j, 2*pair + 1);
            }
        }
        each<N_FOURS>([&](auto four) { mins[four] = fours(both_mins[2*four], both_mins[2*four + 1], part); });
    }
    static Total none() { return Scaled::none(); }
    static Total add(Total total, const vi (&w)[4], const vi (&a)[4], const Scale & scale) { return Scaled::add(total, w, a, scale); }
    static vf finish(const B & b, int part, Total total, vi below, vf scale_in, vf sum) {
        sum = fma(Scaled::total(total), mul(pair_scales(b.d + ROWS*part), scale_in), sum);
        return fnma(to_float(below), mul(pair_scales(b.dmin + ROWS*part), scale_in), sum);
    }
};

template <typename B, bool UNPACKS = false>
void product_of_32s(const Weights & weights, int64_t row0, int64_t row1, const Token * tokens, int n_tokens) {
    if (UNPACKS && n_tokens > FEW) {
        return many<Of32s<B>>(weights, row0, row1, tokens, n_tokens);
    }
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
    vi mins(int pair) const {  // of this pair and the next
        const auto upper = [&](int i) { return _mm_and_si128(_mm_srli_epi16(both(i), 4), _mm_set1_epi8(15)); };
        return fours(upper(pair), upper(pair + 1), part);
    }
    static vf finish(const block & b, int part, vi total, vi below, vf scale_in, vf sum) {
        sum = fma(to_float(total), mul(pair_scales(b.d + ROWS*part), scale_in), sum);
        return fnma(to_float(below), mul(pair_scales(b.dmin + ROWS*part), scale_in), sum);
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
    vi mins(int pair) const {
        const auto sides = [&](int i) { return _mm_loadu_si128((const __m128i *) (b.scales + 16*i)); };
        const auto mixed = [&](int i) { return _mm_unpacklo_epi8(sides(i), _mm_srli_si128(sides(i), 8)); };
        return signed_fours(mixed(pair), mixed(pair + 1), part);
    }
    static vf finish(const block & b, int part, vi total, vi below, vf scale_in, vf sum) {
        const vi exact = sub32(total, left32<5>(below));
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
            vi below[T];
            each<T>([&](auto t) {
                totals[t] = zero_i();
                below[t]  = zero_i();
            });
            for (int half = 0; half < 2; half++) {
                const W of(b[i], half, part);
                each<4>([&](auto run) {
                    vi w[4];
                    each<4>([&](auto j) { w[j] = of.template weights<run>(j); });
                    const int pair = 4*half + run;
                    const vi  first = of.template scales<0>(pair), second = of.template scales<1>(pair);
                    each<T>([&](auto t) {
                        const int8_t * values = (const int8_t *) tokens[t].in.values + 256*i + 32*pair;
                        const auto products = [&](int j) { return dot2(w[j], repeat8(values + 8*j)); };
                        totals[t] = mac2(totals[t], add16(products(0), products(1)), first);
                        totals[t] = mac2(totals[t], add16(products(2), products(3)), second);
                    });
                    if constexpr (run%2 == 0) {
                        const vi mins = of.mins(pair);
                        each<T>([&](auto t) { below[t] = mac2(below[t], mins, repeat8(tokens[t].in.sums + 16*i + 2*pair)); });
                    }
                });
            }
            each<T>([&](auto t) {
                sums[part][t] = W::finish(b[i], part, totals[t], below[t], repeat_f(tokens[t].in.scales[i]), sums[part][t]);
            });
        }
    }
    store_sums(sums, tokens, row);
}

// The blocks of sixteen scales, for many().
template <typename W> struct Of16s {
    using block = typename W::block;
    using Total = vi;
    struct Scale { vi first, second; };
    static constexpr int N_FOURS = 4;

    static void unpack(const block & b, int part, vi (&w)[8][4], Scale (&scales)[8], vi (&mins)[N_FOURS]) {
        for (int half = 0; half < 2; half++) {
            const W of(b, half, part);
            each<4>([&](auto run) {
                const int pair = 4*half + run;
                each<4>([&](auto j) { w[pair][j] = of.template weights<run>(j); });
                scales[pair] = {of.template scales<0>(pair), of.template scales<1>(pair)};
                if constexpr (run%2 == 0) {
                    mins[pair/2] = of.mins(pair);
                }
            });
        }
    }
    static Total none() { return zero_i(); }
    static Total add(Total total, const vi (&w)[4], const vi (&a)[4], const Scale & scale) {
        total = mac2(total, add16(dot2(w[0], a[0]), dot2(w[1], a[1])), scale.first);
        return mac2(total, add16(dot2(w[2], a[2]), dot2(w[3], a[3])), scale.second);
    }
    static vf finish(const block & b, int part, Total total, vi below, vf scale_in, vf sum) {
        return W::finish(b, part, total, below, scale_in, sum);
    }
};

template <typename W, bool UNPACKS = false>
void product_of_16s(const Weights & weights, int64_t row0, int64_t row1, const Token * tokens, int n_tokens) {
    if (UNPACKS && n_tokens > FEW) {
        return many<Of16s<W>>(weights, row0, row1, tokens, n_tokens);
    }
    for (int64_t row = row0; row < row1; row += 8) {
        const auto b = (const typename W::block *) (weights.data + row*weights.row_size);
        in_tiles<TILE>(n_tokens, [&](auto n, int t) { tile_of_16s<W, n>(b, weights.k/256, tokens + t, row); });
    }
}

}  // namespace

Scheme k_column_scheme(ggml_type type) {
    switch (type) {
        case GGML_TYPE_Q4_K: return {{Layout::q8k_sums32}, product_of_32s<block_q4_Kx8>};
        case GGML_TYPE_Q5_K: return {{Layout::q8k_sums32}, product_of_32s<block_q5_Kx8, true>};
        case GGML_TYPE_Q2_K: return {{Layout::q8k_sums16}, product_of_16s<Q2_K>};
        case GGML_TYPE_Q6_K: return {{Layout::q8k_sums16}, product_of_16s<Q6_K, true>};
        default:             return {};
    }
}

}  // namespace selfspec
#endif
