// A life with every call of selfspec.h, for a leak checker: session MODEL [forget]. "forget" frees no session.
#include "abi/selfspec.h"

#include "llama.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

namespace {

constexpr int32_t N_CTX = 256, N_PROMPT = 20;

void require(bool ok, const char * what, selfspec_session * session) {
    if (!ok) {
        fprintf(stderr, "%s: %s\n", what, selfspec_error(session));
        exit(2);
    }
}

selfspec_decode_args rows(int32_t n, const int32_t * tokens, const int32_t * seq_ids, const int32_t * pos, const uint8_t * outputs) {
    selfspec_decode_args args = {};
    args.n_tokens = n;
    args.tokens   = tokens;
    args.seq_ids  = seq_ids;
    args.pos      = pos;
    args.outputs  = outputs;
    return args;
}

struct text {
    selfspec_session *   session;
    llama_context *      ctx;
    int32_t              n_layer, n_embd;
    std::vector<uint8_t> mask;
    std::vector<float>   states;
    std::vector<int32_t> among; // empty: all tokens

    text(selfspec_session * session, llama_context * ctx, const llama_model * model) :
        session(session), ctx(ctx), n_layer(llama_model_n_layer(model)), n_embd(llama_model_n_embd(model)),
        mask(n_layer), states(N_PROMPT*n_embd) {}

    int32_t decode(int32_t n, int32_t first, int32_t head = SELFSPEC_HEAD_LOGITS, int32_t hidden_at = -1,
            const float * hidden = nullptr, bool in_place = false, int32_t seq_id = 0) {
        std::vector<int32_t> tokens(n), seq_ids(n, seq_id), pos(n);
        std::vector<uint8_t> outputs(n, 1);
        for (int32_t i = 0; i < n; i++) {
            tokens[i] = 20 + i;
            pos[i]    = first + i;
        }
        selfspec_decode_args args = rows(n, tokens.data(), seq_ids.data(), pos.data(), outputs.data());
        args.hidden      = hidden;
        args.mask        = mask.data();
        args.n_layer     = n_layer;
        args.hidden_at   = &hidden_at;
        args.n_hidden_at = hidden_at < 0 ? 0 : 1;
        args.hidden_out  = states.data();
        args.head        = head;
        args.among       = among.empty() ? nullptr : among.data();
        args.n_among     = (int32_t) among.size();
        args.in_place    = in_place;
        return selfspec_decode(session, &args);
    }

