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

// --- unpacking ---

inline __m128i load128(const void * p)  { return _mm_loadu_si128((const __m128i *) p); }
inline __m256i load256(const void * p)  { return _mm256_loadu_si256((const __m256i *) p); }
inline float   as_float(ggml_half x)    { return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(x))); }

// 32 bytes hold 8/BITS runs of 32 weights, the first in the lowest bits. A vector has one run, or two with AVX-512.
#if defined(SELFSPEC_AVX512)
inline vi halves16(int lo, int hi)      { return _mm512_inserti64x4(repeat16((int16_t) lo), _mm256_set1_epi16((int16_t) hi), 1); }
inline vi halves8(int lo, int hi)       { return _mm512_inserti64x4(repeat((int8_t) lo), _mm256_set1_epi8((int8_t) hi), 1); }

template <int BITS> vi runs(const uint8_t * p, int i) {
    const int shift = 2*i*BITS%8;
    const vi  bytes = _mm512_broadcast_i64x4(load256(p + 32*(2*i*BITS/8)));
    return and_(_mm512_srlv_epi16(bytes, halves16(shift, shift + BITS)), repeat((1 << BITS) - 1));
}

// Bit BIT of the weights in w: run i has bit i of 32 bytes.
template <int BIT> vi with_bit(vi w, const uint8_t * p, int i) {
    return add_where(w, _mm512_broadcast_i64x4(load256(p)), halves8(1 << 2*i, 1 << (2*i + 1)), 1 << BIT);
}
#else
template <int BITS> vi runs(const uint8_t * p, int i) {
    return and_(_mm256_srli_epi16(load256(p + 32*(i*BITS/8)), i*BITS%8), repeat((1 << BITS) - 1));
}

template <int BIT> vi with_bit(vi w, const uint8_t * p, int i) {
    const vi all   = load256(p);
    const vi moved = i < BIT ? _mm256_slli_epi16(all, BIT - i) : _mm256_srli_epi16(all, i - BIT);
    return or_(w, and_(moved, repeat(1 << BIT)));
}
#endif

// --- scales, one for W weights ---

// Returns the byte-shuffle index that puts the right one of eight scales in each 16-bit lane: for sums of two products of
// vector i, or for sums of four products of vectors 2i and 2i + 1, between which packing alternates.
template <int W, bool PACKED> struct Order {
    alignas(VB) uint16_t lanes[N][LANES16] = {};
    constexpr Order() {
        for (int i = 0; i < (PACKED ? N/2 : N); i++) {
            for (int lane = 0; lane < LANES16; lane++) {
                const int packed = (2*i + lane%8/4)*VB + 4*(lane/8*4 + lane%4);
                const int scale  = (PACKED ? packed : i*VB + 2*lane)/W%8;
                lanes[i][lane] = (uint16_t) (2*scale | (2*scale + 1) << 8);
            }
        }
    }
};
template <int W, bool PACKED> constexpr Order<W, PACKED> ORDER;

template <int W> struct Scales {
    __m128i bytes;
    float   d;

    template <bool PACKED> vi lanes(int i) const {
        const bool second = W == 16 && i*(PACKED ? 2 : 1) >= N/2;
        const __m256i words = _mm256_cvtepi8_epi16(bytes);
        const __m128i eight = second ? _mm256_extracti128_si256(words, 1) : _mm256_castsi256_si128(words);
        return lookup(eight, load(ORDER<W, PACKED>.lanes[i]));
    }
    vf with(const Activations & in, int64_t k) const { return mul(repeat_f(d), repeat_f(in.scales[k/K_STEP])); }
};

// --- weights ---

struct Unsigned {  // below 64, so that sums of four products fit 16 bits
    static constexpr bool SMALL = true;
    vi w;
    vi dot2(vi a) const { return selfspec::dot2(w, a); }
};

struct Signed {  // the sign is applied to the activation
    static constexpr bool SMALL = false;
    vi w, size;
    explicit Signed(vi w) : w(w), size(abs8(w)) {}
    vi dot2(vi a) const { return selfspec::dot2(size, sign8(a, w)); }
};

// Weights stored with 2^SHIFT added; the sums of 16 activations are used to subtract its part of the product.
template <int SHIFT> struct Shifted {
    static constexpr Form FORM = {Layout::q8k_sums16};
    Scales<16> scales;

    Shifted(__m128i of_parts, ggml_half d) : scales{of_parts, as_float(d)} {}
    vf finish(vi total, const Activations & in, int64_t k, vf acc) const {
        const __m256i sums = load256(in.sums + k/16);
        const __m256i less = _mm256_slli_epi32(_mm256_madd_epi16(_mm256_cvtepi8_epi16(scales.bytes), sums), SHIFT);
        return fma(to_float(sub32(total, widen(less))), scales.with(in, k), acc);
    }
};

struct Q6_K : Shifted<5> {
    using block = block_q6_K;
    const block * b;

    explicit Q6_K(const block * b) : Shifted(load128(b->scales), b->d), b(b) {}

