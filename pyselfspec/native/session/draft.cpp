// Draft heads: models that read the hidden states of another model. EAGLE-3 (https://arxiv.org/abs/2503.01840) fuses the
// states of three blocks; a row of its one block is a token and the states that led to it. Rows of next-token-prediction
// blocks, which some models have after their other blocks, and of Gemma 4's assistants are built alike. An assistant has no
// K/V: it attends to those of its target. DFlash (https://arxiv.org/abs/2602.06036) turns the states of each token into K/V,
// and drafts a block of tokens in one pass over a token and masks, which attend to each other. DFlash2 scores a few candidates
// for each mask by the token that comes before it (https://inco.ai/blog/dflash2/).

#include "session/session.h"

#include "llama-arch.h"
#include "llama-context.h"
#include "llama-ext.h"
#include "llama-model.h"

#include <algorithm>
#include <cmath>
#include <memory>

void selfspec_session::check_draft() const {
    if (model.arch == LLM_ARCH_DFLASH) {
        // no row leaves states: the scores of candidates come in their place, for rows with and without an output
        llama_set_embeddings_nextn(ctx, n_candidates() > 0, false);
        return;
    }
    const bool is_file = model.arch == LLM_ARCH_EAGLE3 || model.arch == LLM_ARCH_GEMMA4_ASSISTANT;
    if (!is_file && ctx->get_cparams().ctx_type != LLAMA_CONTEXT_TYPE_MTP) {
        throw selfspec_failure { SELFSPEC_UNSUPPORTED,
            std::string("architecture ") + llm_arch_name(model.arch) + " is no draft head that reads states" };
    }
    // rows with an output return states; a head's context has no other use, so the setting is not reset
    llama_set_embeddings_nextn(ctx, true, true);
}

int32_t selfspec_session::draft_fuse(int32_t n_rows, const float * features, float * states) {
    check_draft();

    if (model.arch != LLM_ARCH_EAGLE3) {
        throw selfspec_failure { SELFSPEC_UNSUPPORTED,
            std::string("architecture ") + llm_arch_name(model.arch) + " takes states as they are" };
    }
    if (n_rows < 1 || n_rows > (int32_t) ctx->n_ubatch() || !features || !states) {
        throw selfspec_failure { SELFSPEC_BAD_ARGUMENT, "n_rows is " + std::to_string(n_rows) + ", allowed is 1 to n_ubatch = " +
            std::to_string(ctx->n_ubatch()) + ", with features and a place for states" };
    }
    const size_t n_in  = model.hparams.n_embd_inp_enc();
    const size_t n_out = model.hparams.n_embd_out();

    const llama_pos first = ctx->get_memory()->seq_pos_max(0) + 1; // no result depends on it, but positions must be consecutive

    batch.clear();
    for (int32_t i = 0; i < n_rows; ++i) {
        const llama_pos here = first + i;
        const llama_pos pos[GGML_MROPE_SECTIONS] = { here, here, here, here };

        batch.add_token(0);
        batch.set_token_embd(i, { features + i*n_in, 1, n_in });
        batch.set_token_pos(i, pos);
        batch.set_output(i, true);
    }
    require_done(ctx->encode(batch), n_rows, {});

    ctx->synchronize();
    const float * found = ctx->get_embeddings_nextn();
    if (!found) {
        throw selfspec_failure { SELFSPEC_FAILED, "the head left no states" };
    }
    std::copy_n(found, n_rows*n_out, states);
    forget_outputs();
    return SELFSPEC_OK;
}

// Rows of DFlash are states without outputs, or tokens of one block, all with outputs, since its graph does not select rows.
void selfspec_session::require_block(const selfspec_rows & rows, const selfspec_states & states) const {
    const int32_t n_outputs = rows.tokens ? rows.n : 0;
    if (!rows.tokens == !states.in || rows.n_outputs() != n_outputs || states.out) {
        throw selfspec_failure { SELFSPEC_BAD_ARGUMENT, "rows of a head that drafts blocks are states, or tokens with an output each" };
    }
    if (rows.n > (int32_t) ctx->n_ubatch()) {
        throw selfspec_failure { SELFSPEC_BAD_ARGUMENT, std::to_string(rows.n) + " rows of a head that drafts blocks, allowed is "
            "1 to n_ubatch = " + std::to_string(ctx->n_ubatch()) };
    }
    if (rows.tokens && n_candidates() > 0 && rows.n > (int32_t) model.hparams.dflash_block_size) {
        throw selfspec_failure { SELFSPEC_BAD_ARGUMENT, std::to_string(rows.n) + " tokens for a head whose blocks have " +
            std::to_string(model.hparams.dflash_block_size) };
    }
    const bool is_one = std::all_of(rows.seq_ids, rows.seq_ids + rows.n, [&](int32_t seq_id) { return seq_id == rows.seq_ids[0]; });
    if (!is_one) {
        throw selfspec_failure { SELFSPEC_BAD_ARGUMENT, "rows of a head that drafts blocks belong to one sequence" };
    }
}

void selfspec_session::require_nextn(const selfspec_pass & pass) const {
    const bool    is_own = ctx->get_cparams().ctx_type == LLAMA_CONTEXT_TYPE_MTP;
    const int32_t n      = is_own ? (int32_t) model.hparams.n_layer_nextn : 1;
    if (pass.nextn < 0 || pass.nextn >= n) {
        throw selfspec_failure { SELFSPEC_BAD_ARGUMENT,
            "nextn is " + std::to_string(pass.nextn) + ", allowed is 0 to " + std::to_string(n - 1) };
    }
}

