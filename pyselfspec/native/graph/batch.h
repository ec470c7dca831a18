// The request that is attached to one batch: the properties of its pass, the caller's arrays, and the findings of a graph build.

#pragma once

#include "graph/selfspec-hooks.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

// A mask's bits for a block that is skipped whole.
constexpr uint8_t SELFSPEC_SKIP_BLOCK = SELFSPEC_SKIP_ATTN | SELFSPEC_SKIP_FFN;

// A pass may ask for the logits of so many of the most likely tokens; more are not worth it, and all are computed.
constexpr int32_t SELFSPEC_MOST_BEST = 128;

class selfspec_coarse_head; // graph/coarse_head.h
using selfspec_coarse_head_ptr = std::shared_ptr<const selfspec_coarse_head>;

// The properties of a pass besides its rows. A value: passes that compare equal have equal graphs, so it is the key of
// graphs, memory plans and checks.
struct selfspec_pass {
    std::vector<uint8_t> mask; // [n_layer] selfspec_part bits; empty: run everything

    int32_t enter_at   = -1;   // block that hidden states enter, 1..n_layer-1; -1: token embeddings enter block 0
    int32_t head       = SELFSPEC_HEAD_LOGITS;
    int32_t n_among    = 0;    // length of the list in which the best token is searched; 0: all tokens
    int32_t n_best     = 0;    // most likely tokens whose logits are wanted; 0: all
    const selfspec_coarse_head * coarse_head = nullptr; // that they are found with
    int32_t nextn      = 0;    // of the blocks that predict the token after next, the one that runs in a draft head's context
    bool    in_place   = false;
    bool    has_tokens = true; // false: the ids in the batch are placeholders
    int32_t cell       = -1;   // where states are replayed, the one that the graph reads; -1: any
    bool    keeps      = false; // the inputs of operations on recurrent states, for a replay

    const llama_model * weights = nullptr; // of which the graph consists; NULL: those of the context's model

    std::vector<int32_t> hidden_at; // copy the states entering these blocks, 1..n_layer + 1

    bool is_plain() const { return *this == selfspec_pass(); }

    bool leaves(int il) const { return std::find(hidden_at.begin(), hidden_at.end(), il) != hidden_at.end(); }

    bool skips(int il, int part) const { return il >= 0 && il < (int) mask.size() && (mask[il] & part); }

    bool operator==(const selfspec_pass & other) const;
    bool operator< (const selfspec_pass & other) const;
};

// The most likely token after a row, and its probability.
struct selfspec_best {
    int32_t token = -1; // -1: none
    float   p     = 0.0f;
};

// Rows are identified by their index in the batch. The arrays belong to the caller and are valid during one decode.
struct selfspec_batch {
    const selfspec_pass pass;

    const float   * hidden     = nullptr; // [n_tokens, n_embd]
    float         * hidden_out = nullptr; // [n_tokens, sum of the widths at hidden_at]
    const int32_t * among      = nullptr; // [n_among] ids
    selfspec_best * best       = nullptr; // [n_tokens]
    float         * listed     = nullptr; // [n_tokens, n_among] receives the logits of the listed tokens

    selfspec_coarse_head_ptr coarse_head; // for n_best; NULL: all logits are computed
    std::vector<float>     * head_inputs = nullptr; // receives the activations of the head, for each output in turn; NULL: they are not needed

    std::vector<int32_t> rope_shift; // [n_tokens] see selfspec_rope_shift(); empty: none

    // written while a graph is built
    struct report {
        std::vector<uint8_t> asked; // [n_layer] which parts consulted the mask
        std::vector<uint8_t> ended; // [n_layer] how often the end of the block was seen
        std::string          error; // what went wrong
    };
    mutable report found;

    selfspec_batch(selfspec_pass pass, int32_t n_layer);
};
