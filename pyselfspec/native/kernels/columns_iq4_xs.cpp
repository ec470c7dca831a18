// The layout of IQ4_XS with eight rows interleaved, which upstream does not have. A pass over eight tokens takes two thirds of the
// time that it takes with the file's layout.
#include "columns.h"
#include "selfspec-kernels.h"

#include "ggml.h"

namespace selfspec {

static_assert(sizeof(block_iq4_xsx8) == 8*sizeof(block_iq4_xs), "rows take as much memory as before");

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

}  // namespace selfspec

int selfspec_interleave_iq4_xs(ggml_tensor * t, const void * data, size_t size) {
    using namespace selfspec;
    const int64_t n_blocks = t->ne[0]/QK_K, n_rows = ggml_nrows(t);
    if (n_rows%8 != 0 || size != n_rows*n_blocks*sizeof(block_iq4_xs)) {
        return -1;
    }
    const auto from = (const block_iq4_xs *) data;
    const auto to   = (block_iq4_xsx8 *) t->data;
    for (int64_t group = 0; group < n_rows/8; group++) {
        for (int64_t b = 0; b < n_blocks; b++) {
            const block_iq4_xs * rows[8];
            for (int r = 0; r < 8; r++) {
                rows[r] = from + (8*group + r)*n_blocks + b;
            }
            interleave(rows, to[group*n_blocks + b]);
        }
    }
    return 0;
}
