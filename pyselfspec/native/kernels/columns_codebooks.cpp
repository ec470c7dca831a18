// IQ2 and IQ3 with eight rows interleaved, for AVX-512 VBMI, which looks up 64 bytes in a table of 128 at once.
//
// In the file an index stands for the sizes of eight weights (IQ2) or four (IQ3), and signs are stored apart. There are four or
// eight sizes, so that an index stands for 16 bits of codes: two tables of bytes have half of them each.
#define GGML_COMMON_DECL_CPP
#define GGML_COMMON_IMPL_CPP
#include "columns_k.h"
#include "interleave.h"

#if defined(SELFSPEC_BYTE_TABLES)

#include <cstring>

namespace selfspec {

namespace {

// --- layouts ---
//
// A group is 64 weights of each row. A vector has one index, or the signs, of every eight of these: eight bytes for each row. Where
// signs are seven bits and an eighth that makes their number even, top bits of these bytes are others'.

struct block_iq2_xxsx8 {  // the signs' top bits are scales
    ggml_half d[8];
    uint8_t   indices[4][1][64], signs[4][64];
};

struct block_iq2_xsx8 {  // the signs' top bits are the indices' ninth
    ggml_half d[8];
    uint8_t   indices[4][1][64], signs[4][64], scales[8][8];
};

struct block_iq2_sx8 {
    ggml_half d[8];
    uint8_t   indices[4][1][64], signs[4][64], ninth[4][8], tenth[4][8], scales[8][8];
};

struct block_iq3_xxsx8 {  // eight weights have two indices; the signs' top bits are scales
    ggml_half d[8];
    uint8_t   indices[4][2][64], signs[4][64];
};

struct block_iq3_sx8 {
    ggml_half d[8];
    uint8_t   indices[4][2][64], signs[4][64], ninth[4][2][8], scales[4][8];
};

// What belongs to the eight weights from 8*i on of row r.
void put(uint8_t (&group)[64], int r, int i, int byte)    { group[8*r + i%8] |= (uint8_t) byte; }
void put_bit(uint8_t (&group)[8], int r, int i, int bit)  { group[r] |= (uint8_t) ((bit & 1) << i%8); }
void put_top(uint8_t (&group)[64], int r, int i, int bit) { put(group, r, i, (bit & 1) << 7); }

// The signs of eight times 32 weights, 32 bits every `stride` bytes: four times seven signs, and a scale in the upper four bits.
template <typename B> void put_signs_and_scales(B & to, int r, const uint8_t * parts, int stride) {
    for (int i = 0; i < 32; i++) {
        uint32_t part;
        memcpy(&part, parts + stride*(i/4), 4);
        put(to.signs[i/8], r, i, part >> 7*(i%4) & 127);
        put_top(to.signs[i/8], r, i, part >> (28 + i%4));
    }
}

template <typename Row, typename B> void copy_scales(const Row & row, int r, B & to) {
    for (size_t i = 0; i < sizeof(row.scales); i++) {
        to.scales[i][r] = row.scales[i];
    }
}

void interleave(const block_iq2_xxs & row, int r, block_iq2_xxsx8 & to) {
    const auto parts = (const uint8_t *) row.qs;
    for (int i = 0; i < 32; i++) {
        put(to.indices[i/8][0], r, i, parts[8*(i/4) + i%4]);
    }
    put_signs_and_scales(to, r, parts + 4, 8);
}

void interleave(const block_iq2_xs & row, int r, block_iq2_xsx8 & to) {
    for (int i = 0; i < 32; i++) {
        put(to.indices[i/8][0], r, i, row.qs[i]);
        put(to.signs[i/8], r, i, row.qs[i] >> 9);
        put_top(to.signs[i/8], r, i, row.qs[i] >> 8);
    }
    copy_scales(row, r, to);
}

void interleave(const block_iq2_s & row, int r, block_iq2_sx8 & to) {
    for (int i = 0; i < 32; i++) {
        put(to.indices[i/8][0], r, i, row.qs[i]);
        put(to.signs[i/8], r, i, row.qs[32 + i]);
        put_bit(to.ninth[i/8], r, i, row.qh[i/4] >> 2*(i%4));
        put_bit(to.tenth[i/8], r, i, row.qh[i/4] >> (2*(i%4) + 1));
    }
    copy_scales(row, r, to);
}

void interleave(const block_iq3_xxs & row, int r, block_iq3_xxsx8 & to) {
    for (int i = 0; i < 64; i++) {
        put(to.indices[i/16][i%2], r, i/2, row.qs[i]);
    }
    put_signs_and_scales(to, r, row.qs + 64, 4);
}

void interleave(const block_iq3_s & row, int r, block_iq3_sx8 & to) {
    for (int i = 0; i < 64; i++) {
        put(to.indices[i/16][i%2], r, i/2, row.qs[i]);
        put_bit(to.ninth[i/16][i%2], r, i/2, row.qh[i/8] >> i%8);
    }
    for (int i = 0; i < 32; i++) {
        put(to.signs[i/8], r, i, row.signs[i]);
    }
    copy_scales(row, r, to);
}

}  // namespace

int interleave_codebook(ggml_tensor * t, const void * data, size_t size) {
    switch (t->type) {
        case GGML_TYPE_IQ2_XXS: return interleave_all<block_iq2_xxs, block_iq2_xxsx8>(t, data, size);
        case GGML_TYPE_IQ2_XS:  return interleave_all<block_iq2_xs, block_iq2_xsx8>(t, data, size);
        case GGML_TYPE_IQ2_S:   return interleave_all<block_iq2_s, block_iq2_sx8>(t, data, size);
        case GGML_TYPE_IQ3_XXS: return interleave_all<block_iq3_xxs, block_iq3_xxsx8>(t, data, size);
        case GGML_TYPE_IQ3_S:   return interleave_all<block_iq3_s, block_iq3_sx8>(t, data, size);
        default:                return -1;
    }
}

namespace {

// --- tables ---

// The codes of N indices, BITS for each weight of an index, and the weights that they stand for.
template <int BITS_OF_A_CODE, int N> struct Codebook {
    static constexpr int BITS = BITS_OF_A_CODE, EACH_INDEX = 16/BITS, SIZE = N;
    alignas(64) uint8_t codes[2][N];  // of the first half of an index's weights, and of the second
    alignas(64) uint8_t weights[64];  // with SIGN_OFFSET, for a code in the lowest bits and a sign as bit 5; others may be anything

    // grid: the sizes of each index's weights, a byte each
    void fill(const void * grid, const uint8_t (&sizes)[1 << BITS]) {
        for (int i = 0; i < 64; i++) {
            const int size = sizes[i%(1 << BITS)];
            weights[i] = (uint8_t) (SIGN_OFFSET + (i & 32 ? -size : size));
        }
        for (int i = 0; i < N*EACH_INDEX; i++) {
            const int place = i%EACH_INDEX, half = EACH_INDEX/2;
            const auto code = std::find(sizes, sizes + (1 << BITS), ((const uint8_t *) grid)[i]) - sizes;
            codes[place/half][i/EACH_INDEX] |= (uint8_t) (code << BITS*(place%half));
        }
    }
};

// Filled before a kernel is handed out, not when the library is loaded: a program that looks for the variant of the library that
// fits the processor loads others, too, and must not run their instructions.
Codebook<2, 256>  iq2_xxs;
Codebook<2, 512>  iq2_xs;
Codebook<2, 1024> iq2_s;
Codebook<4, 256>  iq3_xxs;
Codebook<4, 512>  iq3_s;

bool fill_all() {
    const uint8_t of_iq2[4] = {8, 25, 43}, of_iq3_xxs[16] = {4, 12, 20, 28, 36, 44, 52, 62}, of_iq3_s[16] = {1, 3, 5, 7, 9, 11, 13, 15};
    iq2_xxs.fill(iq2xxs_grid, of_iq2);
    iq2_xs.fill(iq2xs_grid, of_iq2);
    iq2_s.fill(iq2s_grid, of_iq2);
    iq3_xxs.fill(iq3xxs_grid, of_iq3_xxs);
    iq3_s.fill(iq3s_grid, of_iq3_s);
    return true;
}

// The bytes of a table of N for indices of which `upper` has the bits from the eighth on.
template <int N> SELFSPEC_PART vi look_up(const uint8_t * table, vi indices, const uint64_t * upper) {
    if constexpr (N == 128) {
        return lookup128(table, indices);
    } else {
        constexpr int BIT = N == 256 ? 0 : N == 512 ? 1 : 2;
        return where(upper[BIT], look_up<N/2>(table + N/2, indices, upper), look_up<N/2>(table, indices, upper));
    }
}

// --- weights ---

// Signs of seven bits with an eighth, for which their number is even.
inline vi evened(vi signs) {
    const vi  seven = and_(signs, repeat(127));
    const v16 odd   = bytes16(0, 128, 128, 0, 128, 0, 0, 128, 128, 0, 0, 128, 0, 128, 128, 0);
    return or_(seven, xor_(lookup(odd, and_(seven, repeat(15))), lookup(odd, and_(right<4>(seven), repeat(15)))));
}

// Bit BIT of every byte as bit 5.
template <int BIT> vi as_bit_5(vi a) {
    if constexpr (BIT < 5) {
        return left<5 - BIT>(a);
    } else {
        return right<BIT - 5>(a);
    }
}

// Eight bytes, one of each row, that are bits of a vector.
inline uint64_t bits_of(const uint8_t (&rows)[8]) {
    uint64_t bits;
    memcpy(&bits, rows, 8);
    return bits;
}

// A scale of each row's first lane in its byte's lower bits, and of its second lane in the upper ones: x for 2x + 1.
inline vf scales_of(uint64_t rows) {
    const v16 both = _mm_cvtsi64_si128((int64_t) rows);
    return to_float(_mm512_cvtepi8_epi32(odd(alternate(four_bits<0>(both), four_bits<4>(both)))));
}

// Sums of products begin where the offset is subtracted, and are scaled as floats, since they do not fit 16 bits. PART: of the
// block's scale.
template <typename B, auto & BOOK, int PART> struct Coded {
    using block = B;
    using Total = vf;
    static constexpr int GROUPS = 4, RUNS = 1, PAIRS = 0;
    static constexpr int BITS = BOOK.BITS, N_INDICES = BITS/2;  // of eight weights
    vi codes[2*N_INDICES];

    // ninth(i), tenth(i): bits of vector i of the group's indices
    template <typename F, typename G> SELFSPEC_PART void read_codes(const uint8_t (&indices)[N_INDICES][64], F ninth, G tenth) {
        each<N_INDICES>([&](auto i) {
            const vi       index    = load(indices[i]);
            const uint64_t upper[3] = {top_bits(index), ninth(i), tenth(i)};
            codes[2*i]     = look_up<BOOK.SIZE>(BOOK.codes[0], index, upper);
            codes[2*i + 1] = look_up<BOOK.SIZE>(BOOK.codes[1], index, upper);
        });
    }

    // Of vector I, whose signs are bit SIGN of the bytes in `signs`.
    template <int I, int SIGN> SELFSPEC_PART vi weight(vi signs) const {
        const vi code = right<BITS*I%8>(codes[BITS*I/8]);
        return lookup64(load(BOOK.weights), choose(repeat(32), as_bit_5<SIGN>(signs), code));
    }

    static vf finish(const B & b, vf total, vi, vf scale_in, vf sum) {
        return fma(total, mul(mul(row_halves(b.d), repeat_f(1.0f/PART)), scale_in), sum);
    }
};

constexpr auto none = [](int) { return uint64_t(0); };

// A scale for every 32 weights: those of four bytes of a row.
template <typename B, auto & BOOK, int PART> struct Coded32 : Coded<B, BOOK, PART> {
    using Scale = vf;
    static constexpr Form FORM = {Layout::q8k_coded32, SIGN_OFFSET};
    vi signs;

    template <int, typename I> SELFSPEC_PART vi weights(I i) const { return this->template weight<i, i>(signs); }
    template <typename W> static vf add(vf total, W w, const int8_t * values, vf scale) {
        vi sums[2] = {for_rows(((const CodedRun *) values)->starts), zero_i()};  // each addition waits for the one before
        each<8>([&](auto i) { sums[i%2] = dot4(sums[i%2], w(i), for_rows(values + 8*i)); });
        return fma(to_float(add32(sums[0], sums[1])), scale, total);
    }
};

// The signs' top bits are scales.
template <typename B, auto & BOOK, int PART> struct ScalesAsTops : Coded32<B, BOOK, PART> {
    uint64_t tops;

    ScalesAsTops(const B & b, int group) {
        const vi stored = load(b.signs[group]);
        tops = top_bits(stored);
        this->signs = evened(stored);
        this->read_codes(b.indices[group], none, none);
    }
    template <int> vf scale() const { return scales_of(tops); }
};
using IQ2_XXS = ScalesAsTops<block_iq2_xxsx8, iq2_xxs, 8>;
using IQ3_XXS = ScalesAsTops<block_iq3_xxsx8, iq3_xxs, 4>;

struct IQ3_S : Coded32<block_iq3_sx8, iq3_s, 1> {
    const uint8_t (&scales)[8];

