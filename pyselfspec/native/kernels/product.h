// The parts of a product with several tokens: weights, tokens, and a kernel for the type and layout of the weights.
#pragma once

#include "simd.h"

#if defined(SELFSPEC_KERNELS)

#include "ggml.h"
#include "abi/selfspec.h"

#include <algorithm>
#include <new>
#include <type_traits>
#include <utility>

namespace selfspec {

// The most tokens of a pass over few: of verification, of a batch.
constexpr int MAX_WIDTH = SELFSPEC_EXACT_WIDTH;

// The most tokens that a kernel takes at once; a wider product is computed as several.
constexpr int MAX_TOKENS = 256;

inline const float * float_row(const ggml_tensor * t, int64_t i1, int64_t i2 = 0, int64_t i3 = 0) {
    return (const float *) ((const char *) t->data + i1*t->nb[1] + i2*t->nb[2] + i3*t->nb[3]);
}

// The form in which a kernel reads a token's activations.
enum class Layout {
    f32,         // not rounded
    f16,         // rounded to half precision, as upstream does; stored as floats
    bf16,        // rounded to bfloat16; stored as bfloat16 if the processor multiplies it, else as float
    steps,       // BlockStep
    steps_sums,  // BlockStep with sums for minimums
    steps_halves,  // BlockStep, the first lane of each block for its first sixteen values
    steps_pairs,   // BlockStep, in the order of weights of two bits
    steps_bits,    // BlockStep, in the order of weights of one bit
    columns,     // ColumnBlock
    q8k,         // bytes, a scale per 256
    q8k_sums16,  // bytes, a scale per 256, and the sum of every 16 values as 16 bits
    q8k_sums32,  // bytes, a scale per 256, and the sum of every 32 values as 16 bits
    q8k_start,   // ColumnRun with one start, a scale per 256
    q8k_starts,  // ColumnRun, a scale per 256
    q8k_halves,  // the same, with each start as two of 16 bits
    q8k_coded32, // CodedRun, a scale per 256; the weights' scales are for 32 each
    q8k_coded16, // the same for 16 each
};

// The offset was added to the weights to make them unsigned; `start` in the activations subtracts its part of the product.
struct Form {
    Layout layout = Layout::f32;
    int    offset = 0;
};

// A block is 32 values with a scale. A vector holds eight values of each of BLOCKS blocks side by side, so that lanes 2i and
// 2i + 1 of a product of bytes belong to block i, and four vectors hold all values of these blocks: a step.
constexpr int     BLOCKS = VB/8;
constexpr int64_t STEP   = 32*BLOCKS;

// The first block of each step of a row of n blocks. The last step ends with the row: the blocks that it shares with the step
// before are multiplied by zero. In a row shorter than a step, the step begins with the row.
inline int64_t first_block(int64_t step, int64_t n)        { return std::max<int64_t>(0, std::min(step*BLOCKS, n - BLOCKS)); }
inline int64_t place_in_step(int64_t block, int64_t n) {
    const bool moved = n > BLOCKS && block >= n/BLOCKS*BLOCKS;
    return (block + (moved ? BLOCKS - n%BLOCKS : 0))%BLOCKS;
}

// Activations for BLOCKS blocks of a row. The products of a block's two lanes begin with -offset*sum(values) of its first and its
// last sixteen values.
struct BlockStep {
    int8_t values[4][VB];
    float  scales[VL];  // each scale twice
    union {
        int32_t start[VL];
        float   sums[VL];  // scale*sum(values) in the first of each block's lanes
    };
};

// 32 activations for eight interleaved rows, with the same start for each row.
struct ColumnBlock {
    int8_t  values[32];
    int32_t start[2];
    float   scale;
    float   unused;
};

// 32 activations for eight interleaved rows, and where their products begin: at -offset*sum(values). With several starts eight
// values have one, those that two vectors have in one lane of a row, so that sums of products of signed weights fit 16 bits. In
// halves the lower one is for the first two of each lane's four bytes.
struct ColumnRun {
    int8_t  values[32];
    union {
        int32_t starts[4];
        int16_t halves[4][2];
    };
};

// 64 activations in the order in which codes of weights are read (coded_place in activations.cpp), and where the products of each
// of a row's lanes begin.
struct CodedRun {
    int8_t  values[64];
    int32_t starts[4];
};

// Values in a run of activations with a scale per 256, and its bytes.
constexpr int    run_values(Layout layout) { return layout >= Layout::q8k_coded32 ? 64 : 32; }
constexpr size_t run_size(Layout layout) {
    return layout >= Layout::q8k_coded32 ? sizeof(CodedRun) : layout >= Layout::q8k_start ? sizeof(ColumnRun) : 32;
}

constexpr int64_t K_STEP = 256;

struct Activations {
    const char *    values;
    const float *   scales;
    const int16_t * sums;
};

size_t      activation_size(Form form, int64_t k);                 // bytes per token, a multiple of 64
Activations activation_view(Form form, int64_t k, const char * base);
// Values [k0, k1) of a token; k0 is a multiple of K_STEP, and so is k1 unless it is k.
void        prepare(Form form, int64_t k, int64_t k0, int64_t k1, const float * x, char * base);

struct Token {
    Activations in;
    float *     out;  // result of weight row 0
};

struct Weights {
    const char * data;
    size_t       row_size;  // bytes from one row to the next
    int64_t      k;         // values in a row
};

// Weight rows [row0, row1) times all tokens.
using Kernel = void (*)(const Weights & weights, int64_t row0, int64_t row1, const Token * tokens, int n_tokens);

struct Scheme {
    Form    form;
    Kernel  kernel;
    int32_t most  = INT32_MAX;  // tokens: upstream multiplies more of them faster
    int32_t grown = 0;          // bytes of 256 weights, if they are not those of the file

