// The C interface: turns every failure into a status and a message.

#include "abi/selfspec.h"

#include "graph/argmax.h"
#include "graph/weights.h"
#include "session/draft.h"
#include "session/session.h"

#include "llama-model.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#ifndef PYSELFSPEC_BUILD_ID
#    error "PYSELFSPEC_BUILD_ID is set by pyselfspec/native/CMakeLists.txt"
#endif

static void require_place_for(const void * array, const char * what) {
    if (!array) {
        selfspec_refuse(std::string("there is no place for ") + what + ": give an array, not NULL");
    }
}

const char * selfspec_build_id(void) {
    return PYSELFSPEC_BUILD_ID;
}

selfspec_session * selfspec_init(llama_context * ctx) {
    if (!ctx) {
        return nullptr;
    }
    try {
        return new selfspec_session(ctx);
    } catch (...) {
        return nullptr;
    }
}

void selfspec_free(selfspec_session * session) {
    delete session;
}

const char * selfspec_error(const selfspec_session * session) {
    return session ? session->error.c_str() : "no session";
}

int32_t selfspec_mask_support(selfspec_session * session, uint8_t * out, int32_t n_layer) {
    return session->guarded([&] {
        selfspec_require_n_layer(session->facts(), n_layer);
        require_place_for(out, "the parts of each block");
        const auto & bits = session->mask_support();
        std::copy(bits.begin(), bits.end(), out);
    });
}

int32_t selfspec_can_enter(selfspec_session * session, int32_t il) {
    return session->guarded([&] { return session->can_enter(il); });
}

int32_t selfspec_can_shorten(selfspec_session * session) {
    return session->guarded([&] { return session->can_shorten(); });
}

int32_t selfspec_memory(selfspec_session * session) {
    return session->guarded([&] { return session->memory_bits(); });
}

int32_t selfspec_can_keep(selfspec_session * session, int32_t seq_id, int32_t n) {
    return session->guarded([&] { return session->can_keep(seq_id, n); });
}

int32_t selfspec_keep(selfspec_session * session, int32_t seq_id, int32_t n) {
    return session->guarded([&] { session->keep(seq_id, n); });
}

int32_t selfspec_max_rollback(selfspec_session * session) {
    return session->guarded([&] { return session->rollback.limit(); });
}

int32_t selfspec_replay_for(selfspec_session * session, int32_t n_seq) {
    return session->guarded([&] { session->replay_for(n_seq); });
}

int32_t selfspec_fork(selfspec_session * session, int32_t seq_id, int32_t copy) {
    return session->guarded([&] { session->fork(seq_id, copy); });
}

int64_t selfspec_state_size(selfspec_session * session, int32_t seq_id) {
    return session->guarded([&] { return session->state_size(seq_id); });
}

int32_t selfspec_save_state(selfspec_session * session, int32_t seq_id, uint8_t * out, int64_t size) {
    return session->guarded([&] {
        require_place_for(out, "the state");
        session->save_state(seq_id, out, size);
    });
}

int32_t selfspec_load_state(selfspec_session * session, int32_t seq_id, const uint8_t * state, int64_t size, int32_t n) {
    return session->guarded([&] {
        if (!state) {
            selfspec_refuse("state is NULL, give one that selfspec_save_state() has written");
        }
        session->load_state(seq_id, state, size, n);
    });
}

int32_t selfspec_model_replays(const llama_model * model) {
    return model && selfspec_replays(*model);
}

int64_t selfspec_model_state_bytes(const llama_model * model) {
    return model ? selfspec_state_bytes(*model) : 0;
}

int32_t selfspec_reserve(selfspec_session * session, int32_t seq_id, int32_t n) {
    return session->guarded([&] { session->reserve(seq_id, n); });
}

int32_t selfspec_in_order(selfspec_session * session, int32_t seq_id) {
    return session->guarded([&] { return session->in_order(seq_id); });
}

int64_t selfspec_n_moves(selfspec_session * session) {
    return session->guarded([&] { return session->n_moves(); });
}