    void skip(int32_t il, uint8_t parts) { mask[il] = parts; }
    void back_to(int32_t n) { llama_memory_seq_rm(llama_get_memory(ctx), 0, n, -1); }
};

// A row that two sequences share, one row for each of them behind it, and what is refused of such rows.
void branch(text & t) {
    llama_memory_t memory = llama_get_memory(t.ctx);
    llama_memory_seq_cp(memory, 0, 1, -1, -1);
    const int32_t tokens[] = { 20, 21, 22 }, pos[] = { N_PROMPT, N_PROMPT + 1, N_PROMPT + 1 };
    const int32_t seq_ids[] = { 0, 1, 0, 1 }, n_seq_ids[] = { 2, 1, 1 }, none[] = { 0, 1, 1 };
    const uint8_t outputs[] = { 1, 1, 1 };
    const auto decode = [&](const int32_t * counts, bool in_place) {
        selfspec_decode_args args = rows(3, tokens, seq_ids, pos, outputs);
        args.n_seq_ids = counts;
        args.in_place  = in_place;
        return selfspec_decode(t.session, &args);
    };
    require(decode(none, false) == SELFSPEC_BAD_ARGUMENT, "a row in no sequence", t.session);
    require(decode(n_seq_ids, true) == SELFSPEC_UNSUPPORTED, "shared rows in place", t.session);
    require(decode(n_seq_ids, false) == SELFSPEC_OK, "branches", t.session);
    for (int32_t seq_id = 0; seq_id < 2; seq_id++) {
        require(llama_memory_seq_pos_max(memory, seq_id) == N_PROMPT + 1, "ends of branches", t.session);
    }
    llama_memory_seq_rm(memory, 1, -1, -1);
    t.back_to(N_PROMPT);
}

// Passes that look at some tokens only, where that can be.
void shorten(text & t) {
    t.among = { 3, 20, 21, 40, 41, 42 };
    const bool can = selfspec_can_shorten(t.session) == 1;
    const int32_t status = t.decode(4, N_PROMPT, SELFSPEC_HEAD_BEST);
    require(status == (can ? SELFSPEC_OK : SELFSPEC_UNSUPPORTED), "a short list", t.session);
    for (int32_t row = 0; row < 4 && can; row++) {
        const int32_t token = selfspec_argmax(t.session, row, nullptr);
        require(std::count(t.among.begin(), t.among.end(), token) == 1, "a token of the list", t.session);
    }
    t.back_to(N_PROMPT);
    require(t.decode(1, N_PROMPT) == SELFSPEC_BAD_ARGUMENT, "logits of a list", t.session);
    t.among = { 5, 4 };
    require(t.decode(1, N_PROMPT, SELFSPEC_HEAD_BEST) == SELFSPEC_BAD_ARGUMENT, "a list that falls", t.session);
    t.among.clear();
}

bool throws = false;

// Called by llama.cpp for every operation.
bool throw_if_told(ggml_tensor *, bool, void *) {
    if (throws) {
        throw std::runtime_error("told to");
    }
    return false;
}

// Passes that end in the middle leave nothing behind, and the next one gives the same bits as before.
void fail(text & t) {
    llama_memory_t memory = llama_get_memory(t.ctx);
    require(t.decode(4, N_PROMPT) == SELFSPEC_OK, "a pass", t.session);
    const int32_t want = selfspec_argmax(t.session, 3, nullptr);
    const auto holds = [&](int32_t n, const char * what) { require(llama_memory_seq_pos_max(memory, 0) == n - 1, what, t.session); };
    t.back_to(N_PROMPT);

    throws = true;
    require(t.decode(4, N_PROMPT) == SELFSPEC_FAILED, "an exception", t.session);
    throws = false;
    require(strcmp(selfspec_error(t.session), "told to") == 0, "its text", t.session);
    holds(N_PROMPT, "rows after an exception");

    selfspec_stop_passes(t.session, true);
    require(t.decode(4, N_PROMPT) == SELFSPEC_ABORTED, "a pass that is stopped", t.session);
    selfspec_stop_passes(t.session, false);
    holds(N_PROMPT, "rows of a pass that was stopped");

    signal(SIGINT, [](int) {});
    selfspec_heed_interrupts(t.session, true);
    raise(SIGINT);
    require(t.decode(4, N_PROMPT) == SELFSPEC_ABORTED, "an interrupt", t.session);
    selfspec_heed_interrupts(t.session, true);
    require(t.decode(4, N_PROMPT) == SELFSPEC_OK, "an interrupt that is over", t.session);
    require(selfspec_argmax(t.session, 3, nullptr) == want, "the same token", t.session);
    selfspec_heed_interrupts(t.session, false);
    raise(SIGINT);
    t.back_to(N_PROMPT);
    require(t.decode(4, N_PROMPT) == SELFSPEC_OK, "an interrupt that is not heeded", t.session);
    signal(SIGINT, SIG_DFL);
    t.back_to(N_PROMPT);
}

// More passes than there are prepared graphs, states that leave and enter, and everything that is refused.
void live(text & t) {
    require(t.decode(N_PROMPT, 0) == SELFSPEC_OK, "prompt", t.session);
    for (int32_t il = 0; il < t.n_layer; il++) {
        for (int32_t parts = 0; parts < 4; parts++) {
            t.skip(il, (uint8_t) parts);
            for (const auto head : { SELFSPEC_HEAD_LOGITS, SELFSPEC_HEAD_BEST }) {
                require(t.decode(1 + parts, N_PROMPT, head) == SELFSPEC_OK, "draft", t.session);
                float p = 0;
                require(selfspec_argmax(t.session, 0, &p) >= 0 && p > 0, "argmax", t.session);
                t.back_to(N_PROMPT);
            }
        }
        t.skip(il, 0);
    }
    const int32_t half = t.n_layer/2;
    require(t.decode(4, N_PROMPT, SELFSPEC_HEAD_LOGITS, half) == SELFSPEC_OK, "states out", t.session);
    memset(t.mask.data(), SELFSPEC_SKIP_ATTN | SELFSPEC_SKIP_FFN, half);
    const std::vector<float> states = t.states;
    require(t.decode(4, N_PROMPT, SELFSPEC_HEAD_LOGITS, -1, states.data(), true) == SELFSPEC_OK, "states in", t.session);
    memset(t.mask.data(), 0, half);

    require(t.decode(1, 3) == SELFSPEC_BAD_ARGUMENT, "a position in the middle", t.session);
    require(t.decode(1, 0, 7) == SELFSPEC_BAD_ARGUMENT, "no such head", t.session);
    require(t.decode(1, 0, 0, -1, nullptr, true, 1) == SELFSPEC_BAD_ARGUMENT, "in place of nothing", t.session);
    require(selfspec_argmax(t.session, 99, nullptr) < 0, "no such row", t.session);
    t.back_to(N_PROMPT);
    branch(t);
    shorten(t);
    fail(t);
    int32_t status = SELFSPEC_OK;
    for (int32_t n_past = N_PROMPT; status == SELFSPEC_OK; n_past += 16) {
        status = t.decode(16, n_past);
    }
    require(status == SELFSPEC_FULL, "a full cache", t.session);

    std::vector<uint8_t> support(t.n_layer);
    require(selfspec_mask_support(t.session, support.data(), t.n_layer) == SELFSPEC_OK, "support", t.session);
    require(selfspec_can_enter(t.session, half) == 1 && selfspec_can_keep(t.session, 0, 5) == 5, "entry", t.session);
    require(selfspec_graph_bytes(t.session) > 0 && selfspec_n_graph_checks(t.session) > 0, "graphs", t.session);
}

// Arguments that are refused, where C callers could otherwise write to NULL.
void refuse(text & t) {
    selfspec_session * session = t.session;
    const auto refused = [&](int64_t status, const char * what) { require(status == SELFSPEC_BAD_ARGUMENT, what, session); };
    refused(selfspec_mask_support(session, nullptr, t.n_layer), "no place for support");
    refused(selfspec_save_state(session, 0, nullptr, 0), "no place for a state");
    refused(selfspec_load_state(session, 0, nullptr, 8, 1), "no state");
    refused(selfspec_logits(session, 0, nullptr), "no place for logits");
    refused(selfspec_embed(session, 1, nullptr), "no text");
    refused(selfspec_sample(session, nullptr, 0, 0), "a row without a chain");
    refused(selfspec_sample_logits(nullptr, t.states.data(), 4, 0), "no chain");
    refused(selfspec_accept(nullptr, 5), "a token without a chain");
    refused(selfspec_apply(nullptr, nullptr), "no sampler");
    const int32_t one = 20, at = N_PROMPT, seq_id = 0, hidden_at = 1;
    const uint8_t output = 1;
    refused(selfspec_embed(session, N_CTX + 1, &one), "a text that is too long");
    selfspec_decode_args args = rows(1, &one, &seq_id, &at, &output);
    args.hidden_at   = &hidden_at;
    args.n_hidden_at = -1;
    args.hidden_out  = t.states.data();
    refused(selfspec_decode(session, &args), "a negative number of blocks");
    refused(selfspec_decode(session, nullptr), "no arguments");
    refused(selfspec_draft_decode(session, nullptr), "no arguments of a head");
}

// What samplers refuse: another vocabulary, arguments that are not there.
void refuse_samplers(const llama_vocab * vocab) {
    const std::unique_ptr<llama_sampler, void (*)(llama_sampler *)> greedy(llama_sampler_init_greedy(), llama_sampler_free);
    const std::unique_ptr<llama_sampler, void (*)(llama_sampler *)> chain(
        llama_sampler_chain_init(llama_sampler_chain_default_params()), llama_sampler_free);
    llama_sampler_chain_add(chain.get(), selfspec_sampler_init_grammar(vocab, "root ::= [a-z]", 0, 1.0f));
    const std::vector<float> logits(llama_vocab_n_tokens(vocab) + 1);
    require(selfspec_accept(greedy.get(), 5) == SELFSPEC_BAD_ARGUMENT, "a sampler that is no chain", nullptr);
    require(selfspec_sample_logits(chain.get(), logits.data(), (int32_t) logits.size(), 0) == SELFSPEC_FAILED, "another vocabulary", nullptr);
    require(selfspec_sample_logits(chain.get(), logits.data(), 0, 0) == SELFSPEC_BAD_ARGUMENT, "an empty vocabulary", nullptr);
    for (const int32_t n_wanted : { 0, -1 }) {
        const llama_vocab * given = n_wanted < 0 ? vocab : nullptr;
        require(!selfspec_sampler_init_grammar(given, "root ::= [a-z]", n_wanted, 1.0f), "a grammar of nothing", nullptr);
    }
}

void draw(text & t, const llama_vocab * vocab, const char * grammar, int32_t want) {
    const std::unique_ptr<llama_sampler, void (*)(llama_sampler *)> chain(
        llama_sampler_chain_init(llama_sampler_chain_default_params()), llama_sampler_free);
    llama_sampler_chain_add(chain.get(), llama_sampler_init_grammar(vocab, grammar, "root"));
    llama_sampler_chain_add(chain.get(), llama_sampler_init_dist(1));
    t.back_to(0);
    require(t.decode(1, 0) == SELFSPEC_OK, "one token", t.session);
    const int32_t token = selfspec_sample(t.session, chain.get(), 0, 0);
    require(want < 0 ? token == want : token >= 0, grammar, t.session);
}

}  // namespace