// Adds rows to the empty batch, without outputs.
void selfspec_session::fill_draft(const selfspec_rows & rows, const selfspec_states & states) {
    const size_t n_embd = model.arch == LLM_ARCH_DFLASH ? model.hparams.n_embd_inp_enc() : model.hparams.n_embd_out();

    batch.clear();
    for (int32_t i = 0; i < rows.n; ++i) {
        const llama_pos here = rows.pos[i];
        const llama_pos pos[GGML_MROPE_SECTIONS] = { here, here, here, here };

        batch.add_token(rows.seq_ids[i]);
        if (rows.tokens) {
            batch.set_token_id(i, rows.tokens[i]);
        }
        if (states.in) {
            batch.set_token_embd(i, { states.in + i*n_embd, 1, n_embd });
        }
        batch.set_token_pos(i, pos);
    }
}

// Copies the states that rows with an output have left.
void selfspec_session::copy_left(const selfspec_rows & rows, float * out) const {
    for (int32_t i = 0; i < rows.n; ++i) {
        if (!rows.outputs[i]) {
            continue;
        }
        const float * found = ctx->get_embeddings_nextn_ith(i);
        if (!found) {
            throw selfspec_failure { SELFSPEC_FAILED, "the head left no states" };
        }
        out = std::copy_n(found, model.hparams.n_embd_out(), out);
    }
}

int32_t selfspec_session::draft_decode(const selfspec_decode_args & args) {
    check_draft();
    auto request = selfspec_request_of(args);
    const auto & rows   = request.rows;
    const auto & states = request.states;
    const auto & among  = request.among;
    auto       & pass   = request.pass;
    request.rows.n_seq_ids = nullptr;
    pass.nextn = args.nextn;
    const selfspec_facts known = facts();
    selfspec_require_batch(known, rows);
    selfspec_require_head(pass);
    selfspec_require_among(known, among, rows);

    const auto spans = selfspec_spans_of(rows);
    require_place(known, rows, spans, pass);
    const bool wanted = rows.n_outputs() > 0;
    if (model.arch == LLM_ARCH_DFLASH) {
        require_block(rows, states);
        if (n_candidates() > 0 && pass.head == SELFSPEC_HEAD_BEST) {
            throw selfspec_failure { SELFSPEC_BAD_ARGUMENT, "a head that scores candidates needs the logits of all tokens" };
        }
    } else if (!rows.tokens || !states.in || (wanted && !states.out)) {
        throw selfspec_failure { SELFSPEC_BAD_ARGUMENT, "a row of a head needs a token and states, one with an output a place for more" };
    }
    require_nextn(pass);

    const bool picks_rows = model.arch == LLM_ARCH_EAGLE3 && (!wanted || pass.head == SELFSPEC_HEAD_BEST);
    if (!wanted) {
        pass.n_among = 0;
        pass.head = picks_rows ? SELFSPEC_HEAD_BEST : SELFSPEC_HEAD_LOGITS;
    }
    // only some heads' graphs select rows: with the others, all rows have an output or none
    const auto has_output = [&](int32_t row) { return picks_rows ? rows.outputs[row] != 0 : wanted; };
    const auto want = std::make_shared<selfspec_batch>(pass, n_layer);
    find_best(*want, rows.n, among);

    fill_draft(rows, states);
    for (int32_t i = 0; i < rows.n; ++i) {
        batch.set_output(i, has_output(i));
    }
    llama_set_nextn_layer_offset(ctx, pass.nextn);
    const int32_t n_outputs = picks_rows ? rows.n_outputs() : wanted ? rows.n : 0;
    require_done(decode_in_slot(want, spans, n_outputs), rows.n, want->found.error);
    name_best(among);

    ctx->synchronize();
    if (states.out) {
        copy_left(rows, states.out);
    }
    if (!best.empty()) {
        ctx->n_outputs = 0; // the buffer for logits holds those of an earlier pass
    }
    return SELFSPEC_OK;
}

// The number of candidates for each row of a DFlash2 head, 0 for other heads.
int32_t selfspec_session::n_candidates() const {
    return model.dflash_selector_hidden ? (int32_t) model.hparams.dflash_selector_top_k : 0;
}

// A row of the graph's result has the ids of its candidates, then their scores after each candidate of the row before it.
int32_t selfspec_session::draft_score(int32_t row, int32_t previous) {
    const int32_t k       = n_candidates();
    const int32_t n_vocab = (int32_t) model.vocab.n_tokens();
    if (k == 0) {
        throw selfspec_failure { SELFSPEC_UNSUPPORTED, "this head scores no candidates" };
    }
    if (row < 1) {
        throw selfspec_failure { SELFSPEC_BAD_ARGUMENT, "row is " + std::to_string(row) + ", but the first row has no candidates" };
    }
    logits_of(row); // throws without a pass
    const float * found  = ctx->get_embeddings_nextn_ith(row);
    const float * before = ctx->get_embeddings_nextn_ith(row - 1);
    if (!found || !before) {
        throw selfspec_failure { SELFSPEC_FAILED, "the head left no scores" };
    }
    // the first of them follows one token: all of its scores are equal by the token before it
    const int32_t i_before = row == 1 ? 0 : (int32_t) (std::find(before, before + k, (float) previous) - before);
    if (i_before == k) {
        throw selfspec_failure { SELFSPEC_BAD_ARGUMENT, "token " + std::to_string(previous) + " is no candidate of row " +
            std::to_string(row - 1) };
    }
    float * logits = llama_get_logits_ith(ctx, row);
    std::fill_n(logits, n_vocab, -INFINITY);
    for (int32_t i = 0; i < k; ++i) {
        const int32_t token = (int32_t) found[i];
        if (token < 0 || token >= n_vocab) {
            throw selfspec_failure { SELFSPEC_FAILED, "the head named token " + std::to_string(token) };
        }
        logits[token] = found[k + i_before*k + i];
    }
    return SELFSPEC_OK;
}
