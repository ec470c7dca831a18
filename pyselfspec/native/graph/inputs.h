// Inputs that we add to a graph and need again when it is computed.

#pragma once

#include "graph/batch.h"

#include "ggml-backend.h"
#include "ggml.h"
#include "llama-batch.h"
#include "llama-graph.h"

// Hidden states that take the place of a block's output. Rows are looked up by their index in the batch.
class selfspec_input_hidden : public llm_graph_input_i {
public:
    explicit selfspec_input_hidden(ggml_tensor * hidden) : hidden(hidden) {}

    void set_input(const llama_ubatch * ubatch) override {
        const size_t row = hidden->nb[1];

        for (uint32_t i = 0; i < ubatch->n_tokens; ++i) {
            const size_t src = ubatch->data->batch_idxs[i];
            ggml_backend_tensor_set(hidden, ubatch->selfspec->hidden + src*hidden->ne[0], i*row, row);
        }
    }

    // width and place are compared with the ubatch, see llm_graph_params::allow_reuse
    bool can_reuse(const llm_graph_params &) override { return true; }

private:
    ggml_tensor * hidden; // F32 [n_embd, n_tokens]
};

// Ids of the tokens among which the best one is searched: rows of the head's weights.
class selfspec_input_among : public llm_graph_input_i {
public:
    explicit selfspec_input_among(ggml_tensor * ids) : ids(ids) {}

    void set_input(const llama_ubatch * ubatch) override {
        ggml_backend_tensor_set(ids, ubatch->selfspec->among, 0, ggml_nbytes(ids));
    }

    bool can_reuse(const llm_graph_params &) override { return true; } // their number is part of the pass

private:
    ggml_tensor * ids; // I32 [n_among]
};

// Not an input: the tensors of the best tokens in a graph, kept with the graph as long as it is reused.
class selfspec_best_found : public llm_graph_input_i {
public:
    selfspec_best_found(ggml_tensor * token, ggml_tensor * p, ggml_tensor * listed) : token(token), p(p), listed(listed) {}

    void set_input(const llama_ubatch *) override {}
    bool can_reuse(const llm_graph_params &) override { return true; }

    ggml_tensor * const token;  // I32 [n_outputs]; with a list of tokens, the index in the list
    ggml_tensor * const p;      // F32 [1, 1, n_outputs]
    ggml_tensor * const listed; // F32 [n_among, n_outputs], NULL without a list
};
