// Draft heads: models that read the hidden states of another model. EAGLE-3 (https://arxiv.org/abs/2503.01840) fuses the
// states of three blocks; a row of its one block is a token and the states that led to it. Rows of next-token-prediction
// blocks, which some models have after their other blocks, and of Gemma 4's assistants are built alike. An assistant has no
// K/V: it attends to those of its target. DFlash (https://arxiv.org/abs/2602.06036) turns the states of each token into K/V,
// and drafts a block of tokens in one pass over a token and masks, which attend to each other. DFlash2 scores a few candidates
// for each mask by the token that comes before it (https://inco.ai/blog/dflash2/). DSpark may predict for each mask whether its
// token will be accepted, its confidence.

#include "session/draft.h"

#include "session/architectures.h"
#include "session/session.h"

#include "llama-context.h"
#include "llama-ext.h"
#include "llama-model.h"

#include <algorithm>
#include <cmath>
#include <string>

selfspec_draft_head::selfspec_draft_head(selfspec_session & session) :
    session(session), ctx(*session.ctx), model(session.model), fuses(selfspec_has(model, SELFSPEC_TRAIT_HEAD_FUSES)),
    blocks(selfspec_has(model, SELFSPEC_TRAIT_HEAD_BLOCKS)) {}

void selfspec_draft_head::require_head() const {
    if (blocks) {
        // no row leaves states: in their place come the scores of candidates or confidences, for rows with and without an output
        llama_set_embeddings_nextn(&ctx, n_candidates() > 0 || has_confidence(), false);
        return;
    }
    if (!selfspec_has(model, SELFSPEC_TRAIT_HEAD) && ctx.get_cparams().ctx_type != LLAMA_CONTEXT_TYPE_MTP) {
        selfspec_refuse(selfspec_architecture(model) + " is no draft head that reads states", SELFSPEC_UNSUPPORTED);
    }
    // rows with an output return states; a head's context has no other use, so the setting is not reset
    llama_set_embeddings_nextn(&ctx, true, true);
}

void selfspec_draft_head::fuse(int32_t n_rows, const float * features, float * states) {
    require_head();

    if (!fuses) {
        selfspec_refuse(selfspec_architecture(model) + " takes states as they are", SELFSPEC_UNSUPPORTED);
    }
    if (n_rows < 1 || n_rows > (int32_t) ctx.n_ubatch() || !features || !states) {
        selfspec_refuse("n_rows is " + std::to_string(n_rows) + ", allowed is 1 to n_ubatch = " +
            std::to_string(ctx.n_ubatch()) + ", with features and a place for states");
    }
    const size_t n_in  = model.hparams.n_embd_inp_enc();
    const size_t n_out = model.hparams.n_embd_out();

    const llama_pos first = ctx.get_memory()->seq_pos_max(0) + 1; // no result depends on it, but positions must be consecutive

    session.batch.clear();
    for (int32_t i = 0; i < n_rows; ++i) {
        const llama_pos here = first + i;
        const llama_pos pos[GGML_MROPE_SECTIONS] = { here, here, here, here };

        session.batch.add_token(0);
        session.batch.set_token_embd(i, { features + i*n_in, 1, n_in });
        session.batch.set_token_pos(i, pos);
        session.batch.set_output(i, true);
    }
    session.require_done(ctx.encode(session.batch), n_rows, {});

    ctx.synchronize();
    const float * found = ctx.get_embeddings_nextn();
    if (!found) {
        selfspec_refuse("the head left no states", SELFSPEC_FAILED);
    }
    std::copy_n(found, n_rows*n_out, states);
    session.forget_outputs();
}

// Rows of DFlash are states without outputs, or tokens of one block, all with outputs, since its graph does not select rows.
void selfspec_draft_head::require_block(const selfspec_request & asked) const {
    const auto & rows = asked.rows;
    const int32_t n_outputs = rows.tokens ? rows.n : 0;
    if (!rows.tokens == !asked.states.in || rows.n_outputs() != n_outputs || (asked.states.out && !has_confidence())) {
        selfspec_refuse("rows of a head that drafts blocks are states, or tokens with an output each");
    }
    if (rows.n > (int32_t) ctx.n_ubatch()) {
        selfspec_refuse(std::to_string(rows.n) + " rows of a head that drafts blocks, allowed is 1 to n_ubatch = " +
            std::to_string(ctx.n_ubatch()));
    }
    if (rows.tokens && n_candidates() > 0 && rows.n > (int32_t) model.hparams.dflash_block_size) {
        selfspec_refuse(std::to_string(rows.n) + " tokens for a head whose blocks have " + std::to_string(model.hparams.dflash_block_size));
    }
    const bool is_one = std::all_of(rows.seq_ids, rows.seq_ids + rows.n, [&](int32_t seq_id) { return seq_id == rows.seq_ids[0]; });
    if (!is_one) {
        selfspec_refuse("rows of a head that drafts blocks belong to one sequence");
    }
    if (n_candidates() > 0 && asked.pass.head == SELFSPEC_HEAD_BEST) {
        selfspec_refuse("a head that scores candidates needs the logits of all tokens");
    }
}

