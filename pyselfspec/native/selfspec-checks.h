// Whether a graph that was built for a pass does what the pass says, everywhere.

#pragma once

#include "selfspec-batch.h"

#include <string>

struct ggml_tensor;
struct llama_memory_i;
struct llama_model;
struct llama_ubatch;
class  llm_graph_result;

// The parts that block il has weights for. Norms alone make no part, so skipping a part that is not there is exact.
int selfspec_parts_of(const llama_model & model, int il);

// Several checks know tensors by their names. Why they would not here, or nothing.
std::string selfspec_names_fault(const llama_model & model, const llama_memory_i * memory);

// What a pass leaves of block il: the states entering it; beyond the last, those that next-token-prediction blocks read.
// NULL where the graph has none.
ggml_tensor * selfspec_states_at(const selfspec_batch & ss, const llm_graph_result & res, int il);

// False, with a reason in the batch's report, when the graph does something else than it was asked for.
bool selfspec_check_graph(
        const selfspec_batch & ss, const llama_model & model, const llama_ubatch & ubatch, const llm_graph_result & res);
