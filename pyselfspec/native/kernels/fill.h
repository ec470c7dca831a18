// Tensors filled with one value.
#pragma once

#include "ggml-cpu-impl.h"
#include "ggml.h"

namespace selfspec {

bool takes_fill(const ggml_tensor * op);
void fill(const ggml_compute_params * params, ggml_tensor * op);

}  // namespace selfspec
