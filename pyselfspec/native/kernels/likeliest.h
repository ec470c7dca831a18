// Products with an output head of which only the most likely tokens' logits are wanted.
#pragma once

#include "ggml-cpu-impl.h"

namespace selfspec {

bool   takes_likeliest(const ggml_tensor * op);  // see graph/coarse_tensors.h
size_t likeliest_work_size(const ggml_tensor * op, int n_threads);
void   likeliest(const ggml_compute_params * params, ggml_tensor * op);

}  // namespace selfspec
