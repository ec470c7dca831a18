// What the CPU backend does with weights.

#pragma once

#include <cstdint>

struct ggml_tensor;

// How many rows of a pass products keep exact, see selfspec_kernel_width(). NULL if the CPU backend has no such function.
using selfspec_width_function = int32_t (*)(const ggml_tensor * weights, bool fast);
selfspec_width_function selfspec_width_of_weights();

// selfspec_let_grow() and selfspec_interleaved_size(), which do nothing and return 0 if the CPU backend has no such functions.
void    selfspec_let_weights_of_thread_grow(bool may);
int32_t selfspec_interleaved_size_of_type(int32_t type);
