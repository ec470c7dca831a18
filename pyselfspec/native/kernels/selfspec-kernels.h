// The functions that patch 0006 calls: matrix products, attention and recurrences, computed here instead of upstream, and where threads
// meet.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ggml_cgraph;
struct ggml_compute_params;
struct ggml_cplan;
struct ggml_tensor;
struct ggml_threadpool;

#ifdef __cplusplus
extern "C" {
#endif

// Returns the bytes of work space that `op` needs here with n_threads threads; 0 if it is not computed here.
size_t selfspec_work_size(const struct ggml_tensor * op, int n_threads);

// Returns what ggml_graph_plan() does. It is asked once for a graph that is computed again and again.
struct ggml_cplan selfspec_plan(const struct ggml_cgraph * graph, int n_threads, struct ggml_threadpool * threadpool);

// What a thread knows, while it computes a graph, of nodes that other threads may still be computing. Equal in all threads at the
// same node.
enum { SELFSPEC_MOST_UNSETTLED = 8, SELFSPEC_MOST_STATES = 32 };
struct selfspec_meetings {
    const struct ggml_tensor * nodes[SELFSPEC_MOST_UNSETTLED];
    uint8_t                    ways[SELFSPEC_MOST_UNSETTLED];
    int                        n;
    const struct ggml_tensor * prepared;   // the product that has prepared the activations in the work memory, or NULL
    int                        n_sharing;  // products that have used them
    uint8_t                    way;        // of the present node
    uint8_t                    inputs;
    const struct ggml_tensor * gathered;   // nodes that the present one, a recurrence, replaces; or NULL
    const struct ggml_tensor * stored;
    int32_t                    rows[SELFSPEC_MOST_STATES];  // that the last node which is replaced would have copied
    const struct ggml_cgraph * graph;
    int                        place;      // of the present node in the graph
    void *                     decisions;  // of this thread for the graph, or NULL
    int                        n_decided;
};

// Called by each thread before the first node.
struct selfspec_meetings selfspec_begin(const struct ggml_cgraph * graph, const struct ggml_compute_params * params);

// Called by each thread before each node `op` of a graph. Returns whether the threads must wait for each other first.
bool selfspec_meets(struct selfspec_meetings * of, const struct ggml_compute_params * params, const struct ggml_tensor * op);

// Computes `op`, called by all threads after selfspec_meets(). Returns false if upstream must compute it. forward: upstream's
// function for nodes that one thread computes alone.
typedef void (*selfspec_forward)(struct ggml_compute_params * params, struct ggml_tensor * op);
bool selfspec_compute(const struct selfspec_meetings * of, struct ggml_compute_params * params, struct ggml_tensor * op, selfspec_forward forward);

// Returns whether each of n_tokens tokens must get the bits that it has alone. Products that are not computed here are then
// computed token by token, without tiles and without upstream's product of four rows at once.
bool    selfspec_is_narrow(int64_t n_tokens);
int64_t selfspec_rows_in_fours(int64_t n_rows);  // number of rows, of n_rows, for which the product of four rows may be used

// Returns whether the kernels here read these weights with eight rows interleaved, and whether that is a layout of ours: of Q3_K,
// IQ4_XS and IQ1 to IQ3.
bool selfspec_reads_columns(const struct ggml_tensor * weights);
bool selfspec_has_layout(const struct ggml_tensor * weights);

// Returns the bytes that weights take in the buffer of repack.cpp.
size_t selfspec_buffer_size(const struct ggml_tensor * weights);

// Copies rows, all that the tensor has, into it in a layout of ours. Returns 0, or -1 if their number or the size does not fit.
int selfspec_interleave(struct ggml_tensor * tensor, const void * data, size_t size);

// Calls `interleave`, a function like the one above, on all cores for shares of a tensor's rows. Returns 0 if all calls did.
typedef int (*selfspec_interleave_rows)(struct ggml_tensor * rows, const void * data, size_t size);
int selfspec_interleave_in_shares(struct ggml_tensor * tensor, const void * data, size_t size, selfspec_interleave_rows interleave);

// Returns the function below that has this name, NULL if there is none: they are found through the backend's registry.
void * selfspec_function(const char * name);

// Without AVX-512 VBMI, IQ1 to IQ3 take more memory interleaved than in the file. So they are interleaved only in models that are
// loaded by a thread which has called selfspec_let_grow(true). selfspec_interleaved_size() returns the bytes that 256 weights of a
// type take interleaved, 0 for types that stay as they are in the file.
void    selfspec_let_grow(bool may);
int32_t selfspec_interleaved_size(int32_t type);

// Returns up to how many tokens a product with these weights gives each token the bits that it has alone: INT32_MAX with a
// kernel of ours for prompts, less where upstream computes wide batches in tiles; 0 if unknown, because these kernels are
// switched off or do not support this processor, or the layout of the weights is neither ours nor one of repack.cpp. With
// `fast`, returns 0 also where there is no kernel for the weights here.
int32_t selfspec_kernel_width(const struct ggml_tensor * weights, bool fast);

#ifdef __cplusplus
}
#endif
