// What is known of single architectures by name, and cannot be read from a model or a graph.

#pragma once

#include <cstdint>
#include <string>

struct llama_model;

enum selfspec_trait : uint32_t {
    SELFSPEC_TRAIT_REPLAYS       = 1 << 0, // all states are in a memory that a replay can write, and that was tested
    SELFSPEC_TRAIT_MIXES_ROWS    = 1 << 1, // results and states depend on how rows were split into passes
    SELFSPEC_TRAIT_STATES_IN_ALL = 1 << 2, // every block has a recurrent state, and K/V besides
    SELFSPEC_TRAIT_LEAVES_LAST   = 1 << 3, // assistants read the states that leave all blocks
    SELFSPEC_TRAIT_HEAD          = 1 << 4, // a draft head in a file of its own, whose rows are a token and states
    SELFSPEC_TRAIT_HEAD_FUSES    = 1 << 5, // a draft head that fuses states first, and finishes only the rows that are wanted
    SELFSPEC_TRAIT_HEAD_BLOCKS   = 1 << 6, // a draft head that drafts a block of tokens in one pass
};

bool selfspec_has(const llama_model & model, selfspec_trait trait);

// Returns "architecture NAME", for messages.
std::string selfspec_architecture(const llama_model & model);
