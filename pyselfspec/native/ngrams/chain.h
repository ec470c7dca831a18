// A chain of copies: tokens that followed the end of a text before, in the text itself or in other ones.

#pragma once

#include "ngrams/index.h"

// Where copies come from. chances: [lengths, SELFSPEC_N_SURENESS] how likely copies from there are accepted, by kind of match.
struct selfspec_copy_source {
    const selfspec_ngrams * index; // NULL: there is nothing to copy from
    const double          * chances;
};

// A token of a chain. source: index of where it comes from.
struct selfspec_chain_token {
    selfspec_copy copy;
    int32_t       source;
    double        chance;
};

// Returns at most n_max tokens that may follow a text, each after those before it. A copy from the first source counts before
// longer but less likely ones from the others. After the first token the chain ends where the probability that all of it is accepted
// falls below chance_min. It ends before a token below 0, which is no text.
std::vector<selfspec_chain_token> selfspec_chain(
        const std::vector<selfspec_copy_source> & sources, const selfspec_tail & text, double chance_min, size_t n_max);
