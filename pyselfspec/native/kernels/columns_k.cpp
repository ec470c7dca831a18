// Blocks of 256 weights with eight rows side by side: K-quants that upstream has repacked, eight values of each row in turn
// (block_q4_Kx8, block_q5_Kx8, block_q2_Kx8, block_q6_Kx8), and Q3_K and IQ4_XS in layouts of ours. A block has 256 values of each
// row, which are eight runs of 32.
#include "columns.h"

#if defined(__AVX2__) && defined(SELFSPEC_KERNELS)

#define GGML_COMMON_IMPL_CPP
#include "repack.h"  // declares the blocks

namespace selfspec {

namespace {

// A type of blocks is a struct of some runs of a block, RUNS of each of GROUPS groups. It has
//   weights(run, j)         vector j of a run, unsigned bytes
//   scale(run)              what a run's products are multiplied by
//   pairs(i)                two bytes of every row that belong to sums of the token's values: minimums, or scales
//   add(total, w, values, scale)   the total of a row's lanes with the scaled products of a run
//   finish(b, total, below, scale_in, sum)   below: of the bytes in `pairs` times the token's sums
//   FORM                    the activations' form
constexpr int PAIRS_AT_ONCE = EACH/4;

template <typename K> constexpr int N_PAIRS = K::GROUPS*K::PAIRS;
template <typename K> using Pairs = __m128i[std::max(1, N_PAIRS<K>)];

// The activations of a run, one of eight of block i.
template <typename K> const int8_t * values_of(const Token & token, int64_t i, int run) {
    constexpr size_t SIZE = K::FORM.layout == Layout::q8k_starts ? sizeof(ColumnRun) : 32;
    return (const int8_t *) token.in.values + SIZE*(8*i + run);
}

// Products of the sums of tokens' values and the bytes that belong to them. Each pair of bytes has two sums.
template <typename K, int T> void multiply_sums(const __m128i * pairs, const Token * tokens, int64_t i, vi (&below)[T]) {
    each<T>([&](auto t) { below[t] = zero_i(); });
    each<N_PAIRS<K>/PAIRS_AT_ONCE>([&](auto m) {
        const vi bytes = byte_pairs(pairs + PAIRS_AT_ONCE*m);
        each_token<T>([&](auto t) {
            const int16_t * sums = tokens[t].in.sums + 2*N_PAIRS<K>*i + 2*PAIRS_AT_ONCE*m;
            below[t] = mac2(below[t], bytes, for_rows(sums));
        });
    });
}

template <typename K, int T>
SELFSPEC_TILE void tile(const typename K::block * b, int64_t n_blocks, const Token * tokens, int64_t row) {
    constexpr int GROUP_LINES = (LINES<sizeof(*b)> + K::GROUPS - 1)/K::GROUPS;  // fetched run by run: not so many at once
    vf sums[T];
    each<T>([&](auto t) { sums[t] = zero(); });
    for (int64_t i = 0; i < n_blocks; i++) {
        vi totals[T];
        each<T>([&](auto t) { totals[t] = zero_i(); });
        Pairs<K> pairs;
        for (int group = 0; group < K::GROUPS; group++) {
            const K of(b[i], group);
            each<K::PAIRS>([&](auto p) { pairs[K::PAIRS*group + p] = of.pairs(p); });
            each<K::RUNS>([&](auto run) {
                fetch_lines<GROUP_LINES*run/K::RUNS, GROUP_LINES*(run + 1)/K::RUNS>((const char *) (b + i) + 64*GROUP_LINES*group);
                const auto computed = [&](int j) { return of.template weights<run>(j); };
                vi kept[PER_RUN];
                if constexpr (T > 1) {
                    each<PER_RUN>([&](auto j) { kept[j] = computed(j); });
                }
                const auto weights = [&](int j) { return T > 1 ? kept[j] : computed(j); };
                const auto scale   = of.template scale<run>();
                each_token<T>([&](auto t) {
                    totals[t] = K::add(totals[t], weights, values_of<K>(tokens[t], i, K::RUNS*group + run), scale);
                });
            });
        }
        vi below[T];
        multiply_sums<K>(pairs, tokens, i, below);
        each_token<T>([&](auto t) { sums[t] = K::finish(b[i], totals[t], below[t], repeat_f(tokens[t].in.scales[i]), sums[t]); });
    }
    store_sums(sums, tokens, row);
}

// --- more tokens than a tile has: blocks are unpacked once, into bytes and spread scales ---

template <typename K> struct Unpacked {
    vi                        weights[8][PER_RUN];
    typename K::Scale         scales[8];
    Pairs<K>                  pairs;
    const typename K::block * block;

    void read(const typename K::block * b) {
        block = b;
        for (int group = 0; group < K::GROUPS; group++) {
            const K of(*b, group);
            each<K::PAIRS>([&](auto p) { pairs[K::PAIRS*group + p] = of.pairs(p); });
            each<K::RUNS>([&](auto run) {
                const int to = K::RUNS*group + run;
                each<PER_RUN>([&](auto j) { weights[to][j] = of.template weights<run>(j); });
                scales[to] = of.template scale<run>();
            });
        }
    }
};

// Adds block i of G groups of eight rows times T tokens to sums, of which a group has MAX_TOKENS. Not inlined, so that sums stay in
// memory and totals in registers.
template <typename K, int G, int T>
SELFSPEC_TILE void add_unpacked(const Unpacked<K> * from, const Token * tokens, int64_t i, vf * sums) {
    vi totals[T][G];
    each<T>([&](auto t) { each<G>([&](auto g) { totals[t][g] = zero_i(); }); });
#pragma GCC unroll 1
    for (int run = 0; run < 8; run++) {
        each_token<T>([&](auto t) {
            each<G>([&](auto g) {
                const auto weights = [&](int j) { return from[g].weights[run][j]; };
                totals[t][g] = K::add(totals[t][g], weights, values_of<K>(tokens[t], i, run), from[g].scales[run]);
            });
        });
    }
    each<G>([&](auto g) {
        vf * of_group = sums + MAX_TOKENS*g;
        vi below[T];
        multiply_sums<K>(from[g].pairs, tokens, i, below);
        vf finished[T];  // stored together, so that the block's scales are read once
        each<T>([&](auto t) { finished[t] = K::finish(*from[g].block, totals[t][g], below[t], repeat_f(tokens[t].in.scales[i]), of_group[t]); });
        each<T>([&](auto t) { of_group[t] = finished[t]; });
    });
}

// Groups of eight rows of a prompt that share the activations loaded: two where there are registers for their totals. With few tokens
// memory would be read in two streams instead of one.
constexpr int ROW_GROUPS = VB == 64 ? 2 : 1;

// G groups of eight rows from `row` on. AT_ONCE blocks of theirs fit into the first-level cache beside the activations of a tile.
template <typename K, int G> void many(const Weights & weights, int64_t row, const Token * tokens, int n_tokens) {
    constexpr int64_t AT_ONCE = 4/G;
    const int64_t n_blocks = weights.k/256;
    Unpacked<K> unpacked[AT_ONCE][G];
    vf sums[G][MAX_TOKENS];
    for (auto & of_group : sums) {
        std::fill_n(of_group, n_tokens, zero());
    }
    for (int64_t i0 = 0; i0 < n_blocks; i0 += AT_ONCE) {
        const int64_t n_here = std::min(AT_ONCE, n_blocks - i0);
        for (int64_t i = 0; i < n_here; i++) {
            for (int g = 0; g < G; g++) {
                const auto b = (const typename K::block *) (weights.data + (row + 8*g)*weights.row_size) + i0 + i;
                fetch_ahead<sizeof(*b)>(b);
                unpacked[i][g].read(b);
            }
        }
        in_tiles<COLUMN_TILE>(n_tokens, [&](auto n, int first) {
            constexpr int AT_A_TIME = n == COLUMN_TILE ? G : 1;
            for (int g = 0; g < G; g += AT_A_TIME) {
                for (int64_t i = 0; i < n_here; i++) {
                    add_unpacked<K, AT_A_TIME, n>(unpacked[i] + g, tokens + first, i0 + i, sums[g] + first);
                }
            }
        });
    }
    for (int g = 0; g < G; g++) {
        for (int t = 0; t < n_tokens; t++) {
            store_rows(tokens[t].out + row + 8*g, sums[g][t]);
        }
    }
}

template <typename K>
void product(const Weights & weights, int64_t row0, int64_t row1, const Token * tokens, int n_tokens) {
    int64_t row = row0;
    for (; n_tokens > MAX_WIDTH && row + 8*ROW_GROUPS <= row1; row += 8*ROW_GROUPS) {
        many<K, ROW_GROUPS>(weights, row, tokens, n_tokens);
    }
    for (; n_tokens > COLUMN_TILE && row < row1; row += 8) {
        many<K, 1>(weights, row, tokens, n_tokens);
    }
    for (; row < row1; row += 8) {
        const auto b = (const typename K::block *) (weights.data + row*weights.row_size);
        in_tiles<COLUMN_TILE>(n_tokens, [&](auto n, int t) { tile<K, n>(b, weights.k/256, tokens + t, row); });
    }
}

// The blocks' scales and minimums for the whole of it.
template <typename B> vf add_scaled(const B & b, vi total, vi below, vf scale_in, vf sum) {
    sum = fma(to_float(total), mul(row_halves(b.d), scale_in), sum);
    return fnma(to_float(below), mul(row_halves(b.dmin), scale_in), sum);
}

// Signed scales of six bits, stored with 32 added: the lower four bits of each byte of `low`, and the two above them of `high`.
inline __m128i six_bits(__m128i low, __m128i high) {
    const __m128i both = _mm_or_si128(_mm_and_si128(low, _mm_set1_epi8(15)), _mm_and_si128(high, _mm_set1_epi8(0x30)));
    return _mm_sub_epi8(both, _mm_set1_epi8(32));
}

// --- Q4_K and Q5_K: blocks of 256 with eight 6-bit scales and minimums per row ---

// Scales and minimums of sub-block `sub`, eight rows each.
struct ScalesAndMins {
    __m128i scales, mins;