    // Four low bits, and two more elsewhere. Runs of 32 alternate between the lower and the upper nibbles of 64 bytes; each
    // takes the next two bits of 32 bytes.
#if defined(SELFSPEC_AVX512)
    Unsigned vector(int i) const {
        const vi ql   = load(b->ql + 64*(i/2));
        const vi qh   = _mm512_broadcast_i64x4(load256(b->qh + 32*(i/2)));
        const vi up   = _mm512_inserti64x4(_mm512_set1_epi16(4), _mm256_set1_epi16(2), 1);
        const vi down = _mm512_inserti64x4(zero_i(), _mm256_set1_epi16(2), 1);
        const vi high = i%2 == 0 ? _mm512_sllv_epi16(qh, up) : _mm512_srlv_epi16(qh, down);
        return {or_(and_(i%2 == 0 ? ql : right<4>(ql), repeat(15)), and_(high, repeat(0x30)))};
    }
#else
    Unsigned vector(int i) const {
        const vi ql = load(b->ql + 64*(i/4) + 32*(i%2));
        const vi qh = load(b->qh + 32*(i/4));
        const vi high[4] = {left<4>(qh), left<2>(qh), qh, right<2>(qh)};
        return {or_(and_(i%4 < 2 ? ql : right<4>(ql), repeat(15)), and_(high[i%4], repeat(0x30)))};
    }
#endif

};

// Two low bits, and a third elsewhere.
struct Q3_K : Shifted<2> {
    using block = block_q3_K;
    const block * b;

    explicit Q3_K(const block * b) : Shifted(six_bits(b->scales), b->d), b(b) {}
    Unsigned vector(int i) const { return {with_bit<2>(runs<2>(b->qs, i), b->hmask, i)}; }

    static __m128i six_bits(const uint8_t * from) {  // sixteen scales stored with 32 added
        uint32_t u[3];
        memcpy(u, from, 12);
        const auto four = [&](int i) {
            return (int32_t) (((u[i%2] >> (i/2*4)) & 0x0f0f0f0f) | (((u[2] >> (2*i)) & 0x03030303) << 4));
        };
        return _mm_sub_epi8(_mm_setr_epi32(four(0), four(1), four(2), four(3)), _mm_set1_epi8(32));
    }
};

// Weights with a minimum for every W of them, which is multiplied by the sum of W activations and subtracted.
template <int W> struct Minimums {
    static constexpr Form FORM = {W == 16 ? Layout::q8k_sums16 : Layout::q8k_sums32};
    Scales<W> scales;
    __m128i   mins;
    float     dmin;

    template <typename B> Minimums(const B * b, __m128i of_parts, __m128i mins) :
        scales{of_parts, as_float(b->GGML_COMMON_AGGR_U.GGML_COMMON_AGGR_S.d)}, mins(mins),
        dmin(as_float(b->GGML_COMMON_AGGR_U.GGML_COMMON_AGGR_S.dmin)) {}

    vi below(const int16_t * sums) const {
        if constexpr (W == 16) {
            return widen(_mm256_madd_epi16(_mm256_cvtepu8_epi16(mins), load256(sums)));
        } else {
            return widen(_mm_madd_epi16(_mm_cvtepu8_epi16(mins), load128(sums)));
        }
    }
    vf finish(vi total, const Activations & in, int64_t k, vf acc) const {
        acc = fma(to_float(total), scales.with(in, k), acc);
        return fnma(to_float(below(in.sums + k/W)), mul(repeat_f(dmin), repeat_f(in.scales[k/K_STEP])), acc);
    }
};

struct Q2_K : Minimums<16> {
    using block = block_q2_K;
    const block * b;

    explicit Q2_K(const block * b) : Minimums(b, four_bits(b, 0), four_bits(b, 4)), b(b) {}
    Unsigned vector(int i) const { return {runs<2>(b->qs, i)}; }

    static __m128i four_bits(const block * b, int shift) {
        return _mm_and_si128(_mm_srli_epi16(load128(b->scales), shift), _mm_set1_epi8(15));
    }
};

// Eight scales, then eight minimums, of six bits.
template <typename B> struct EightMinimums : Minimums<32> {
    using block = B;
    const B * b;

    explicit EightMinimums(const B * b) : EightMinimums(b, six_bits(b->scales)) {}
    EightMinimums(const B * b, __m128i both) : Minimums(b, both, _mm_srli_si128(both, 8)), b(b) {}

    static __m128i six_bits(const uint8_t * from) {
        uint32_t u[3];
        memcpy(u, from, 12);
        const uint32_t s0 = u[0] & 0x3f3f3f3f;
        const uint32_t s1 = (u[2] & 0x0f0f0f0f) | (((u[0] >> 6) & 0x03030303) << 4);
        const uint32_t m0 = u[1] & 0x3f3f3f3f;
        const uint32_t m1 = ((u[2] >> 4) & 0x0f0f0f0f) | (((u[1] >> 6) & 0x03030303) << 4);
        return _mm_setr_epi32((int) s0, (int) s1, (int) m0, (int) m1);
    }
};

