// What the patches call. Everything a decode asks for beyond upstream travels with its batch: llama_batch_ext
// -> llama_ubatch -> graph, K/V cells and outputs. No global, nothing sticky in a context.

#pragma once

#include "selfspec.h"

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

struct ggml_tensor;
struct ggml_backend_sched;
struct llama_model;
struct llama_ubatch;
struct llm_graph_context;
class  llama_kv_cache;
class  llama_kv_cells;
class  llm_graph_result;

struct selfspec_batch; // selfspec-batch.h
struct selfspec_pass;

using selfspec_batch_ptr = std::shared_ptr<const selfspec_batch>;
using selfspec_pass_ptr  = std::shared_ptr<const selfspec_pass>;

// Same topology as far as our part is concerned: only then is a graph reused.
bool selfspec_same_graph(const llama_ubatch & a, const llama_ubatch & b);

// Whether a memory plan was made for another topology. What it is made for now is remembered in `planned`.
bool selfspec_plan_changed(selfspec_pass_ptr & planned, const llama_ubatch & ubatch);

// Zeros of the sublayer's output shape when the mask skips it, else NULL. Called first thing by every builder of a
// sublayer, so that what feeds a skipped one is never reached, hence never computed.
//   selfspec_skip_attn  attention proper; wo, v, v_mla may be NULL
//   selfspec_skip       a feed-forward part, or a recurrent mixer in the place of attention; last: its last weight
ggml_tensor * selfspec_skip_attn(
        const llm_graph_context & gctx, ggml_tensor * wo, ggml_tensor * q, ggml_tensor * v, ggml_tensor * v_mla, int il);
ggml_tensor * selfspec_skip(const llm_graph_context & gctx, int part, ggml_tensor * cur, ggml_tensor * last, int il);

// Called with the output of block il: marks it for copying, or puts the given states in its place.
ggml_tensor * selfspec_block_end(const llm_graph_context & gctx, ggml_tensor * cur, int il);

// Whether the likeliest token of each output is all that is wanted: a draft head with tokens of its own then need not
// spread their logits over the vocabulary of its target.
bool selfspec_best_only(const llama_ubatch & ubatch);

// The rows with an output where that holds, else NULL: a draft head need not finish the others.
ggml_tensor * selfspec_wanted_rows(const llm_graph_context & gctx);

// After a graph was built: keeps inputs that lost their users allocated and checks that the graph does what was
// asked. False, with a reason in the batch's report, when it does not.
bool selfspec_finish_graph(const llama_model & model, const llama_ubatch & ubatch, llm_graph_result & res);

// After a graph was computed: copies the states and the best tokens that were asked for.
void selfspec_copy_out(const llama_ubatch & ubatch, const llm_graph_result & res, ggml_backend_sched * sched);

//
// K/V cells
//

// The room that sequences will need in one cache. A member of it.
struct selfspec_room {
    std::vector<int32_t> reserved;         // by sequence: the most cells that it will hold; UNKNOWN, or beyond the end: nobody said
    bool                 can_move = false; // a session allows cells to be moved to other places
    int64_t              n_moves  = 0;     // times that cells were moved

    // Where the rows of the present batches go that have no cell yet, in their order: a batch may be cut into several,
    // each of which is placed beside the rows of the others.
    mutable std::deque<uint32_t> planned;

    static constexpr int32_t UNKNOWN = -1;

    int32_t of(int32_t seq_id) const { return seq_id < (int32_t) reserved.size() ? reserved[seq_id] : UNKNOWN; }
};

// What may look into a cache and move its cells; a friend of it.
struct selfspec_cache {
    // Plans where the rows of these batches go. Moves cells where rows would otherwise have to be placed below those of their
    // sequences.
    static void plan(llama_kv_cache & cache, const std::vector<llama_ubatch> & ubatches);

    static const llama_kv_cells & cells_of(const llama_kv_cache & cache);

private:
    // false: its cells cannot be moved.
    static bool move(llama_kv_cache & cache, const std::vector<std::pair<uint32_t, uint32_t>> & from_to);
};

bool selfspec_in_place(const selfspec_batch_ptr & batch);

// The cells that hold the (sequence, position) of rows i0 to i0 + n, one per row; empty if one is missing.
std::vector<uint32_t> selfspec_find_cells(const llama_ubatch & ubatch, const llama_kv_cells & cells, uint32_t i0, uint32_t n);

// Free cells for all rows, such that the cells of a sequence ascend with its positions wherever there is room for
// that; empty if there are not enough. What attention adds up then depends on the sequence alone, however many others
// grow beside it in the same cache.
std::vector<uint32_t> selfspec_place_cells(const llama_ubatch & ubatch, const llama_kv_cells & cells, const selfspec_room & room);