    ScalesAndMins(const uint8_t * packed, int sub) {
        uint32_t u[3];
        memcpy(u, packed + 12*sub, 12);
        const uint32_t s0 = u[0] & 0x3f3f3f3f;
        const uint32_t s1 = (u[2] & 0x0f0f0f0f) | (((u[0] >> 6) & 0x03030303) << 4);
        const uint32_t m0 = u[1] & 0x3f3f3f3f;
        const uint32_t m1 = ((u[2] >> 4) & 0x0f0f0f0f) | (((u[1] >> 6) & 0x03030303) << 4);
        scales = _mm_setr_epi32((int) s0, (int) s1, (int) m0, (int) m1);
        mins   = _mm_srli_si128(scales, 8);
    }
};

// Adds bit `bit` of the bytes in qh, which have the fifth bits of eight sub-blocks. A block of Q4_K has none.
inline vi with_fifth_bit(const block_q4_Kx8 &, vi w, int, int)        { return w; }
inline vi with_fifth_bit(const block_q5_Kx8 & b, vi w, int j, int bit) {
    return add_where(w, eight_rows(b.qh, j), repeat((int8_t) (1 << bit)), 16);
}

// Two sub-blocks: one in the lower nibbles, one in the upper.
template <typename B, int LIMIT> struct Of32s {
    using block = B;
    using Scale = vi;
    static constexpr Form FORM = {Layout::q8k_sums32};
    static constexpr int  GROUPS = 4, RUNS = 2, PAIRS = 1;
    const B &           b;
    int                 group;
    const ScalesAndMins sub[2];
    vi                  raw[PER_RUN];

    Of32s(const B & b, int group) : b(b), group(group), sub{{b.scales, 2*group}, {b.scales, 2*group + 1}} {
        each<PER_RUN>([&](auto j) { raw[j] = eight_rows(b.qs + 256*group, j); });
    }
    template <int RUN> vi weights(int j) const {
        return with_fifth_bit(b, and_(RUN == 0 ? raw[j] : right<4>(raw[j]), repeat(15)), j, 2*group + RUN);
    }
    template <int RUN> vi scale() const { return row_factors(sub[RUN].scales); }
    __m128i pairs(int) const            { return _mm_unpacklo_epi8(sub[0].mins, sub[1].mins); }

    template <typename W> static vi add(vi total, W w, const int8_t * values, vi scale) {
        return add_products<LIMIT, 0, PER_RUN>(total, w, values, scale);
    }
    static vf finish(const B & b, vi total, vi below, vf scale_in, vf sum) { return add_scaled(b, total, below, scale_in, sum); }
};

using Q4_K = Of32s<block_q4_Kx8, 16>;
using Q5_K = Of32s<block_q5_Kx8, 32>;

// --- Q2_K, Q3_K and Q6_K: blocks of 256 with sixteen scales per row ---

// Two sub-blocks of 16 are in equal bits of 32 bytes of a row, and their scales are side by side.
template <int LIMIT> struct Of16s {
    struct Scale { vi first, second; };
    static constexpr Form FORM = {Layout::q8k_sums16};
    static constexpr int  GROUPS = 2, RUNS = 4, PAIRS = 4;

    // sides: of each row the first sub-block's scale, then of each row the second's
    static Scale   scale_of(__m128i sides) { return {row_factors(sides), row_factors(upper8(sides))}; }
    static __m128i pairs_of(__m128i sides) { return _mm_unpacklo_epi8(sides, upper8(sides)); }

    template <typename W> static vi add(vi total, W w, const int8_t * values, const Scale & scale) {
        total = add_products<LIMIT, 0, PER_RUN/2>(total, w, values, scale.first);
        return add_products<LIMIT, PER_RUN/2, PER_RUN/2>(total, w, values, scale.second);
    }
};

// Two bits of each weight are in qs.
template <typename B, int LIMIT> struct TwoBits : Of16s<LIMIT> {
    using block = B;
    const B & b;
    int       group;
    vi        raw[PER_RUN];

    TwoBits(const B & b, int group) : b(b), group(group) {
        each<PER_RUN>([&](auto j) { raw[j] = eight_rows(b.qs + 256*group, j); });
    }
    template <int RUN> vi two_bits(int j) const { return and_(right<2*RUN>(raw[j]), repeat(3)); }
};

// Scales and minimums of four bits.
struct Q2_K : TwoBits<block_q2_Kx8, 4> {
    using TwoBits::TwoBits;
    template <int RUN> vi weights(int j) const { return two_bits<RUN>(j); }

