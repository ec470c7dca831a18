// Layouts with eight rows interleaved that upstream does not have: of IQ4_XS and Q3_K. A pass over eight tokens takes two thirds or
// less of the time that it takes with the file's layout.
#include "columns.h"
#include "selfspec-kernels.h"

#include "ggml.h"

#include <cstring>

namespace selfspec {

namespace {

static_assert(sizeof(block_iq4_xsx8) == 8*sizeof(block_iq4_xs), "rows take as much memory as before");
static_assert(sizeof(block_q3_Kx8) == 8*sizeof(block_q3_K), "rows take as much memory as before");

void interleave(const block_iq4_xs * const (&rows)[8], block_iq4_xsx8 & to) {
    for (int r = 0; r < 8; r++) {
        const block_iq4_xs & row = *rows[r];
        to.d[r] = row.d;
        for (int i = 0; i < 2; i++) {
            to.scales_h[8*i + r] = (uint8_t) (row.scales_h >> 8*i);
        }
        for (int pair = 0; pair < 4; pair++) {
            to.scales_l[8*pair + r] = row.scales_l[pair];
            const uint8_t * first  = row.qs + 32*pair;  // the upper nibbles are the last 16 values
            const uint8_t * second = first + 16;
            for (int i = 0; i < 16; i++) {
                uint8_t * out = to.qs + 256*pair + 64*(i/8) + 8*r + i%8;
                out[0]   = (uint8_t) ((first[i] & 15) | second[i] << 4);
                out[128] = (uint8_t) (first[i] >> 4 | (second[i] & 0xf0));
            }
        }
    }
}

void interleave(const block_q3_K * const (&rows)[8], block_q3_Kx8 & to) {
    for (int r = 0; r < 8; r++) {
        const block_q3_K & row = *rows[r];
        to.d[r] = row.d;
        for (int i = 0; i < 12; i++) {
            to.scales[8*i + r] = row.scales[i];
        }
        for (int i = 0; i < 4; i++) {
            memcpy(to.hmask + 64*i + 8*r, row.hmask + 8*i, 8);
        }
        for (int i = 0; i < 8; i++) {
            memcpy(to.qs + 64*i + 8*r, row.qs + 8*i, 8);
        }
    }
}

template <typename Row, typename Rows> int interleave_all(ggml_tensor * t, const void * data, size_t size) {
    const int64_t n_blocks = t->ne[0]/QK_K, n_rows = ggml_nrows(t);
    if (n_rows%8 != 0 || size != n_rows*n_blocks*sizeof(Row)) {
        return -1;
    }
    const auto from = (const Row *) data;
    const auto to   = (Rows *) t->data;
    for (int64_t group = 0; group < n_rows/8; group++) {
        for (int64_t b = 0; b < n_blocks; b++) {
            const Row * rows[8];
            for (int r = 0; r < 8; r++) {
                rows[r] = from + (8*group + r)*n_blocks + b;
            }
            interleave(rows, to[group*n_blocks + b]);
        }
    }
    return 0;
}

}  // namespace

}  // namespace selfspec

int selfspec_interleave(ggml_tensor * t, const void * data, size_t size) {
    using namespace selfspec;
    switch (t->type) {
        case GGML_TYPE_IQ4_XS: return interleave_all<block_iq4_xs, block_iq4_xsx8>(t, data, size);
        case GGML_TYPE_Q3_K:   return interleave_all<block_q3_K, block_q3_Kx8>(t, data, size);
        default:               return -1;
    }
}