void selfspec_draft_head::require_nextn(const selfspec_pass & pass) const {
    const bool    is_own = ctx.get_cparams().ctx_type == LLAMA_CONTEXT_TYPE_MTP;
    const int32_t n      = is_own ? (int32_t) model.hparams.n_layer_nextn : 1;
    if (pass.nextn < 0 || pass.nextn >= n) {
        selfspec_refuse("nextn is " + std::to_string(pass.nextn) + ", allowed is 0 to " + std::to_string(n - 1));
    }
}

// Copies the states that rows with an output have left; of a block, the confidences, with which the graph fills rows of states.
void selfspec_draft_head::copy_left(const selfspec_rows & rows, float * out) const {
    const size_t n = blocks ? 1 : model.hparams.n_embd_out();
    for (int32_t i = 0; i < rows.n; ++i) {
        if (!rows.outputs[i]) {
            continue;
        }
        const float * found = ctx.get_embeddings_nextn_ith(i);
        if (!found) {
            selfspec_refuse("the head left no states", SELFSPEC_FAILED);
        }
        out = std::copy_n(found, n, out);
    }
}

void selfspec_draft_head::decode(const selfspec_decode_args & args) {
    require_head();
    const selfspec_facts known = session.facts();
    selfspec_request asked = selfspec_request_of(args);
    asked.rows.n_seq_ids = nullptr;
    asked.pass.nextn     = args.nextn;
    const selfspec_rows & rows = asked.rows;
    selfspec_require_batch(known, rows);
    selfspec_require_head(asked.pass);
    const auto spans  = session.admit(known, asked);
    const bool wanted = rows.n_outputs() > 0;
    if (blocks) {
        require_block(asked);
    } else if (!rows.tokens || !asked.states.in || (wanted && !asked.states.out)) {
        selfspec_refuse("a row of a head needs a token and states, one with an output a place for more");
    }
    require_nextn(asked.pass);

    // only some heads' graphs select rows: with the others, all rows have an output or none
    const bool picks_rows = fuses && (!wanted || asked.pass.head == SELFSPEC_HEAD_BEST);
    if (!wanted) {
        asked.pass.n_among = 0;
        asked.pass.head    = picks_rows ? SELFSPEC_HEAD_BEST : SELFSPEC_HEAD_LOGITS;
    }
    session.fill(rows, asked.states.in, blocks ? model.hparams.n_embd_inp_enc() : model.hparams.n_embd_out());
    for (int32_t i = 0; i < rows.n && !picks_rows; ++i) {
        session.batch.set_output(i, wanted);
    }
    llama_set_nextn_layer_offset(&ctx, args.nextn);
    float * left = asked.states.out;
    asked.states = {}; // they are in the batch
    session.run(asked, spans, picks_rows ? rows.n_outputs() : wanted ? rows.n : 0);

    ctx.synchronize();
    if (left) {
        copy_left(rows, left);
    }
    session.leave_best();
}

// The number of candidates for each row of a DFlash2 head, 0 for other heads.
int32_t selfspec_draft_head::n_candidates() const {
    return model.dflash_selector_hidden ? (int32_t) model.hparams.dflash_selector_top_k : 0;
}

bool selfspec_draft_head::has_confidence() const {
    return model.dspark_conf_proj != nullptr;
}

// A row of the graph's result has the ids of its candidates, then their scores after each candidate of the row before it.
void selfspec_draft_head::score(int32_t row, int32_t previous) {
    const int32_t k       = n_candidates();
    const int32_t n_vocab = (int32_t) model.vocab.n_tokens();
    if (k == 0) {
        selfspec_refuse("this head scores no candidates", SELFSPEC_UNSUPPORTED);
    }
    if (row < 1) {
        selfspec_refuse("row is " + std::to_string(row) + ", but the first row has no candidates");
    }
    session.logits_of(row); // throws without a pass
    const float * found  = ctx.get_embeddings_nextn_ith(row);
    const float * before = ctx.get_embeddings_nextn_ith(row - 1);
    if (!found || !before) {
        selfspec_refuse("the head left no scores", SELFSPEC_FAILED);
    }
    // the first of them follows one token: all of its scores are equal by the token before it
    const int32_t i_before = row == 1 ? 0 : (int32_t) (std::find(before, before + k, (float) previous) - before);
    if (i_before == k) {
        selfspec_refuse("token " + std::to_string(previous) + " is no candidate of row " + std::to_string(row - 1));
    }
    float * logits = llama_get_logits_ith(&ctx, row);
    std::fill_n(logits, n_vocab, -INFINITY);
    for (int32_t i = 0; i < k; ++i) {
        const int32_t token = (int32_t) found[i];
        if (token < 0 || token >= n_vocab) {
            selfspec_refuse("the head named token " + std::to_string(token), SELFSPEC_FAILED);
        }
        logits[token] = found[k + i_before*k + i];
    }
}