    __m128i both(int run) const { return _mm_loadu_si128((const __m128i *) (b.scales + 64*group + 16*run)); }
    template <int RUN> Scale scale() const {
        const __m128i bytes = _mm_and_si128(both(RUN), _mm_set1_epi8(15));
        const __m128i sides = _mm_shuffle_epi8(bytes, _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
        return scale_of(sides);
    }
    __m128i pairs(int run) const { return _mm_and_si128(_mm_srli_epi16(both(run), 4), _mm_set1_epi8(15)); }
    static vf finish(const block & b, vi total, vi below, vf scale_in, vf sum) {
        return add_scaled(b, total, below, scale_in, sum);
    }
};

// Signed scales of six bits. A weight's third bit, in hmask, is not set where 4 are subtracted.
struct Q3_K : TwoBits<block_q3_Kx8, 8> {
    using TwoBits::TwoBits;
    template <int RUN> vi weights(int j) const {
        return add_where(two_bits<RUN>(j), eight_rows(b.hmask, j), repeat((int8_t) (1 << (4*group + RUN))), 4);
    }

    __m128i sides(int run) const {
        const __m128i low  = _mm_srli_epi16(_mm_loadu_si128((const __m128i *) (b.scales + 16*run)), 4*group);
        const __m128i high = _mm_srli_epi16(_mm_loadu_si128((const __m128i *) (b.scales + 64 + 16*(run%2))), 4*group + run/2*2);
        return six_bits(low, _mm_slli_epi16(high, 4));
    }
    template <int RUN> Scale scale() const { return scale_of(sides(RUN)); }
    __m128i pairs(int run) const           { return pairs_of(sides(run)); }
    static vf finish(const block & b, vi total, vi below, vf scale_in, vf sum) {
        return fma(to_float(sub32(total, left32<2>(below))), mul(row_halves(b.d), scale_in), sum);
    }
};

// Signed scales of eight bits, and weights stored with 32 added. Four low bits of a weight are in ql, two in qh. With VNNI a sum of
// products begins where 32 times the activations is subtracted, so that the products of eight weights fit 16 bits and have one mac2.
struct Q6_K : Of16s<64> {
    using block = block_q6_Kx8;
    static constexpr Form FORM  = HAS_VNNI ? Form{Layout::q8k_starts, 32} : Of16s::FORM;
    static constexpr int  PAIRS = HAS_VNNI ? 0 : Of16s::PAIRS;
    const block & b;
    int           group;
    vi            high[PER_RUN];

