// What patch 0006 calls: matrix products and attention of a few tokens, computed here instead of upstream.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ggml_compute_params;
struct ggml_tensor;

#ifdef __cplusplus
extern "C" {
#endif

// Bytes of work space that `op` needs here with so many threads; 0 if it is not computed here.
size_t selfspec_work_size(const struct ggml_tensor * op, int n_threads);

// Computes `op`, called by all threads together; false if upstream has to.
bool selfspec_compute_forward(const struct ggml_compute_params * params, struct ggml_tensor * op);

// How many tokens these kernels take at once, 0 if they are switched off or empty on this processor. Asked through the
// backend's registry under this name.
int32_t selfspec_kernel_width(void);

#ifdef __cplusplus
}
#endif
