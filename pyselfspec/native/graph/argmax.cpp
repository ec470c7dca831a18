#include "graph/argmax.h"

#include "abi/selfspec.h"
#include "graph/largest.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

static constexpr int32_t N_LANES = SELFSPEC_LANES;
static constexpr int32_t N_RUN   = 4*N_LANES;  // logits whose largest one is looked up first
static constexpr int32_t N_SPAN  = 64*N_LANES; // the same where only the largest of all is wanted

int32_t selfspec_largest(const float * x, int32_t n) {
    float   best = -INFINITY;
    int32_t at   = -1; // of the first span that has it
    for (int32_t i = 0; i < n; i += N_SPAN) {
        const float max = selfspec_max_of(x + i, std::min(N_SPAN, n - i));
        if (max > best) {
            best = max;
            at   = i;
        }
    }
    return at < 0 ? at : (int32_t) (std::find(x + at, x + n, best) - x);
}

// exp(x) for x <= 0. exp(x) = 2^k * exp(f*ln 2), k the integer nearest to x/ln 2.
static inline float exp_of_negative(float x) {
    const float z = (x > -87.0f ? x : -87.0f)*1.44269504f;
    const int   k = (int) (z - 0.5f);
    const float f = (z - (float) k)*0.69314718f;
    const float e = 1.0f + f*(1.0f + f*(1.0f/2 + f*(1.0f/6 + f*(1.0f/24 + f*(1.0f/120 + f*(1.0f/720))))));

    const int32_t bits = (k + 127) << 23;
    float scale;
    std::memcpy(&scale, &bits, sizeof(scale));

    return scale*e;
}

float selfspec_sum_exp(const float * x, int32_t n, float max) {
    float lanes[N_LANES] = {};

    const int32_t n_whole = n - n % N_LANES;
    for (int32_t i = 0; i < n_whole; i += N_LANES) {
        for (int32_t lane = 0; lane < N_LANES; ++lane) {
            lanes[lane] += exp_of_negative(x[i + lane] - max);
        }
    }
    for (int32_t i = n_whole; i < n; ++i) {
        lanes[i - n_whole] += exp_of_negative(x[i] - max);
    }
    return std::accumulate(lanes, lanes + N_LANES, 0.0f);
}

static void list_all(const float * logits, int32_t n, std::vector<llama_token_data> & candidates) {
    candidates.resize(n);
    for (int32_t id = 0; id < n; ++id) {
        candidates[id] = { id, logits[id], 0.0f };
    }
}

// Lists the n_kept most likely tokens in the order of their ids, with all that are as likely as the last of them: whatever the logits of
// others are. First those that reach the n_kept-th of the largest logits of runs, which takes one look at each logit.
static void list_likeliest(const float * logits, int32_t n, int32_t n_kept, std::vector<llama_token_data> & candidates) {
    std::vector<float> largest;
    for (int32_t i = 0; i < n; i += N_RUN) {
        largest.push_back(selfspec_max_of(logits + i, std::min(N_RUN, n - i)));
    }
    constexpr float LOWEST = std::numeric_limits<float>::lowest(); // what was not computed is -inf
    const float of_runs = std::max(selfspec_nth_largest(largest, n_kept), LOWEST);

    candidates.clear();
    std::vector<float> found;
    for (int32_t i = 0; i < n; i += N_RUN) {
        for (int32_t id = i; largest[i/N_RUN] >= of_runs && id < std::min(i + N_RUN, n); ++id) {
            if (logits[id] >= of_runs) {
                candidates.push_back({ id, logits[id], 0.0f });
                found.push_back(logits[id]);
            }
        }
    }
    const float least = selfspec_nth_largest(std::move(found), n_kept);
    candidates.erase(std::remove_if(candidates.begin(), candidates.end(), [least](const auto & each) { return each.logit < least; }),
        candidates.end());
}

int32_t selfspec_draw(llama_sampler * chain, const float * logits, int32_t n, int32_t n_kept, std::vector<llama_token_data> & candidates) {
    if (n_kept < 1) {
        list_all(logits, n, candidates);
    } else {
        list_likeliest(logits, n, n_kept, candidates);
    }
    if (candidates.empty()) {
        return SELFSPEC_FAILED;
    }
    llama_token_data_array drawn = { candidates.data(), candidates.size(), -1, false };
    llama_sampler_apply(chain, &drawn);

    // a chain draws a token even if a grammar has ruled out all of them, and the grammar throws when it accepts that token
    const bool found = drawn.selected >= 0 && drawn.selected < (int64_t) drawn.size && drawn.data[drawn.selected].logit > -INFINITY;
    if (!found) {
        return selfspec_largest(logits, n) < 0 ? SELFSPEC_FAILED : SELFSPEC_NO_TOKEN;
    }
    const llama_token token = drawn.data[drawn.selected].id;
    llama_sampler_accept(chain, token);
    return token;
}
