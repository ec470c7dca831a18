// Loops over a row of logits.

#pragma once

#include <cstdint>

// The largest of x[n], -inf if none is a number.
float selfspec_max(const float * x, int32_t n);

// The sum of exp(x - max) with a relative error below 5e-6; max is at least the largest.
float selfspec_sum_exp(const float * x, int32_t n, float max);
