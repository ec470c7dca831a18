// Flash attention of any number of tokens.
#pragma once

#include "ggml-cpu-impl.h"

namespace selfspec {

bool   takes_attention(const ggml_tensor * op);
size_t attention_work_size(const ggml_tensor * op, int n_threads);
void   attention(const ggml_compute_params * params, ggml_tensor * op);

}  // namespace selfspec
