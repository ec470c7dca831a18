// Replay: the recurrent state after some of the rows of the last pass, computed again from the state before that pass.
//
// The operations that advance a state read a few kilobytes per row. In the graph of a pass whose rows may be removed, these
// inputs stay in memory until the next pass. A replay scans those of the rows that remain, without any weights, and writes one
// state. The sums are those of the pass itself, row after row, so the bits are those of a pass over these rows alone.

#pragma once

#include "ggml-cpp.h"

#include <cstdint>

struct ggml_cgraph;
struct llama_context;
class  llama_memory_recurrent;

// Marks the inputs of all operations on recurrent states, so that the memory plan does not overwrite them.
void selfspec_keep_inputs(ggml_cgraph * gf);

// The rows of one sequence in a pass, and the cells of its states.
struct selfspec_replayed {
    int32_t n_rows; // of each sequence in the pass
    int32_t n_keep; // the first ones, which remain; 1 to n_rows
    int32_t before; // cell of the state before the pass; -1: the sequence was empty
    int32_t after;  // cell of the state after it, which the replay overwrites
};

class selfspec_replay {
public:
    selfspec_replay(llama_context & ctx, const llama_memory_recurrent & memory) : ctx(ctx), memory(memory) {}

    // Computes the state after the rows that remain. gf: the graph of the pass, whose inputs were kept and are still in memory.
    // Returns false if the graph advances a state in a way that is not known here, and then changes nothing. Also returns false
    // if the computation fails; the state after the pass is then lost.
    bool run(ggml_cgraph * gf, const selfspec_replayed & rows);

    // Whether the states of such a graph can be computed again.
    bool knows(ggml_cgraph * gf, const selfspec_replayed & rows);

    // A number that changes whenever the graphs of the context lose their memory.
    int64_t generation() const;

private:
    llama_context                & ctx;
    const llama_memory_recurrent & memory;
    ggml_backend_sched_ptr         sched;
};
