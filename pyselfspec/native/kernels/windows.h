// Convolutions of hybrid models over a few tokens, and the windows that they read.
#pragma once

struct ggml_compute_params;
struct ggml_tensor;

namespace selfspec {

// Whether an op is one of these, with tensors in the layout that is computed here.
bool takes_window(const ggml_tensor * op);

// Computes this thread's share of the channels. Threads need not meet, and no work memory is used.
void window(const ggml_compute_params * params, ggml_tensor * op);

}  // namespace selfspec
