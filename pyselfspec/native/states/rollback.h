// The removal of the last tokens of a sequence, by snapshots or by replay, and checkpoints of recurrent states.
//
// A K/V cache can remove any tail. A recurrent state cannot go back, but llama.cpp can keep snapshots of it, one for each of
// the last rows of a pass (n_rs_seq). It also accepts removals that no snapshot covers, and then goes on from another state;
// here they are refused. A removal is possible directly after a pass, once, and leaves at least the first row of the pass.
//
// A replay (states/replay.h) needs the state before the pass. A fork of the sequence keeps it: llama.cpp then writes the
// state after the pass to another cell. The upper half of the context's sequences are such forks.

#pragma once

#include "session/arguments.h"
#include "states/replay.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

struct llama_context;
struct llama_model;

// Returns the bytes of the recurrent state of one sequence.
int64_t selfspec_state_bytes(const llama_model & model);

// Whether all states of the model are in a memory that a replay can write.
bool selfspec_replays(const llama_model & model);

class selfspec_rollback {
public:
    explicit selfspec_rollback(llama_context & ctx);

    // Whether any tail of a sequence can be removed.
    bool removes_any() const { return is_cache; }

    // Whether checkpoints of the state of a sequence can be made.
    bool has_states() const { return is_recurrent; }

    // Returns the most tokens that can be removed after a pass: INT32_MAX where any tail can be removed.
    int32_t limit() const;

    // Keeps the state before a pass, and the inputs of the pass, instead of snapshots. The context must have been made with
    // twice n_seq sequences: the upper half holds the states.
    void replay_for(int32_t n_seq);

    // Whether a graph with this number of rows of each sequence can be replayed.
    bool knows(ggml_cgraph * graph, int32_t n_rows);

    // Removals are impossible from now on.
    void stop_replay() { replay.reset(); }

    // The number of sequences that may hold tokens.
    int32_t n_seq() const { return n_texts; }

    // Call before a pass over the rows of these sequences. Until ran(), nothing can be removed.
    void begin(const std::vector<selfspec_span> & spans, selfspec_pass & pass);

    // Records a pass over the rows of these sequences. graph: of the pass, while its tensors are in memory; NULL: they are not.
    void ran(const std::vector<selfspec_span> & spans, ggml_cgraph * graph);

    // The graph of the last pass is about to lose its memory.
    void forget_graph() { last_graph = nullptr; }

    // Whether the tokens from position n_keep on can be removed, where the sequence holds more.
    bool can_keep(int32_t seq_id, int64_t n_keep) const;

    // Removes the tokens from position n_keep on. Returns false, without a change, if they cannot be removed.
    bool keep(int32_t seq_id, int64_t n_keep);

    // Removes all tokens of a sequence.
    void drop(int32_t seq_id);

    // Lets sequence `copy`, which must be empty, hold the tokens of seq_id.
    void fork(int32_t seq_id, int32_t copy);

    // The recurrent state of a sequence: its number of bytes; a copy of it; back to it, with the first n_keep tokens. After
    // a failure of load() the sequence is empty.
    size_t state_size(int32_t seq_id) const;
    bool   save(int32_t seq_id, uint8_t * out, size_t size) const;
    bool   load(int32_t seq_id, const uint8_t * state, size_t size, int64_t n_keep);

private:
    struct tail {
        int64_t last   = -1; // position of the last token after the pass
        int32_t n_rows = 0;  // of the pass; 0: none can be removed
    };

    bool          is_kept(const std::vector<selfspec_span> & spans) const;
    void          replay_to(int32_t seq_id, int32_t n_keep);
    int32_t       cell_of(int32_t seq_id) const;
    bool          can_replay(int32_t seq_id) const;

    llama_context & ctx;
    const bool      is_cache;
    const bool      is_recurrent;

    std::vector<tail> tails;   // by sequence, after the last pass
    std::vector<bool> pending; // by sequence: tokens were removed since its last pass

    llama_memory_recurrent         * states;               // NULL: has none, or of a kind that cannot be replayed
    int32_t                          n_texts;
    std::unique_ptr<selfspec_replay> replay;               // NULL: snapshots, or none
    ggml_cgraph                    * last_graph = nullptr; // of the last pass, while its inputs are kept
    int64_t                          generation = 0;       // of the context, when the pass ran
};
