// What the last pass has left for a row: logits, the most likely token, a drawn one.

#include "graph/argmax.h"
#include "session/architectures.h"
#include "session/session.h"

#include "ggml-backend.h"
#include "llama-context.h"
#include "llama-model.h"

#include <algorithm>
#include <cmath>

// Replaces indices in the list of tokens by the ids of the tokens.
void selfspec_session::name_best(const selfspec_among & among) {
    const auto & own = own_tokens();
    for (auto & each : best) {
        if (among.ids && each.token >= 0 && each.token < among.n) {
            each.token = among.ids[each.token];
        } else if (each.token >= 0 && each.token < (int32_t) own.size()) {
            each.token = (int32_t) own[each.token];
        }
    }
}

const std::vector<int64_t> & selfspec_session::own_tokens() {
    if (own.empty() && model.d2t && selfspec_has(model, SELFSPEC_TRAIT_HEAD_FUSES)) { // others spread their logits over the vocabulary of the target
        own.resize(ggml_nelements(model.d2t));
        ggml_backend_tensor_get(model.d2t, own.data(), 0, ggml_nbytes(model.d2t));
    }
    return own;
}

// After a pass that found best tokens, the buffer for logits holds those of an earlier pass.
void selfspec_session::leave_best() noexcept {
    if (!best.empty()) {
        ctx->n_outputs = 0;
    }
}

void selfspec_session::forget_outputs() noexcept {
    best.clear();
    ctx->n_outputs = 0;
}

const float * selfspec_session::logits_of(int32_t row) const {
    ctx->synchronize(); // also without outputs: throws where a device is lost, see ContextHandle.close()
    const float * logits = ctx->n_outputs > 0 ? llama_get_logits_ith(ctx, row) : nullptr;
    if (!logits) {
        selfspec_refuse("there are no logits in row " + std::to_string(row));
    }
    return logits;
}

void selfspec_session::copy_logits(int32_t row, float * out) const {
    const size_t n_vocab = model.vocab.n_tokens();
    if (listed_ids.empty() || !known_best(row)) {
        std::copy_n(logits_of(row), n_vocab, out);
        return;
    }
    std::fill_n(out, n_vocab, -INFINITY);
    for (size_t i = 0; i < listed_ids.size(); ++i) {
        out[listed_ids[i]] = listed[row*listed_ids.size() + i];
    }
}

int32_t selfspec_session::sample(llama_sampler * chain, int32_t row, int32_t n_kept) {
    // no sampler of such a chain has a choice, or counts tokens; and a pass may have found the token without logits
    if (n_kept == 1) {
        return argmax(row, nullptr);
    }
    const int32_t token = selfspec_draw(chain, logits_of(row), (int32_t) model.vocab.n_tokens(), n_kept, candidates);
    if (token == SELFSPEC_NO_TOKEN) {
        selfspec_refuse("no token is left to draw after row " + std::to_string(row) + ": the sampler's grammar and filters rule out all of "
            "the vocabulary", token);
    }
    if (token < 0) {
        selfspec_refuse("the logits of row " + std::to_string(row) + " are not numbers", token);
    }
    return token;
}

// Returns what a pass that looked for the most likely token has found after a row; NULL: nothing.
const selfspec_best * selfspec_session::known_best(int32_t row) const {
    // a llama_decode() after ours has outputs of its own
    const bool is_known = ctx->n_outputs == 0 && row >= 0 && row < (int32_t) best.size() && best[row].token >= 0;
    return is_known ? &best[row] : nullptr;
}

int32_t selfspec_session::argmax(int32_t row, float * p) const {
    const std::string name = "row " + std::to_string(row);

    if (const selfspec_best * known = known_best(row)) {
        if (!std::isfinite(known->p)) {
            selfspec_refuse("the logits of " + name + " are not numbers", SELFSPEC_FAILED);
        }
        if (p) {
            *p = known->p;
        }
        return known->token;
    }

    const float * logits  = logits_of(row);
    const int32_t n_vocab = (int32_t) model.vocab.n_tokens();
    const int32_t found   = selfspec_largest(logits, n_vocab);
    if (found < 0) {
        selfspec_refuse("the logits of " + name + " are not numbers", SELFSPEC_FAILED);
    }
    if (p) {
        *p = 1.0f/selfspec_sum_exp(logits, n_vocab, logits[found]);
    }
    return found;
}
