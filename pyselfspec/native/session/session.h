// The state that belongs to a llama_context: prepared graphs, the abilities of the architecture, and the last error.

#pragma once

#include "session/arguments.h"
#include "states/rollback.h"
#include "grammar/rules.h"
#include "graph/coarse_head.h"
#include "graph/slots.h"
#include "session/interrupt.h"

#include "llama-batch.h"

#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

struct ggml_cgraph;
struct llama_context;
struct llama_model;
class  llama_kv_cache;

struct selfspec_session {
    explicit selfspec_session(llama_context * ctx);
    ~selfspec_session();

    selfspec_session(const selfspec_session &) = delete;
    selfspec_session & operator=(const selfspec_session &) = delete;

    // Calls f and returns its result, or SELFSPEC_OK where it has none. An exception is turned into a status and `error`, so
    // that none leaves the library.
    template <typename F> auto guarded(F f) noexcept -> std::conditional_t<std::is_same_v<decltype(f()), int64_t>, int64_t, int32_t> {
        try {
            error.clear();
            if constexpr (std::is_void_v<decltype(f())>) {
                f();
                return SELFSPEC_OK;
            } else {
                return f();
            }
        } catch (const selfspec_failure & e) {
            return failed(e.status, e.text.c_str());
        } catch (const selfspec_grammar_limit & e) {
            return failed(SELFSPEC_LIMIT, e.what());
        } catch (const std::exception & e) {
            return failed(SELFSPEC_FAILED, e.what());
        } catch (...) {
            return failed(SELFSPEC_FAILED, "unknown exception");
        }
    }

    selfspec_facts facts() const;

    void    decode(const selfspec_decode_args & args);
    void    decode_states(const selfspec_picture_rows & rows);
    void    embed(int32_t n_tokens, const int32_t * tokens);

    // what the last pass has left, see results.cpp
    int32_t argmax(int32_t row, float * p) const;
    void    copy_logits(int32_t row, float * out) const;
    int32_t sample(llama_sampler * chain, int32_t row, int32_t n_kept);
    void    forget_outputs() noexcept;

    // see abilities.cpp
    const std::vector<uint8_t> & mask_support();
    bool    can_enter(int32_t il);
    bool    can_shorten();
    int32_t memory_bits() const;
    int32_t exact_width() const; // see selfspec_exact_width()
    bool    has_exact_prompts() const;
    void    replay_for(int32_t n_seq); // removals stay impossible if a graph of the model is not known

    // see sequences.cpp
    int32_t can_keep(int32_t seq_id, int32_t n) const;
    void    keep(int32_t seq_id, int32_t n);
    void    fork(int32_t seq_id, int32_t copy);
    int64_t state_size(int32_t seq_id) const;
    void    save_state(int32_t seq_id, uint8_t * out, int64_t size) const;
    void    load_state(int32_t seq_id, const uint8_t * state, int64_t size, int32_t n);

    // see reservations.cpp
    void    reserve (int32_t seq_id, int32_t n);
    bool    in_order(int32_t seq_id) const;
    int64_t n_moves () const;

    llama_context     * ctx;
    const llama_model & model;
    const int32_t       n_layer;
    std::string         error;
    selfspec_slots      slots;
    selfspec_interrupt  stop;
    selfspec_rollback   rollback;
    int64_t             n_graph_checks = 0;

private:
    friend class selfspec_draft_head; // its passes have most steps in common with decode()

    // Attaches a request to the batch for one decode. Afterwards, also after an exception, the request no longer points to
    // the caller's arrays: a graph that is kept for reuse still refers to the request.
    class attachment {
    public:
        attachment(selfspec_session & session, const std::shared_ptr<selfspec_batch> & request);
        ~attachment();

        attachment(const attachment &) = delete;
        attachment & operator=(const attachment &) = delete;

    private:
        selfspec_session & session;
        selfspec_batch   & request;
    };

    // About the graphs of one set of adapters, by dry builds.
    struct findings {
        int64_t                 generation = 0; // of the context
        std::set<selfspec_pass> work;           // these passes work
        std::map<int32_t, bool> enter_at;       // whether states can enter at a block
        std::optional<bool>     shorten;        // whether the head can look at some tokens only
    };

    // By sequence: the position from which on its tokens are removed when a pass fails.
    using ends = std::map<int32_t, llama_pos>;

    std::vector<llama_kv_cache *> caches() const;
    void allow_moves();
    int32_t operations() const;

    // The steps of a pass that decode() and draft heads share.
    std::vector<selfspec_span> admit(const selfspec_facts & known, const selfspec_request & asked) const;
    llama_pos rope_pos(int32_t seq_id, int64_t pos) const;
    std::vector<int32_t> rope_shifts(const selfspec_rows & rows, const std::vector<selfspec_span> & spans) const;
    void fill(const selfspec_rows & rows, const float * states = nullptr, size_t n_embd = 0);
    void run (selfspec_request & asked, const std::vector<selfspec_span> & spans, int32_t n_outputs, ggml_cgraph ** graph = nullptr);
    void leave_best() noexcept;

    void check_graph(const selfspec_pass & pass);
    findings & graphs();
    ends ends_before(const std::vector<selfspec_span> & rows, bool in_place) const;
    void take_back  (const ends & kept) noexcept;

    template <typename F> int undone_if_failed(const ends & kept, F decode);

    void        name_best(const selfspec_among & among);

    const selfspec_best * known_best(int32_t row) const;

    const std::vector<int64_t> & own_tokens();
    using graph_check = std::function<bool(ggml_cgraph *)>;

    std::string build_dry(const selfspec_pass & pass, int32_t n_rows = 1, const graph_check & check = [](ggml_cgraph *) { return true; });
    void        require_done(int status, int32_t n_tokens, const std::string & why) const;
    int         decode_in_slot(const std::shared_ptr<selfspec_batch> & want, const std::vector<selfspec_span> & rows, int32_t n_outputs,
        ggml_cgraph ** graph = nullptr);
    uint8_t     skippable(int32_t il);

    const float * logits_of(int32_t row) const;
    int32_t     failed(int32_t status, const char * text) noexcept;

    llama_batch_ext            batch;      // reused, keeps its allocations
    std::vector<selfspec_best> best;       // by row, of the last decode if it asked for it
    std::vector<int32_t>       listed_ids; // the list of tokens of that decode; empty: it had none
    std::vector<float>         listed;     // [n_rows, n_listed] logits of these tokens, set for rows with an output

    std::vector<llama_token_data> candidates; // of a draw, reused

    const bool              is_cpu_only; // no other device may compute
    selfspec_coarse_choice  coarse_heads;
    const std::string       names_fault; // why checks by names of tensors would not work; empty: they do
    findings                found;
    std::vector<uint8_t>    support;   // empty: not yet determined
    std::vector<int64_t>    own;       // by token of a draft head, its id in the target's vocabulary; empty: not yet determined, or equal ids
};
