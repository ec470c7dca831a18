// Matrix products with any number of tokens.
#pragma once

#include "ggml-cpu-impl.h"

namespace selfspec {

bool   has_kernel(const ggml_tensor * weights);  // for their type and present layout
bool   takes_product(const ggml_tensor * op);
size_t product_work_size(const ggml_tensor * op, int n_threads);
void   product(const ggml_compute_params * params, ggml_tensor * op);

}  // namespace selfspec
