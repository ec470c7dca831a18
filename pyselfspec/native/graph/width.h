// How many rows of a pass the CPU backend's products keep exact.

#pragma once

#include <cstdint>

struct ggml_tensor;

// See selfspec_kernel_width(). NULL if the CPU backend has no such function.
using selfspec_width_function = int32_t (*)(const ggml_tensor * weights, bool fast);
selfspec_width_function selfspec_width_of_weights();