    Q6_K(const block & b, int group) : b(b), group(group) {
        each<PER_RUN>([&](auto j) { high[j] = eight_rows(b.qh + 256*group, j); });
    }
    template <int RUN> vi weights(int j) const {
        const vi raw = eight_rows(b.ql + 512*group + 256*(RUN%2), j);
        const vi up  = RUN < 2 ? left<RUN == 0 ? 4 : 2>(high[j]) : right<RUN == 3 ? 2 : 0>(high[j]);
        return or_(and_(RUN < 2 ? raw : right<4>(raw), repeat(15)), and_(up, repeat(0x30)));
    }

    __m128i sides(int run) const { return _mm_loadu_si128((const __m128i *) (b.scales + 64*group + 16*run)); }
    template <int RUN> Scale scale() const { return scale_of(sides(RUN)); }
    __m128i pairs(int run) const           { return pairs_of(sides(run)); }

    template <typename W> static vi add(vi total, W w, const int8_t * values, const Scale & scale) {
        if constexpr (!HAS_VNNI) {
            return Of16s::add(total, w, values, scale);
        }
        const int32_t * starts = ((const ColumnRun *) values)->starts;
        each<PER_RUN/2>([&](auto i) {
            const vi first = dot4(for_rows(starts + EACH/4*i), w(2*i), for_rows(values + EACH*2*i));
            const vi both  = dot4(first, w(2*i + 1), for_rows(values + EACH*(2*i + 1)));
            total = mac2(total, both, i < PER_RUN/4 ? scale.first : scale.second);
        });
        return total;
    }
    static vf finish(const block & b, vi total, vi below, vf scale_in, vf sum) {
        const vi exact = HAS_VNNI ? total : sub32(total, left32<5>(below));
        return fma(to_float(exact), mul(row_halves(b.d), scale_in), sum);
    }
};

// --- IQ4_XS: blocks of 256 with eight signed scales of six bits per row, nibbles that encode signed values ---

// Products are scaled and summed as integers, below 2^28 for all 256 weights with SIGN_OFFSET.
struct IQ4_XS {
    using block = block_iq4_xsx8;
    using Scale = vi;
    static constexpr Form FORM = {Layout::q8k_sums32};
    static constexpr int  GROUPS = 4, RUNS = 2, PAIRS = 1;
    static_assert(!HAS_VNNI || SIGN_OFFSET == 1 << 7, "what is subtracted");
    __m128i scales[2];
    vi      raw[PER_RUN];

