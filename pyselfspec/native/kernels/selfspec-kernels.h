// The functions that patch 0006 calls: matrix products and attention, computed here instead of upstream.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ggml_compute_params;
struct ggml_tensor;

#ifdef __cplusplus
extern "C" {
#endif

// Returns the bytes of work space that `op` needs here with n_threads threads; 0 if it is not computed here.
size_t selfspec_work_size(const struct ggml_tensor * op, int n_threads);

// Computes `op`, called by all threads together. Returns false if upstream must compute it.
bool selfspec_compute_forward(const struct ggml_compute_params * params, struct ggml_tensor * op);

// Returns whether each of n_tokens tokens must get the bits that it has alone. Products that are not computed here are then
// computed token by token, without tiles and without upstream's product of four rows at once.
bool    selfspec_is_narrow(int64_t n_tokens);
int64_t selfspec_rows_in_fours(int64_t n_rows);  // number of rows, of n_rows, for which the product of four rows may be used

// Returns whether the kernels here read Q5_K, Q6_K and IQ4_XS with eight rows interleaved. Upstream computes the first two slowly
// on x86 and therefore never chooses that there; the third is a layout of ours.
bool selfspec_reads_columns(void);

// Copies rows of IQ4_XS, all that the tensor has, into it with eight of them interleaved. Returns 0, or -1 if their number or the
// size does not fit.
int selfspec_interleave_iq4_xs(struct ggml_tensor * tensor, const void * data, size_t size);

// Returns up to how many tokens a product with these weights gives each token the bits that it has alone: INT32_MAX with a
// kernel of ours, less where upstream computes wide batches in tiles; 0 if unknown, because these kernels are switched off or
// do not support this processor, or the layout of the weights is neither ours nor one of repack.cpp. With `fast`, returns 0
// also where there is no kernel for the weights here. Found through the backend's registry under this name.
int32_t selfspec_kernel_width(const struct ggml_tensor * weights, bool fast);

#ifdef __cplusplus
}
#endif
