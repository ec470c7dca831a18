// The rows of K and V of a block of cells, as vectors of floats.
#pragma once

#include "attention_task.h"

#if defined(SELFSPEC_KERNELS)

#define GGML_COMMON_DECL_CPP
#include "ggml-common.h"

namespace selfspec {

namespace {

template <typename T, vf (*LOAD)(const T *)> void unpack_floats(const T * row, int64_t n, float * out) {
    int64_t i = 0;
    for (; i + VL <= n; i += VL) {
        store_f(out + i, LOAD(row + i));
    }
    if (i < n) {
        T rest[VL] = {};
        std::copy(row + i, row + n, rest);
        store_f(out + i, LOAD(rest));
    }
}

inline vf as_they_are(const float * p)       { return load_f(p); }
inline vf from_halves(const ggml_fp16_t * p) { return load_f16(p); }
inline vf from_bf16(const uint16_t * p)      { return load_bf16(p); }

// Writes zeros from n up to the end of the last vector if n is not a multiple of its length.
inline void unpack_row(ggml_type type, const char * row, int64_t n, float * out) {
    switch (type) {
        case GGML_TYPE_F32:  unpack_floats<float, as_they_are>((const float *) row, n, out); break;
        case GGML_TYPE_F16:  unpack_floats<ggml_fp16_t, from_halves>((const ggml_fp16_t *) row, n, out); break;
        case GGML_TYPE_BF16: unpack_floats<uint16_t, from_bf16>((const uint16_t *) row, n, out); break;
        case GGML_TYPE_Q8_0:
            for (int64_t i = 0; i < n; i += 32, row += sizeof(ggml_fp16_t) + 32) {
                uint16_t scale;
                memcpy(&scale, row, sizeof(scale));
                const vf scales = repeat_f(from_half(scale));
                for (int j = 0; j < 32; j += VL) {
                    store_f(out + i + j, mul(scales, load_i8(row + sizeof(scale) + j)));
                }
            }
            break;
        default: ggml_get_type_traits(type)->to_float(row, out, n); break;
    }
}

// Calls f(c) for each set bit c of the cells of a block.
template <typename F> [[gnu::always_inline]] inline void each_cell(uint32_t cells, F f) {
    for (; cells != 0; cells &= cells - 1) {
        f(__builtin_ctz(cells));
    }
}

// Converts n values of the rows of these cells, each to its place; `block` points to the row of the first cell.
inline void unpack(const ggml_tensor * t, const char * block, uint32_t cells, int64_t n, float * out) {
    const size_t  stride = t->nb[1], bytes = ggml_row_size(t->type, n);
    const int64_t width  = up(n);
    each_cell(cells, [&](int64_t cell) {
        const char * const row = block + cell*stride;
        for (size_t at = 0; at < bytes; at += 64) {
            fetch_near(row + CELLS*stride + at);  // the row in the next block
        }
        unpack_row(t->type, row, n, out + cell*width);
    });
}

// The rows of a block that were converted before.
struct Floats {
    const float * rows;
    int64_t       width;
    Floats from(int64_t cell) const            { return {rows + cell*width, width}; }
    vf     load(int64_t cell, int64_t i) const { return load_f(rows + cell*width + i); }
    void   fetch(int64_t, int64_t, int64_t) const {}
};

// Where to fetch rows from while those of a block are multiplied.
struct Ahead {
    const char * rows;
    size_t       stride;

    // For `bytes` of each row of computed block i: the same bytes in the next block. But if those of several heads, `all` bytes of
    // which `before` come earlier, are whole rows: as many bytes of the next block in the order of memory. Then the processor runs
    // ahead by itself; an EPYC of Zen 2 class reads half as much in the same time in another order. first: these bytes of the
    // cache's first row.
    Ahead(const Work & work, int64_t i, const ggml_tensor * t, const char * first, size_t bytes, size_t before, size_t all) {
        const int64_t next = work.blocks[std::min(i + 1, work.n_blocks - 1)]*CELLS;
        const bool    adjacent = all == t->nb[1];
        rows   = first + next*t->nb[1] + (adjacent ? (CELLS - 1)*before : 0);
        stride = adjacent ? bytes : t->nb[1];
    }
};

// The rows of a block as they are in the cache, converted whenever they are multiplied.
template <typename T> struct Stored {
    const char * rows;
    size_t       stride;
    Ahead        ahead;
    Stored from(int64_t cell) const                { return {rows + cell*stride, stride, ahead}; }
    const char * at(int64_t cell, int64_t i) const { return rows + cell*stride + i/T::UNIT*sizeof(typename T::block); }
    vf   load(int64_t cell, int64_t i) const { return T::load(*(const typename T::block *) at(cell, i), i%T::UNIT); }
    [[gnu::always_inline]] void fetch(int64_t cell, int64_t i, int64_t n) const {
        const char * const row = ahead.rows + cell*ahead.stride + i/T::UNIT*sizeof(typename T::block);
        for (size_t at = 0; at < n*sizeof(typename T::block)/T::UNIT; at += 64) {
            fetch_near(row + at);
        }
    }
};

struct Halves {
    using block = ggml_fp16_t;
    static constexpr int UNIT = 1;
    static vf load(const block & first, int64_t) { return load_f16(&first); }
};

struct Bytes {
    using block = block_q8_0;
    static constexpr int UNIT = 32;
    static vf load(const block & b, int64_t i) { return mul(repeat_f(from_half(b.d)), load_i8(b.qs + i)); }
};

// Calls f with the rows of whole vectors at `rows`, if it is faster to convert them for each tile of n_queries than to convert them
// once, store them, and load them again.
template <typename F> bool with_stored(int n_queries, const ggml_tensor * t, const char * rows, const Ahead & ahead, F f) {
    if (t->type == GGML_TYPE_F16 && (!HAS_COLUMNS || n_queries <= FEW)) {
        f(Stored<Halves>{rows, t->nb[1], ahead});
    } else if (t->type == GGML_TYPE_Q8_0 && n_queries <= FEW) {
        f(Stored<Bytes>{rows, t->nb[1], ahead});
    } else {
        return false;
    }
    return true;
}

inline bool known_type(const ggml_tensor * t) {
    const bool is_float = t->type == GGML_TYPE_F32 || t->type == GGML_TYPE_F16 || t->type == GGML_TYPE_BF16;
    const bool in_blocks = ggml_blck_size(t->type) == 32 && t->ne[0]%32 == 0 && ggml_get_type_traits(t->type)->to_float;
    return (is_float || in_blocks) && t->nb[0] == ggml_type_size(t->type);
}

}  // namespace

}  // namespace selfspec
#endif
