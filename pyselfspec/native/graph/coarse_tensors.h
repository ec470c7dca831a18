// What graphs and kernels know of a coarse copy of an output head's weights.
#pragma once

#include "ggml.h"

#include <cstdint>

// Operands of a product with the head that computes the logits of the most likely tokens only, and the parameter that has their number:
// kernels/likeliest.cpp. The CPU backend asks the first four operands whether it can compute a product.
enum { SELFSPEC_ERRORS = 3, SELFSPEC_COARSE = 4, SELFSPEC_DIRECTIONS = 5, SELFSPEC_N_BEST = 15 };

// Rows whose logits are looked at together.
constexpr int64_t SELFSPEC_RUN = 32;

struct selfspec_coarse_tensors {
    ggml_tensor * rows;       // [n_embd + n_directions, n_tokens] rounded rows, and their errors along the directions
    ggml_tensor * errors;     // F32 [n_tokens + n_runs] bounds of the rows' errors, and the largest of each run
    ggml_tensor * directions; // F32 [n_embd, n_directions]
};
