// Products with blocks of 256 weights, eight rows side by side, eight values of each row in turn. A block has 256 values of each row,
// which are eight runs of 32, or four of 64.
#pragma once

#include "columns.h"

#if defined(__AVX2__) && defined(SELFSPEC_KERNELS)

namespace selfspec {

namespace {

// A type of blocks is a struct of some runs of a block, RUNS of each of GROUPS groups. It has
//   weights(run, j)         vector j of a run, unsigned bytes
//   scale(run)              what a run's products are multiplied by
//   pairs(i)                two bytes of every row that belong to sums of the token's values: minimums, or scales
//   add(total, w, values, scale)   the Total of a row's lanes with the scaled products of a run
//   finish(b, total, below, scale_in, sum)   below: of the bytes in `pairs` times the token's sums
//   FORM                    the activations' form
//   PAIRS                   how many `pairs` a group has; with none it needs no such function
//   Total, Scale            the types of totals and scales
constexpr int PAIRS_AT_ONCE = EACH/4;

template <typename K> constexpr int N_PAIRS = K::GROUPS*K::PAIRS;
template <typename K> constexpr int N_RUNS  = K::GROUPS*K::RUNS;
template <typename K> constexpr int VECTORS = 256/EACH/N_RUNS<K>;  // of a run
template <typename K> using Pairs = __m128i[std::max(1, N_PAIRS<K>)];

template <typename K> SELFSPEC_PART void read_pairs(const K & of, int group, __m128i * pairs) {
    if constexpr (K::PAIRS > 0) {
        each<K::PAIRS>([&](auto i) { pairs[K::PAIRS*group + i] = of.pairs(i); });
    }
}

// The activations of a run of block i.
template <typename K> const int8_t * values_of(const Token & token, int64_t i, int run) {
    return (const int8_t *) token.in.values + run_size(K::FORM.layout)*(N_RUNS<K>*i + run);
}

// Products of the sums of a token's values and the bytes that belong to them. Each pair of bytes has two sums.
template <typename K> struct SumFactors {
    vi bytes[std::max(1, N_PAIRS<K>/PAIRS_AT_ONCE)];

    SELFSPEC_PART explicit SumFactors(const __m128i * pairs) {
        each<N_PAIRS<K>/PAIRS_AT_ONCE>([&](auto m) { bytes[m] = byte_pairs(pairs + PAIRS_AT_ONCE*m); });
    }
    SELFSPEC_PART vi times(const Token & token, int64_t i) const {
        vi below = zero_i();
        each<N_PAIRS<K>/PAIRS_AT_ONCE>([&](auto m) {
            below = mac2(below, bytes[m], for_rows(token.in.sums + 2*N_PAIRS<K>*i + 2*PAIRS_AT_ONCE*m));
        });
        return below;
    }
};

template <typename K, int T>
SELFSPEC_TILE void tile(const typename K::block * b, int64_t n_blocks, const Token * tokens, int64_t row) {
    constexpr int GROUP_LINES = (LINES<sizeof(*b)> + K::GROUPS - 1)/K::GROUPS;  // fetched run by run: not so many at once
    vf sums[T];
    each<T>([&](auto t) { sums[t] = zero(); });
    for (int64_t i = 0; i < n_blocks; i++) {
        typename K::Total totals[T] = {};
        Pairs<K> pairs;
        for (int group = 0; group < K::GROUPS; group++) {
            const K of(b[i], group);
            read_pairs(of, group, pairs);
            each<K::RUNS>([&](auto run) {
                fetch_lines<GROUP_LINES*run/K::RUNS, GROUP_LINES*(run + 1)/K::RUNS>((const char *) (b + i) + 64*GROUP_LINES*group);
                const auto computed = [&](auto j) { return of.template weights<run>(j); };
                vi kept[VECTORS<K>];
                if constexpr (T > 1) {
                    each<VECTORS<K>>([&](auto j) { kept[j] = computed(j); });
                }
                const auto weights = [&](auto j) { return T > 1 ? kept[j] : computed(j); };
                const auto scale   = of.template scale<run>();
                each_token<T>([&](auto t) {
                    totals[t] = K::add(totals[t], weights, values_of<K>(tokens[t], i, K::RUNS*group + run), scale);
                });
            });
        }
        const SumFactors<K> factors(pairs);
        each_token<T>([&](auto t) {
            sums[t] = K::finish(b[i], totals[t], factors.times(tokens[t], i), repeat_f(tokens[t].in.scales[i]), sums[t]);
        });
    }
    store_sums(sums, tokens, row);
}

// --- more tokens than a tile has: blocks are unpacked once, into bytes and spread scales ---

template <typename K> struct Unpacked {
    vi                        weights[N_RUNS<K>][VECTORS<K>];
    typename K::Scale         scales[N_RUNS<K>];
    Pairs<K>                  pairs;
    const typename K::block * block;

    void read(const typename K::block * b) {
        block = b;
        for (int group = 0; group < K::GROUPS; group++) {
            const K of(*b, group);
            read_pairs(of, group, pairs);
            each<K::RUNS>([&](auto run) {
                const int to = K::RUNS*group + run;
                each<VECTORS<K>>([&](auto j) { weights[to][j] = of.template weights<run>(j); });
                scales[to] = of.template scale<run>();
            });
        }
    }
};

// Adds block i of G groups of eight rows times T tokens to sums, of which a group has MAX_TOKENS. Not inlined, so that sums stay in
// memory and totals in registers.
template <typename K, int G, int T>
SELFSPEC_TILE void add_unpacked(const Unpacked<K> * from, const Token * tokens, int64_t i, vf * sums) {
    typename K::Total totals[T][G] = {};
#pragma GCC unroll 1
    for (int run = 0; run < N_RUNS<K>; run++) {
        each_token<T>([&](auto t) {
            each<G>([&](auto g) {
                const auto weights = [&](int j) { return from[g].weights[run][j]; };
                totals[t][g] = K::add(totals[t][g], weights, values_of<K>(tokens[t], i, run), from[g].scales[run]);
            });
        });
    }
    each<G>([&](auto g) {
        vf * of_group = sums + MAX_TOKENS*g;
        const SumFactors<K> factors(from[g].pairs);
        vf finished[T];  // stored together, so that the block's scales are read once
        each<T>([&](auto t) {
            const vf scale = repeat_f(tokens[t].in.scales[i]);
            finished[t] = K::finish(*from[g].block, totals[t][g], factors.times(tokens[t], i), scale, of_group[t]);
        });
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

template <typename K> constexpr Scheme COLUMNS = {K::FORM, product<K>};

// --- what types share ---

// Signed scales of six bits, stored with 32 added: the lower four bits of each byte of `low`, and the two above them of `high`.
inline __m128i six_bits(__m128i low, __m128i high) {
    const __m128i both = _mm_or_si128(_mm_and_si128(low, _mm_set1_epi8(15)), _mm_and_si128(high, _mm_set1_epi8(0x30)));
    return _mm_sub_epi8(both, _mm_set1_epi8(32));
}

// Two sub-blocks of 16 are in equal bits of 32 bytes of a row, and their scales are side by side.
template <int LIMIT> struct Of16s {
    using Total = vi;
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

// Adds the products of 32 weights of every row, each half of them times its scale. Sums begin at the activations' halves, where the part
// of the weights' offset is subtracted. SIZE: the weights' largest without it, so that the sums fit 16 bits, whatever is between.
template <int SIZE, typename W, typename S> SELFSPEC_PART vi add_from_halves(vi total, W w, const int8_t * values, const S & scale) {
    const auto products = [&](int j) { return dot2(w(j), for_rows(values + EACH*j)); };
    const auto of_two   = [&](int i) {
        const vi start = for_rows((const char *) ((const ColumnRun *) values)->halves + EACH*i);
        return add16(add16(start, products(2*i)), products(2*i + 1));
    };
    if constexpr (PER_RUN == 8 && 8*127*SIZE < 1 << 15) {
        return mac2(mac2(total, add16(of_two(0), of_two(1)), scale.first), add16(of_two(2), of_two(3)), scale.second);
    }
    each<PER_RUN/2>([&](auto i) { total = mac2(total, of_two(i), i < PER_RUN/4 ? scale.first : scale.second); });
    return total;
}

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

}  // namespace

}  // namespace selfspec
#endif
