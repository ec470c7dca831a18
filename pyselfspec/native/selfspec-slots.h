// Prepared graphs, kept alive. llama.cpp keeps one graph per context, so that a draft which alternates with a check
// builds and allocates both anew each time. A slot is a scheduler of its own with the graphs that are allocated in it;
// for the time of one decode it takes the place of the context's.

#pragma once

#include "selfspec-batch.h"

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

    // While it lives, the context decodes in a slot.
    class lease {
    public:
        lease(llama_context & ctx, slot * in_use);
        ~lease();

        lease(const lease &) = delete;
        lease & operator=(const lease &) = delete;

    private:
        llama_context & ctx;
        slot          * in_use; // NULL: the context's own graph
    };

    // The slot for passes that do the same and have the same shape. The least recently used one makes room.
    lease use(const selfspec_pass & pass, int32_t n_tokens, int32_t n_outputs);

    // Forget a slot, if there is one.
    void drop(const selfspec_pass & pass, int32_t n_tokens, int32_t n_outputs);

    // Memory of the slots' compute buffers on all devices.
    size_t n_bytes() const;

private:
    using slot_list = std::list<std::unique_ptr<slot>>;

    slot_list::iterator find(const selfspec_pass & pass, int32_t n_tokens, int32_t n_outputs);

    llama_context & ctx;
    int64_t         generation = 0; // of the context, when the slots were made

    slot_list slots; // most recently used first
};
