// Operations on a row of logits.

#pragma once

#include "llama.h"

#include <cstdint>
#include <vector>

// Returns the index of the largest of x[n], the lowest of equal ones; negative if none is a number above -inf.
int32_t selfspec_largest(const float * x, int32_t n);

// Returns the sum of exp(x[i] - max) with a relative error below 5e-6. max must be at least the largest x[i].
float selfspec_sum_exp(const float * x, int32_t n, float max);

// Draws a token from logits [n] with a sampler chain, lets the chain accept it, and returns it. n_kept: the chain begins by leaving
// out all but so many of the most likely tokens; 0: it may need all. Returns SELFSPEC_NO_TOKEN when the chain rules out all tokens
// and SELFSPEC_FAILED when no logit is a number; the chain has then accepted nothing. Passes on the exceptions of samplers.
int32_t selfspec_draw(llama_sampler * chain, const float * logits, int32_t n, int32_t n_kept, std::vector<llama_token_data> & candidates);