int main(int argc, char ** argv) {
    const bool forget = argc > 2 && strcmp(argv[2], "forget") == 0;
    selfspec_log_take();
    llama_backend_init();
    require(!llama_model_load_from_file("/nowhere", llama_model_default_params()) && *selfspec_log_error(), "log", nullptr);
    selfspec_log_forget();

    llama_model * model = llama_model_load_from_file(argv[1], llama_model_default_params());
    require(model, "model", nullptr);
    for (int life = 0; life < 2; life++) {
        llama_context_params params = llama_context_default_params();
        params.n_ctx      = N_CTX;
        params.n_batch    = params.n_ubatch = 64;
        params.n_seq_max  = 2;
        params.n_threads  = params.n_threads_batch = 2;
        params.kv_unified = params.swa_full = true;
        params.cb_eval    = throw_if_told;
        llama_context *    ctx     = llama_init_from_model(model, params);
        selfspec_session * session = selfspec_init(ctx);
        require(ctx && session, "context", session);
        {
            text t(session, ctx, model);
            live(t);
            refuse(t);
            refuse_samplers(llama_model_get_vocab(model));
            draw(t, llama_model_get_vocab(model), "root ::= [a-z]", 0);
            draw(t, llama_model_get_vocab(model), "root ::= <[100000]>", SELFSPEC_NO_TOKEN);
            const int32_t ids[] = { 20, 21, 22 };
            require(selfspec_embed(session, 3, ids) == SELFSPEC_OK, "a text", session);
            require(llama_memory_seq_pos_max(llama_get_memory(ctx), 0) == 2, "its tokens alone", session);
        }
        if (!forget) {
            selfspec_free(session);
        }
        session = nullptr;
        llama_free(ctx);
    }
    llama_model_free(model);
    llama_backend_free();
    puts("lived");
    return 0;
}
