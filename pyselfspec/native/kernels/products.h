// Matrix products with any number of tokens.
#pragma once

#include "meetings.h"

#include "ggml-cpu-impl.h"

namespace selfspec {

int32_t most_tokens(const ggml_tensor * weights);  // of a product for their type and present layout; 0 without a kernel
bool   takes_product(const ggml_tensor * op);
bool   same_inputs(const ggml_tensor * a, const ggml_tensor * b);  // whether the kernels of two products read activations in one form
size_t product_work_size(const ggml_tensor * op, int n_threads);

// sharing: of the products that share activations, the number of this one, from 0.
void product(const ggml_compute_params * params, ggml_tensor * op, Inputs inputs, int sharing);

// Returns whether the weights' rows are interleaved already.
bool is_interleaved(const ggml_tensor * weights);

}  // namespace selfspec
