// What patch 0006 calls: matrix products and attention, computed here instead of upstream.
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

// Whether each of so many tokens must get the bits that it has alone. What is not computed here is then multiplied
// token by token: no tiles, and no product that takes four rows at once.
bool    selfspec_is_narrow(int64_t n_tokens);
int64_t selfspec_rows_in_fours(int64_t n_rows);  // that such a product may take

// Up to how many tokens a product with these weights gives a token the bits that it has alone: INT32_MAX with a kernel of
// ours, less where wide batches go through upstream's tiles; 0 if that is not known, because these kernels are switched off, are empty on this processor, or the weights
// are in an order that neither they nor repack.cpp knows. With `fast`, 0 also where there is no kernel for them here. Asked
// through the backend's registry under this name.
int32_t selfspec_kernel_width(const struct ggml_tensor * weights, bool fast);

#ifdef __cplusplus
}
#endif