    IQ3_S(const block & b, int group) : scales(b.scales[group]) {
        signs = load(b.signs[group]);
        read_codes(b.indices[group], [&](int i) { return bits_of(b.ninth[group][i]); }, none);
    }
    template <int> vf scale() const { return scales_of(bits_of(scales)); }
};

// A scale for every 16 weights: those that two bytes of codes have in both tables, which are put side by side, as are their signs.
template <typename B, auto & BOOK> struct Coded16 : Coded<B, BOOK, 8> {
    struct Scale { vf first, second; };
    static constexpr Form FORM = {Layout::q8k_coded16, SIGN_OFFSET};
    const uint8_t (&scales)[8], (&more_scales)[8];
    vi signs[2];

    Coded16(const B & b, int group) : scales(b.scales[2*group]), more_scales(b.scales[2*group + 1]) {}

    static void pair(vi & a, vi & b) {
        const vi even = pairs_low(a, b), odd = pairs_high(a, b);  // rows
        a = low64(even, odd);
        b = high64(even, odd);
    }
    template <typename F, typename G> SELFSPEC_PART void read(const uint8_t (&indices)[1][64], vi all_signs, F ninth, G tenth) {
        this->read_codes(indices, ninth, tenth);
        pair(this->codes[0], this->codes[1]);
        signs[0] = all_signs;
        signs[1] = right<4>(all_signs);
        pair(signs[0], signs[1]);
    }

    template <int, typename I> SELFSPEC_PART vi weights(I i) const { return this->template weight<i, i%4>(signs[i/4]); }
    template <int> Scale scale() const { return {scales_of(bits_of(scales)), scales_of(bits_of(more_scales))}; }
    template <typename W> static vf add(vf total, W w, const int8_t * values, const Scale & scale) {
        each<2>([&](auto half) {
            vi sum = for_rows(((const CodedRun *) values)->starts + 2*half);
            each<4>([&](auto j) {
                constexpr std::integral_constant<int, 4*half + j> i;
                sum = dot4(sum, w(i), for_rows(values + 8*i));
            });
            total = fma(to_float(sum), half == 0 ? scale.first : scale.second, total);
        });
        return total;
    }
};

struct IQ2_XS : Coded16<block_iq2_xsx8, iq2_xs> {
    IQ2_XS(const block & b, int group) : Coded16(b, group) {
        const vi stored = load(b.signs[group]);
        read(b.indices[group], evened(stored), [&](int) { return top_bits(stored); }, none);
    }
};

struct IQ2_S : Coded16<block_iq2_sx8, iq2_s> {
    IQ2_S(const block & b, int group) : Coded16(b, group) {
        read(b.indices[group], load(b.signs[group]), [&](int) { return bits_of(b.ninth[group]); },
             [&](int) { return bits_of(b.tenth[group]); });
    }
};

}  // namespace

Scheme codebook_column_scheme(ggml_type type) {
    static const bool filled = fill_all();
    (void) filled;
    switch (type) {
        case GGML_TYPE_IQ2_XXS: return COLUMNS<IQ2_XXS>;
        case GGML_TYPE_IQ2_XS:  return COLUMNS<IQ2_XS>;
        case GGML_TYPE_IQ2_S:   return COLUMNS<IQ2_S>;
        case GGML_TYPE_IQ3_XXS: return COLUMNS<IQ3_XXS>;
        case GGML_TYPE_IQ3_S:   return COLUMNS<IQ3_S>;
        default:                return {};
    }
}

}  // namespace selfspec
#endif
