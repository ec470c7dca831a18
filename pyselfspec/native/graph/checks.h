// Checks that a graph that was built for a pass does what the pass requests, in every block.

#pragma once

#include "graph/batch.h"

#include <string>

struct ggml_tensor;
struct llama_memory_i;
struct llama_model;
struct llama_ubatch;
class  llm_graph_result;

// Returns the parts for which block il has weights, as selfspec_part bits. Norms alone are not a part, so skipping a part that
// does not exist is exact.
int selfspec_parts_of(const llama_model & model, int il);

// Several checks identify tensors by their names. Returns why that would not work for this model, "" if it does.
std::string selfspec_names_fault(const llama_model & model, const llama_memory_i * memory);

// Returns the states entering block il; for il = n_layer the states leaving the last block, for il = n_layer + 1 those that
// next-token-prediction blocks read. NULL if the graph has none.
ggml_tensor * selfspec_states_at(const selfspec_batch & ss, const llm_graph_result & res, int il);

// Returns false, with a reason in the batch's report, when the graph does not do what its pass requests.
bool selfspec_check_graph(
        const selfspec_batch & ss, const llama_model & model, const llama_ubatch & ubatch, const llm_graph_result & res);