    IQ4_XS(const block & b, int group) {
        const __m128i low  = eight_bytes(b.scales_l + 8*group);
        const __m128i high = _mm_srli_epi16(eight_bytes(b.scales_h + 8*(group/2)), 4*(group%2));
        scales[0] = six_bits(low, _mm_slli_epi16(high, 4));
        scales[1] = six_bits(_mm_srli_epi16(low, 4), _mm_slli_epi16(high, 2));
        each<PER_RUN>([&](auto j) { raw[j] = eight_rows(b.qs + 256*group, j); });
    }
    template <int RUN> vi weights(int j) const {
        const v16 table = plus8(load16(kvalues_iq4nl), SIGN_OFFSET);
        return lookup(table, and_(RUN == 0 ? raw[j] : right<4>(raw[j]), repeat(15)));
    }
    template <int RUN> vi scale() const { return row_factors(scales[RUN]); }
    __m128i pairs(int) const            { return _mm_unpacklo_epi8(scales[0], scales[1]); }

    template <typename W> static vi add(vi total, W w, const int8_t * values, vi scale) {
        if constexpr (HAS_VNNI) {
            return add32(total, mul32(add_signed_run(zero_i(), w, values), scale));
        }
        each<PER_RUN>([&](auto j) { total = mac2(total, Signed(w(j)).dot2(for_rows(values + EACH*j)), scale); });
        return total;
    }
    static vf finish(const block & b, vi total, vi below, vf scale_in, vf sum) {
        const vi exact = HAS_VNNI ? sub32(total, left32<7>(below)) : total;
        return fma(to_float(exact), mul(row_halves(b.d), scale_in), sum);
    }
};

}  // namespace

Scheme k_column_scheme(ggml_type type) {
    switch (type) {
        case GGML_TYPE_Q4_K:   return {Q4_K::FORM, product<Q4_K>};
        case GGML_TYPE_Q5_K:   return {Q5_K::FORM, product<Q5_K>};
        case GGML_TYPE_Q2_K:   return {Q2_K::FORM, product<Q2_K>};
        case GGML_TYPE_Q3_K:   return {Q3_K::FORM, product<Q3_K>};
        case GGML_TYPE_Q6_K:   return {Q6_K::FORM, product<Q6_K>};
        case GGML_TYPE_IQ4_XS: return {IQ4_XS::FORM, product<IQ4_XS>};
        default:               return {};
    }
}

}  // namespace selfspec
#endif
