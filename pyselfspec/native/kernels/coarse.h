// A coarse copy of an output head's weights, and the bound of what a logit differs from that of the copy.
#pragma once

#include "graph/coarse_tensors.h"
#include "product.h"

#include <cmath>

namespace selfspec {

using CoarseTensors = selfspec_coarse_tensors;

// Writes a copy of weights, on all cores. to.directions has some activations, which are made orthonormal.
void make_coarse(const ggml_tensor * weights, const CoarseTensors & to);

#if defined(SELFSPEC_KERNELS)

// Of k values, a multiple of 32.
float  dot(const float * x, const float * y, int64_t k);
double length(const float * x, int64_t k);

// A logit differs from that of the copy by at most a sum of four products of lengths, one of a row of the weights and one of the
// activations: of the parts across the directions of the row's error and of the activations; of the error and what rounding takes from the
// activations; of the copy and the difference of the activations that both products read; and of the error along the directions, as far
// as the copy does not have it, and the activations along them. So it is at most the length of the first four times the length of the
// others (Cauchy and Schwarz), in which these factors balance the last three with the first.
constexpr double OF_ROUNDING = 0.25, OF_DIFFERENCE = 0.03, OF_REST = 4;

inline double together(double a, double b, double c, double d) { return std::sqrt(a*a + b*b + c*c + d*d); }

// Calls f(run, first, last) for the runs of rows [begin, end).
template <typename F> void each_run(int64_t begin, int64_t end, F f) {
    for (int64_t first = begin; first < end; first += SELFSPEC_RUN) {
        f(first/SELFSPEC_RUN, first, std::min(first + SELFSPEC_RUN, end));
    }
}

#endif

}  // namespace selfspec
