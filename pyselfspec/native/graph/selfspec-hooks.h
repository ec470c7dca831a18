// The functions that the patches call. The request of a decode is attached to its batch and passed from llama_batch_ext to
// llama_ubatch, the graph, the K/V cells and the outputs. There are no globals, and no settings that remain in a context.

#pragma once

#include "abi/selfspec.h"
#include "threads/thread_count.h"

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

struct ggml_cgraph;
struct ggml_tensor;
struct ggml_backend_sched;
struct llama_model;
struct llama_ubatch;
struct llm_graph_context;
class  llama_kv_cache;
class  llama_kv_cells;
class  llm_graph_result;

struct selfspec_batch; // graph/batch.h
struct selfspec_pass;

using selfspec_batch_ptr = std::shared_ptr<const selfspec_batch>;
using selfspec_pass_ptr  = std::shared_ptr<const selfspec_pass>;

// Whether the requests of two batches lead to equal graphs: only then is a graph reused.
bool selfspec_same_graph(const llama_ubatch & a, const llama_ubatch & b);

// Returns the model with whose weights the batch is computed: the context's, or another of the same sizes.
const llama_model & selfspec_weights_of(const llama_model & model, const llama_ubatch & ubatch);

// Returns whether the memory plan was made for another pass than that of the batch, and stores the new one in `planned`.
bool selfspec_plan_changed(selfspec_pass_ptr & planned, const llama_ubatch & ubatch);

// Return zeros of the sublayer's output shape when the mask skips it, else NULL. Every builder of a sublayer calls this
// first, so that the inputs of a skipped sublayer do not lead to an output and are never computed.
//   selfspec_skip_attn  attention proper; wo, v, v_mla may be NULL
//   selfspec_skip       a feed-forward part, or a recurrent mixer in place of attention; last: its last weight
ggml_tensor * selfspec_skip_attn(
        const llm_graph_context & gctx, ggml_tensor * wo, ggml_tensor * q, ggml_tensor * v, ggml_tensor * v_mla, int il);
ggml_tensor * selfspec_skip(const llm_graph_context & gctx, int part, ggml_tensor * cur, ggml_tensor * last, int il);

// Called with the output of block il: marks it for copying, or returns the given states in its place.
ggml_tensor * selfspec_block_end(const llm_graph_context & gctx, ggml_tensor * cur, int il);

// Whether only the most likely token of each output is requested: a draft head with a vocabulary of its own then need not
// spread its logits over the vocabulary of its target.
bool selfspec_best_only(const llama_ubatch & ubatch);

// Returns the indices of the rows with an output if selfspec_best_only(), else NULL: a draft head need not finish other rows.
ggml_tensor * selfspec_wanted_rows(const llm_graph_context & gctx);

// Called after a graph was built: keeps inputs without a reader allocated, and checks that the graph does what its pass
// requests. Returns false, with a reason in the batch's report, when it does not.
bool selfspec_finish_graph(const llama_model & model, const llama_ubatch & ubatch, llm_graph_result & res);

// Called after a graph was computed: copies the requested states and best tokens to the request's arrays.
void selfspec_copy_out(const llama_ubatch & ubatch, const llm_graph_result & res, ggml_backend_sched * sched);

//
// threads
//

// Chooses the number of threads of one computation of a graph, at most the given one, and times it.
class selfspec_timed_graph {
public:
    selfspec_timed_graph(selfspec_thread_count & count, ggml_cgraph * graph, int & n_threads);
    ~selfspec_timed_graph();

    selfspec_timed_graph(const selfspec_timed_graph &) = delete;
    selfspec_timed_graph & operator=(const selfspec_timed_graph &) = delete;

private:
    selfspec_thread_count & count;
    const bool              can_change;
    double                  begun      = 0;
    double                  begun_busy = 0;
};

//
// K/V cells
//

// The cells that sequences will need in one cache. A member of llama_kv_cache.
struct selfspec_kv_reservations {
    std::vector<int32_t> reserved;         // by sequence: the most cells that it will hold; UNKNOWN, or beyond the end: not reserved
    bool                 can_move = false; // a session allows cells to be moved to other places
    int64_t              n_moves  = 0;     // times that cells were moved

    // Cells for those rows of the present batches that have none yet, in the order of the rows: a batch may be split, and
    // the rows of all parts are placed together.
    mutable std::deque<uint32_t> planned;

    static constexpr int32_t UNKNOWN = -1;

    int32_t of(int32_t seq_id) const { return seq_id < (int32_t) reserved.size() ? reserved[seq_id] : UNKNOWN; }
};

// Access to the private parts of llama_kv_cache, which declares it a friend.
struct selfspec_cache {
    // Plans the cells of these batches' rows. Moves cells when rows would otherwise be placed below those of their sequences.
    static void plan(llama_kv_cache & cache, const std::vector<llama_ubatch> & ubatches);

    static const llama_kv_cells & cells_of(const llama_kv_cache & cache);

private:
    // Returns false when the cells of this cache cannot be moved.
    static bool move(llama_kv_cache & cache, const std::vector<std::pair<uint32_t, uint32_t>> & from_to);
};

bool selfspec_in_place(const selfspec_batch_ptr & batch);

// Where RoPE has several dimensions, a picture takes fewer positions there than cells, so positions of later rows differ from
// those of their cells. The first position of a row in a ubatch is that of its cell, the second and third are those of RoPE's
// second and third dimension, and the fourth is that of its first.

// Returns what is added to the position of a row of the batch to get its position in RoPE.
int32_t selfspec_rope_shift(const selfspec_batch_ptr & batch, int32_t row);

// Sets RoPE's input. Returns false where all positions are those of the cells, as upstream assumes.
bool selfspec_set_rope(const llama_ubatch & ubatch, ggml_tensor * pos);

// Returns the cells that hold the (sequence, position) of rows i0 to i0 + n - 1, one per row; empty if one is missing.
std::vector<uint32_t> selfspec_find_cells(const llama_ubatch & ubatch, const llama_kv_cells & cells, uint32_t i0, uint32_t n);

// Returns free cells for all rows, such that the cells of a sequence ascend with its positions if there is room for that;
// empty if there are not enough. The order in which attention sums then depends on the sequence alone, even if others grow
// in the same cache.
std::vector<uint32_t> selfspec_place_cells(const llama_ubatch & ubatch, const llama_kv_cells & cells, const selfspec_kv_reservations & room);
