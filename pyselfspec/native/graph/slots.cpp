#include "graph/slots.h"

#include "ggml-cpp.h"
#include "llama-context.h"
#include "llama-graph.h"

#include <algorithm>
#include <array>
#include <utility>

// The members of a context that belong to its current graph, and the pass that the graph is for.
struct selfspec_slots::slot {
    slot(llama_context & ctx, const selfspec_pass & pass, int32_t n_tokens, int32_t n_outputs) :
        pass(pass), n_tokens(n_tokens), n_outputs(n_outputs),
        sched(ggml_backend_sched_new(ctx.backend_ptrs.data(), ctx.backend_buft.data(), (int) ctx.backend_ptrs.size(),
            ctx.gf_res_reserve->get_max_nodes(), false, ctx.cparams.op_offload)) {}

    bool fits(const selfspec_pass & other, int32_t n_tokens, int32_t n_outputs) const {
        return this->n_tokens == n_tokens && this->n_outputs == n_outputs && pass == other;
    }

    void swap_with(llama_context & ctx) {
        std::swap(ctx.sched,              sched);
        std::swap(ctx.gf_res_prev,        results);
        std::swap(ctx.gf_res_prev_active, active);
        std::swap(ctx.selfspec_planned,   planned);
    }

    const selfspec_pass pass;
    const int32_t       n_tokens;
    const int32_t       n_outputs;

    ggml_backend_sched_ptr              sched;
    std::array<llm_graph_result_ptr, 2> results;
    llm_graph_result                  * active = nullptr;
    selfspec_pass_ptr                   planned;
};

selfspec_slots::selfspec_slots(llama_context & ctx) : ctx(ctx) {}

selfspec_slots::~selfspec_slots() = default;

selfspec_slots::exchange::exchange(llama_context & ctx, slot * in_use) : ctx(ctx), in_use(in_use) {
    if (in_use) {
        in_use->swap_with(ctx);
    }
}

selfspec_slots::exchange::~exchange() {
    if (in_use) {
        in_use->swap_with(ctx);
    }
}

selfspec_slots::exchange selfspec_slots::use(const selfspec_pass & pass, int32_t n_tokens, int32_t n_outputs) {
    // pipelines switch between copies of their inputs, which belong to the context's own scheduler
    if (n_tokens > MAX_WIDTH || ctx.cparams.pipeline_parallel) {
        return { ctx, nullptr };
    }

    // a decode begins with these, which need the context's own scheduler
    ctx.sched_reserve();
    ctx.memory_update(false);

    // adapters, control vectors or samplers have changed, which invalidates all earlier graphs
    if (generation != ctx.selfspec_generation) {
        ctx.synchronize();
        slots.clear();
        generation = ctx.selfspec_generation;
    }

    const auto it = find(pass, n_tokens, n_outputs);
    if (it != slots.end()) {
        slots.splice(slots.begin(), slots, it);
    } else {
        if (slots.size() == MAX_SLOTS) {
            ctx.synchronize(); // its graph may still run
            slots.pop_back();
        }
        slots.push_front(std::make_unique<slot>(ctx, pass, n_tokens, n_outputs));
    }
    return { ctx, slots.front().get() };
}

selfspec_slots::slot_list::iterator selfspec_slots::find(const selfspec_pass & pass, int32_t n_tokens, int32_t n_outputs) {
    return std::find_if(slots.begin(), slots.end(), [&](const auto & s) { return s->fits(pass, n_tokens, n_outputs); });
}

void selfspec_slots::drop(const selfspec_pass & pass, int32_t n_tokens, int32_t n_outputs) {
    const auto it = find(pass, n_tokens, n_outputs);
    if (it != slots.end()) {
        ctx.synchronize();
        slots.erase(it);
    }
}

size_t selfspec_slots::n_bytes() const {
    size_t sum = 0;
    for (const auto & s : slots) {
        for (ggml_backend_t backend : ctx.backend_ptrs) {
            sum += ggml_backend_sched_get_buffer_size(s->sched.get(), backend);
        }
    }
    return sum;
}
