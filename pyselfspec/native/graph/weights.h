// What the CPU backend does with weights.

#pragma once

#include "ggml-backend.h"

#include <cstdint>

struct ggml_tensor;
struct selfspec_coarse_tensors;

// How many rows of a pass products keep exact, see selfspec_kernel_width(). NULL if the CPU backend has no such function.
using selfspec_width_function = int32_t (*)(const ggml_tensor * weights, bool fast);
selfspec_width_function selfspec_width_of_weights();

// Makes the coarse copy of a head's weights, see kernels/coarse.h. NULL if the CPU backend makes none.
using selfspec_make_coarse_function = void (*)(const ggml_tensor * weights, const selfspec_coarse_tensors & to);
selfspec_make_coarse_function selfspec_make_coarse();

// The buffer whose weights the CPU backend interleaves when they are written; NULL if it has none.
ggml_backend_buffer_type_t selfspec_interleaved_buffer();

// selfspec_let_grow() and selfspec_interleaved_size(), which do nothing and return 0 if the CPU backend has no such functions.
void    selfspec_let_weights_of_thread_grow(bool may);
int32_t selfspec_interleaved_size_of_type(int32_t type);