int32_t selfspec_exact_width(selfspec_session * session) {
    return session->guarded([&] { return session->exact_width(); });
}

int32_t selfspec_exact_prompts(selfspec_session * session) {
    return session->guarded([&] { return session->has_exact_prompts(); });
}

int32_t selfspec_interleaved_bytes(int32_t type) {
    return type < 0 || type >= GGML_TYPE_COUNT ? 0 : selfspec_interleaved_size_of_type(type);
}

void selfspec_let_weights_grow(bool may) { selfspec_let_weights_of_thread_grow(may); }

size_t selfspec_graph_bytes(const selfspec_session * session) {
    return session->slots.n_bytes();
}

void selfspec_stop_passes(selfspec_session * session, bool stopped) {
    session->stop.set(stopped);
}

void selfspec_heed_interrupts(selfspec_session * session, bool heed) {
    session->stop.heed_interrupts(heed);
}

int64_t selfspec_n_graph_checks(const selfspec_session * session) {
    return session->n_graph_checks;
}

// Runs a pass of the session, given its arguments. If it fails, no row has an output.
template <typename F>
static int32_t selfspec_run(selfspec_session * session, const selfspec_decode_args * args, F decode) {
    const selfspec_interrupt::pass in_pass(session->stop);
    const int32_t status = session->guarded([&] {
        if (!args) {
            selfspec_refuse("args is NULL, give the arguments of a pass");
        }
        decode(*args);
    });
    if (status != SELFSPEC_OK) {
        session->forget_outputs();
    }
    return status;
}

int32_t selfspec_decode(selfspec_session * session, const selfspec_decode_args * args) {
    return selfspec_run(session, args, [&](const auto & given) { session->decode(given); });
}

int32_t selfspec_decode_states(selfspec_session * session, const selfspec_picture_rows * rows) {
    const selfspec_interrupt::pass in_pass(session->stop);
    session->forget_outputs();
    return session->guarded([&] { session->decode_states(*rows); });
}

int32_t selfspec_embed(selfspec_session * session, int32_t n_tokens, const int32_t * tokens) {
    const selfspec_interrupt::pass in_pass(session->stop);
    return session->guarded([&] { session->embed(n_tokens, tokens); });
}

int32_t selfspec_draft_fuse(selfspec_session * session, int32_t n_rows, const float * features, float * states) {
    const selfspec_interrupt::pass in_pass(session->stop);
    return session->guarded([&] { selfspec_draft_head(*session).fuse(n_rows, features, states); });
}

int32_t selfspec_draft_decode(selfspec_session * session, const selfspec_decode_args * args) {
    return selfspec_run(session, args, [&](const auto & given) { selfspec_draft_head(*session).decode(given); });
}

int32_t selfspec_draft_score(selfspec_session * session, int32_t row, int32_t previous) {
    return session->guarded([&] { selfspec_draft_head(*session).score(row, previous); });
}

int32_t selfspec_sample(selfspec_session * session, llama_sampler * chain, int32_t row, int32_t n_kept) {
    return session->guarded([&] {
        if (!chain) {
            selfspec_refuse("chain is NULL, give a sampler chain");
        }
        return session->sample(chain, row, n_kept);
    });
}

int32_t selfspec_sample_logits(llama_sampler * chain, const float * logits, int32_t n_vocab, int32_t n_kept) {
    if (!chain || !logits || n_vocab < 1) {
        return SELFSPEC_BAD_ARGUMENT;
    }
    return selfspec_with_status([&]() -> int32_t {
        std::vector<llama_token_data> candidates;
        return selfspec_draw(chain, logits, n_vocab, n_kept, candidates);
    });
}

int32_t selfspec_logits(selfspec_session * session, int32_t row, float * logits) {
    return session->guarded([&] {
        require_place_for(logits, "the logits");
        session->copy_logits(row, logits);
    });
}

int32_t selfspec_argmax(selfspec_session * session, int32_t row, float * p) {
    return session->guarded([&] { return session->argmax(row, p); });
}
