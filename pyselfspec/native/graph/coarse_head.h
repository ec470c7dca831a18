// Coarse copies of an output head's weights, with which a pass finds the most likely tokens without reading all of the head.
#pragma once

#include "abi/selfspec.h"
#include "graph/batch.h"
#include "graph/coarse_tensors.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

class selfspec_coarse_head {
public:
    // Activations that a copy is made for.
    static constexpr size_t N_DIRECTIONS = 32;

    // The copy of these weights in blocks of a type, made when it is first asked for. NULL if the CPU backend makes none, or there is no
    // memory. It must not be held longer than the weights live. inputs: [N_DIRECTIONS, n_embd] activations of the head.
    static selfspec_coarse_head_ptr of(const ggml_tensor * weights, ggml_type type, const std::vector<float> & inputs);

    // Makes a product with the weights compute the n_best largest logits of each token only.
    void add_to(ggml_tensor * product, int32_t n_best) const;

    ~selfspec_coarse_head();

private:
    struct tensors;
    explicit selfspec_coarse_head(std::unique_ptr<tensors> own);
    static selfspec_coarse_head_ptr make(const ggml_tensor * weights, ggml_type type, const std::vector<float> & inputs);

    std::unique_ptr<tensors> own;
};

// Chooses the copy that a context's passes read. A finer one follows where too many rows of the head are read besides.
class selfspec_coarse_choice {
public:
    // head: NULL if passes always read all of it.
    explicit selfspec_coarse_choice(const ggml_tensor * head) : head(head) {}

    // The copy for a pass with n outputs; NULL: it reads the head.
    selfspec_coarse_head_ptr of_pass(int32_t n);

    // Where the head's activations of a pass that reads the head are to be added; NULL: they are not needed.
    std::vector<float> * wanted_inputs() { return head && inputs.size() < n_inputs() ? &inputs : nullptr; }

    // Counts which of a row's logits were computed in a pass with a copy.
    void add(const float * logits, int32_t n);

private:
    size_t n_inputs() const { return selfspec_coarse_head::N_DIRECTIONS*head->ne[0]; }

    const ggml_tensor *      head;
    std::vector<float>       inputs;       // of the first passes
    selfspec_coarse_head_ptr copy;
    size_t                   finer    = 0; // the next kind to try
    int32_t                  most     = 0; // outputs of a pass that reads the copy
    int32_t                  n_before = 0; // outputs before the first copy
    int                      n_rows   = 0; // that were counted for the present copy
    float                    share    = 0; // of the logits, the average of the latest rows
};
