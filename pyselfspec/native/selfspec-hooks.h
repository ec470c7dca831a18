// What the patches call. Everything a decode asks for beyond upstream travels with its batch: llama_batch_ext
// -> llama_ubatch -> graph, K/V slots and outputs. No global, nothing sticky in a context.

#pragma once

#include "selfspec.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

struct ggml_tensor;
struct ggml_backend_sched;
struct llama_model;
struct llama_ubatch;
struct llm_graph_context;
class  llama_kv_cells;
class  llm_graph_result;

// The most likely token after the last one, and its probability.
struct selfspec_best {
    int32_t token = -1; // -1: none
    float   p     = 0.0f;
};

struct selfspec_batch {
    std::vector<uint8_t> mask; // [n_layer] selfspec_part bits; empty: run everything

    int32_t enter_at  = -1; // block that `hidden` enters, 1..n_layer-1; -1: token embeddings enter block 0
    int32_t hidden_at = -1; // copy the states entering this block, 1..n_layer; -1: none
    bool    in_place  = false;

    const float * hidden     = nullptr; // [n_tokens, n_embd], by index in the batch
    float       * hidden_out = nullptr; // [n_tokens, n_embd], by index in the batch
    bool          has_tokens = true;    // false: the ids in the batch are placeholders

    selfspec_best * best = nullptr; // found in the graph, instead of logits on the host

    // written while a graph is built: which parts consulted the mask, which block ends were seen, what went wrong
    mutable std::vector<uint8_t> seen;
    mutable std::vector<uint8_t> seen_end;
    mutable std::string          error;

    bool is_plain() const { return mask.empty() && hidden_at == -1 && !in_place && !best; }

    bool skips(int il, int part) const { return il >= 0 && il < (int) mask.size() && (mask[il] & part); }
};

using selfspec_batch_ptr = std::shared_ptr<const selfspec_batch>;

// Same topology as far as our part is concerned: only then is a graph reused, or the memory plan of one for another.
bool selfspec_same_graph(const selfspec_batch_ptr & a, const selfspec_batch_ptr & b);

// Zeros of the sublayer's output shape when the mask skips it, else NULL. Called first thing by every builder of a
// sublayer, so that what feeds a skipped one is never reached, hence never computed.
//   selfspec_skip_attn  attention proper; wo, v, v_mla may be NULL
//   selfspec_skip       a feed-forward part, or a recurrent mixer in the place of attention; last: its last weight
ggml_tensor * selfspec_skip_attn(
        const llm_graph_context & gctx, ggml_tensor * wo, ggml_tensor * q, ggml_tensor * v, ggml_tensor * v_mla, int il);
ggml_tensor * selfspec_skip(const llm_graph_context & gctx, int part, ggml_tensor * cur, ggml_tensor * last, int il);

// Called with the output of block il: marks it for copying, or puts the given states in its place.
ggml_tensor * selfspec_block_end(const llm_graph_context & gctx, ggml_tensor * cur, int il);

// The parts that block il has weights for. Norms alone make no part, so skipping a part that is not there is exact.
int selfspec_parts_of(const llama_model & model, int il);

// After a graph was built: keeps inputs that lost their users allocated and checks that the graph does what was
// asked. False, with a reason in ubatch.selfspec->error, when it does not.
bool selfspec_finish_graph(const llama_model & model, const llama_ubatch & ubatch, llm_graph_result & res);

// After a graph was computed: copies the states and the best token that were asked for.
void selfspec_copy_hidden(const llama_ubatch & ubatch, const llm_graph_result & res, ggml_backend_sched * sched);

// The cells that hold token i's (sequence, position), one per token; empty if one is missing.
std::vector<uint32_t> selfspec_find_cells(const llama_ubatch & ubatch, const llama_kv_cells & cells, uint32_t i0, uint32_t n);

bool selfspec_in_place(const llama_ubatch & ubatch);
