// What is done with a row of logits.

#pragma once

#include "llama.h"

#include <cstdint>
#include <vector>

// The largest of x[n], -inf if none is a number.
float selfspec_max(const float * x, int32_t n);

// The sum of exp(x - max) with a relative error below 5e-6; max is at least the largest.
float selfspec_sum_exp(const float * x, int32_t n, float max);

// The token that a chain draws from logits [n], after the chain has accepted it. SELFSPEC_NO_TOKEN when the chain leaves
// none, SELFSPEC_FAILED when no logit is a number; it has accepted nothing then. May throw what a sampler throws.
int32_t selfspec_draw(llama_sampler * chain, const float * logits, int32_t n, std::vector<llama_token_data> & candidates);