struct Q4_K : EightMinimums<block_q4_K> {
    using EightMinimums::EightMinimums;
    Unsigned vector(int i) const { return {runs<4>(b->qs, i)}; }
};

struct Q5_K : EightMinimums<block_q5_K> {
    using EightMinimums::EightMinimums;
    Unsigned vector(int i) const { return {with_bit<4>(runs<4>(b->qs, i), b->qh, i)}; }
};

// Nibbles that encode signed values, with eight scales of six bits, stored with 32 added.
struct IQ4_XS {
    using block = block_iq4_xs;
    static constexpr Form FORM = {Layout::q8k};
    const block * b;
    Scales<32>    scales;

    explicit IQ4_XS(const block * b) : b(b), scales{six_bits(b), as_float(b->d)} {}

    Signed vector(int i) const {  // 16 bytes hold 32 weights, the first half in the low nibbles
#if defined(SELFSPEC_AVX512)
        const vi bytes = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 1, 0, 1, 2, 3, 2, 3),
                                                  _mm512_castsi256_si512(load256(b->qs + 32*i)));
        const vi right = _mm512_srlv_epi64(bytes, _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4));
#else
        const vi bytes = _mm256_broadcastsi128_si256(load128(b->qs + 16*i));
        const vi right = _mm256_srlv_epi64(bytes, _mm256_setr_epi64x(0, 0, 4, 4));
#endif
        return Signed(lookup(load128(kvalues_iq4nl), and_(right, repeat(15))));
    }
    vf finish(vi total, const Activations & in, int64_t k, vf acc) const {
        return fma(to_float(total), scales.with(in, k), acc);
    }

    static __m128i six_bits(const block * b) {
        int32_t low;
        memcpy(&low, b->scales_l, 4);
        const __m256i fours = _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28);
        const __m256i lows  = _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32(low), fours), _mm256_set1_epi32(15));
        const __m256i highs = _mm256_srlv_epi32(_mm256_set1_epi32(b->scales_h), _mm256_srli_epi32(fours, 1));
        const __m256i high  = _mm256_slli_epi32(_mm256_and_si256(highs, _mm256_set1_epi32(3)), 4);
        const __m256i all   = _mm256_sub_epi32(_mm256_or_si256(lows, high), _mm256_set1_epi32(32));
        const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
        return _mm_packs_epi16(words, words);
    }
};

// --- the product ---

// Sums of four products are packed into 16 bits before they are scaled.
template <typename P> constexpr bool PACKED = HAS_VNNI && decltype(std::declval<P>().vector(0))::SMALL;

// A block that is unpacked each time it is multiplied.
template <typename P> struct Packed {
    P p;
    explicit Packed(const typename P::block * b) : p(b) {}
    auto vector(int i) const { return p.vector(i); }
    vi   scale(int i) const  { return p.scales.template lanes<PACKED<P>>(i); }
};

// A block that was unpacked before.
template <typename P> struct Unpacked {
    static constexpr int N_SCALES = PACKED<P> ? N/2 : N;
    P  p;
    vi weights[N], scales[N_SCALES];

    explicit Unpacked(const typename P::block * b) : p(b) {
        each<N>([&](auto i) { weights[i] = p.vector(i).w; });
        each<N_SCALES>([&](auto i) { scales[i] = p.scales.template lanes<PACKED<P>>(i); });
    }
    auto vector(int i) const { return decltype(p.vector(i)){weights[i]}; }
    vi   scale(int i) const  { return scales[i]; }
};

template <typename P, typename Block, int T>
inline void add_block(const Block & block, const Token * tokens, int64_t k, vf (&sums)[T]) {
    const auto values = [&](int t, int i) { return load(tokens[t].in.values + k + i*VB); };
    vi totals[T];
    each<T>([&](auto t) { totals[t] = zero_i(); });
    each<N/2>([&](auto i) {
        const auto x = block.vector(2*i), y = block.vector(2*i + 1);
        if constexpr (PACKED<P>) {
            const vi scale = block.scale(i);
            each<T>([&](auto t) {
                const vi both = pack32(dot4(zero_i(), x.w, values(t, 2*i)), dot4(zero_i(), y.w, values(t, 2*i + 1)));
                totals[t] = mac2(totals[t], both, scale);
            });
        } else {
            const vi scale_x = block.scale(2*i), scale_y = block.scale(2*i + 1);
            each<T>([&](auto t) {
                totals[t] = mac2(totals[t], x.dot2(values(t, 2*i)), scale_x);
                totals[t] = mac2(totals[t], y.dot2(values(t, 2*i + 1)), scale_y);
            });
        }
    });
    each<T>([&](auto t) { sums[t] = block.p.finish(totals[t], tokens[t].in, k, sums[t]); });
}

// block(i): block i of the row.
template <typename P, int T, typename F>
void row_times_tokens(int64_t n_blocks, const Token * tokens, int64_t row, F block) {
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
            prefetch<sizeof(b[i])>(b + i);
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
                prefetch<sizeof(b[i])>(b + i);
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
