// The largest of many numbers, for graphs and kernels.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

// The loop has a form that compilers turn into vector code: no calls, no branches, sixteen independent lanes. With standard functions and a
// large vocabulary it would take a tenth of the time of a small model's draft. These functions are static, since each library is compiled
// for other instructions.
constexpr int64_t SELFSPEC_LANES = 16;

// Returns the largest of x[n], -inf if none is a number.
static inline float selfspec_max_of(const float * x, int64_t n) {
    float lanes[SELFSPEC_LANES];
    std::fill_n(lanes, SELFSPEC_LANES, -INFINITY);

    const int64_t n_whole = n - n % SELFSPEC_LANES;
    for (int64_t i = 0; i < n_whole; i += SELFSPEC_LANES) {
        for (int64_t lane = 0; lane < SELFSPEC_LANES; ++lane) {
            lanes[lane] = x[i + lane] > lanes[lane] ? x[i + lane] : lanes[lane];
        }
    }
    float best = *std::max_element(lanes, lanes + SELFSPEC_LANES);
    for (int64_t i = n_whole; i < n; ++i) {
        best = x[i] > best ? x[i] : best;
    }
    return best;
}

// Returns the n-th largest of these, -inf if they are fewer or one is not a number.
static inline float selfspec_nth_largest(std::vector<float> x, int32_t n) {
    if ((int64_t) x.size() < n || std::any_of(x.begin(), x.end(), [](float each) { return std::isnan(each); })) {
        return -INFINITY;
    }
    std::nth_element(x.begin(), x.begin() + n - 1, x.end(), std::greater<float>());
    return x[n - 1];
}
