// Graphs that stay prepared. llama.cpp keeps one graph per context, so alternating draft and verification passes would build
// and allocate both graphs each time. A slot is a separate scheduler with the graphs that are allocated in it; during one
// decode it replaces the context's scheduler.

#pragma once

#include "graph/batch.h"

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>

struct llama_context;

class selfspec_slots {
public:
    // Wider batches are prompts: they go through the context's own graph, whose memory is reserved for them.
    static constexpr int32_t MAX_WIDTH = SELFSPEC_EXACT_WIDTH;
    static constexpr size_t  MAX_SLOTS = 12;

    explicit selfspec_slots(llama_context & ctx);
    ~selfspec_slots();

    struct slot;

    // During its lifetime the context decodes in a slot.
    class exchange {
    public:
        exchange(llama_context & ctx, slot * in_use);
        ~exchange();

        exchange(const exchange &) = delete;
        exchange & operator=(const exchange &) = delete;

    private:
        llama_context & ctx;
        slot          * in_use; // NULL: the context's own graph
    };

    // Makes the context use the slot for passes equal to this one, with these numbers of tokens and outputs. If there is none
    // it is created, in place of the least recently used one when there are MAX_SLOTS.
    exchange use(const selfspec_pass & pass, int32_t n_tokens, int32_t n_outputs);

    // Frees the slot for such passes, if there is one.
    void drop(const selfspec_pass & pass, int32_t n_tokens, int32_t n_outputs);

    // Memory of the slots' compute buffers, in bytes over all devices.
    size_t n_bytes() const;

private:
    using slot_list = std::list<std::unique_ptr<slot>>;

    slot_list::iterator find(const selfspec_pass & pass, int32_t n_tokens, int32_t n_outputs);

    llama_context & ctx;
    int64_t         generation = 0; // of the context, when the slots were made

    slot_list slots; // most recently used first
};
