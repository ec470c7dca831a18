// Which nodes of a graph are computed here.
#pragma once

#include "selfspec-kernels.h"

namespace selfspec {

// PYSELFSPEC_KERNELS=off leaves all nodes to upstream, for comparisons.
bool is_off();

// Computes a node in which all threads take part. Returns false if upstream must compute it.
bool compute(const selfspec_meetings & at, const ggml_compute_params * params, ggml_tensor * op);

}  // namespace selfspec
