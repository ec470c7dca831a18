// A chain of copies: tokens that followed the end of a text before, in the text itself or in other ones.

#pragma once

#include "ngrams/index.h"

// Where copies come from.
struct selfspec_copy_source {
    const selfspec_ngrams * index;  // NULL, except for the first source: there is nothing to copy from
    double                * counts; // [lengths, SELFSPEC_N_SURENESS, 2] right ones and all, by kind of match

    double * of(const selfspec_copy & copy) const { return counts + 2 * (copy.length * SELFSPEC_N_SURENESS + copy.sureness); }
};

using selfspec_copy_sources = std::array<selfspec_copy_source, 3>;

// Counts how many of the expected tokens came, up to the first that did not. forget: weight of an outcome relative to the next one
// of its kind.
void selfspec_learn(
        const selfspec_copy_sources             & sources,
        const std::vector<selfspec_chain_token> & expected,
        const int32_t                           * came,
        size_t                                    n,
        double                                    forget);

// Returns at most n_max tokens that may follow a text, each after those before it. A copy from the first source counts before
// longer but less likely ones from the others. After its first token, the chain ends where the probability that all of it is right
// falls below chance_min. It ends before a token below 0, which is no text.
std::vector<selfspec_chain_token> selfspec_chain(
        const selfspec_copy_sources & sources, const selfspec_tail & text, double chance_min, size_t n_max);