    size_t row_size(ggml_type type, int64_t k) const { return grown > 0 ? grown*k/256 : ggml_row_size(type, k); }
};

// These return a Scheme whose kernel is NULL if there is none for the type.
Scheme float_scheme(ggml_type type, ggml_prec precision);  // floats.cpp; activations are not rounded below that precision
Scheme block_scheme(ggml_type type);       // blocks.cpp: blocks of 32 in the file's layout
Scheme superblock_scheme(ggml_type type);  // superblocks.cpp: blocks of 256 in the file's layout
Scheme codebook_scheme(ggml_type type);    // codebooks.cpp: the same, where weights are in tables
Scheme file_scheme(ggml_type type, ggml_prec precision);   // the first of the four above that has a kernel
Scheme column_scheme(ggml_type type);      // columns.cpp: eight rows interleaved
Scheme our_column_scheme(ggml_type type);  // columns_ours.cpp: in a layout that upstream does not have

// Calls f(0), f(1), ... with compile-time constants. The compiler keeps an array in registers only if every index is constant
// from the start: unrolling a loop later is too late, and a loop that clears an array becomes a slow `rep stos`.
template <typename F, int... I> [[gnu::always_inline]] inline void each([[maybe_unused]] F f, std::integer_sequence<int, I...>) {
    (f(std::integral_constant<int, I>()), ...);
}
template <int N, typename F> [[gnu::always_inline]] inline void each(F f) { each(f, std::make_integer_sequence<int, N>()); }

// Calls f(n, first) for as few tiles of n <= MAX tokens as possible, n as a compile-time constant. Their sizes are nearly equal, except
// for tiles of eight, of which only the last is smaller: two of six take 4 % longer than eight and four.
template <int MAX, typename F> void in_tiles(int n_tokens, F f) {
    const int n_tiles = std::max(1, (n_tokens + MAX - 1)/MAX), size = MAX == 8 ? MAX : (n_tokens + n_tiles - 1)/n_tiles;
    for (int first = 0; first < n_tokens; first += size) {
        switch (std::min(size, n_tokens - first)) {
            case 1: f(std::integral_constant<int, 1>(), first); break;
            case 2: f(std::integral_constant<int, 2>(), first); break;
            case 3: if constexpr (MAX >= 3) { f(std::integral_constant<int, 3>(), first); } break;
            case 4: if constexpr (MAX >= 4) { f(std::integral_constant<int, 4>(), first); } break;
            case 5: if constexpr (MAX >= 5) { f(std::integral_constant<int, 5>(), first); } break;
            case 6: if constexpr (MAX >= 6) { f(std::integral_constant<int, 6>(), first); } break;
            case 7: if constexpr (MAX >= 7) { f(std::integral_constant<int, 7>(), first); } break;
            case 8: if constexpr (MAX >= 8) { f(std::integral_constant<int, 8>(), first); } break;
        }
    }
}

// Calls f(n, first, begin, end, part) for tiles of tokens and ranges of rows, of n_parts each; part(row, i) is Packed(at(row, i)). With
// several tiles a few rows are multiplied at a time, so that each tile finds them in the first-level cache; for more than PACKED
// tokens part(row, i) is Unpacked(at(row, i)), made once for all tiles.
template <int MAX, int PACKED, typename Packed, typename Unpacked, typename A, typename F>
void in_tiles(int64_t n_parts, int64_t row0, int64_t row1, int n_tokens, A at, F f) {
    constexpr int64_t FEW = 4, ROOM = 128*1024/sizeof(Unpacked);
    alignas(Unpacked) char memory[ROOM*sizeof(Unpacked)];
    const auto    unpacked = (Unpacked *) memory;
    const bool    unpacks  = n_tokens > PACKED && n_parts <= ROOM;
    const int64_t at_once  = unpacks ? std::min(FEW, ROOM/n_parts) : n_tokens <= MAX ? row1 - row0 : FEW;
    for (int64_t begin = row0, end; begin < row1; begin = end) {
        end = std::min(begin + at_once, row1);
        if (!unpacks) {
            in_tiles<MAX>(n_tokens, [&](auto n, int first) {
                f(n, first, begin, end, [=](int64_t row, int64_t i) { return Packed(at(row, i)); });
            });
            continue;
        }
        for (int64_t row = begin; row < end; row++) {
            for (int64_t i = 0; i < n_parts; i++) {
                new (unpacked + (row - begin)*n_parts + i) Unpacked(at(row, i));
            }
        }
        in_tiles<MAX>(n_tokens, [&](auto n, int first) {
            f(n, first, begin, end, [=](int64_t row, int64_t i) -> auto & { return unpacked[(row - begin)*n_parts + i]; });
        });
    }
}

// Tokens that a quantised kernel takes at once: as many accumulators as the registers hold.
constexpr int TILE = VB == 32 ? 4 : 8;

}  // namespace selfspec
#endif
