// Grammars that are asked about few tokens, and about all of them once in each of their states.
//
// To ask a grammar about a whole vocabulary takes as long as a pass of a small model. Most chains draw one of the k
// likeliest tokens that are left, of those that are not far below the best (min_p), and what is left does not depend on
// the other tokens. So the likeliest are asked about first. Where none of them is left, the vocabulary is gone through, and
// what was found is kept: a grammar comes back to such states.
#include "selfspec.h"

#include "llama-grammar.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

constexpr size_t N_FIRST   = 64;      // tokens that are asked about at first, at least
constexpr size_t GROWTH    = 8;       // how many times as many are asked about then, before it is all of them
constexpr size_t N_STATES  = 128;     // that are kept
constexpr size_t STATE_MAX = 1 << 16; // bytes of a state that is worth keeping

struct grammar_deleter {
    void operator()(llama_grammar * grammar) const { llama_grammar_free_impl(grammar); }
};

using grammar_ptr = std::unique_ptr<llama_grammar, grammar_deleter>;

// Of equal logits the lower id comes first, as a chain takes them; what is no number comes last.
bool likelier(const llama_token_data & a, const llama_token_data & b) {
    const float x = std::isnan(a.logit) ? -INFINITY : a.logit;
    const float y = std::isnan(b.logit) ? -INFINITY : b.logit;
    return x != y ? x > y : a.id < b.id;
}

class rules {
public:
    rules(const llama_vocab * vocab, const char * text, size_t n_wanted, float gap) :
        vocab(vocab), n_wanted(n_wanted), gap(gap),
        grammar(llama_grammar_init_impl(vocab, text, "root", false, nullptr, 0, nullptr, 0)) {
        if (grammar) {
            begin = grammar->stacks;
        }
    }

    bool valid() const { return grammar != nullptr; }

    void accept(llama_token token) { llama_grammar_accept_impl(*grammar, token); }

    void reset() {
        grammar->stacks       = begin;
        grammar->partial_utf8 = { 0, 0 };
    }

    void apply(llama_token_data_array & candidates) {
        llama_token_data * const data = candidates.data;
        const size_t n_first = std::max(N_FIRST, 2*n_wanted);
        for (size_t n : { n_first, GROWTH*n_first }) {
            if (n_wanted == 0 || n >= candidates.size) {
                break;
            }
            std::nth_element(data, data + n, data + candidates.size, likelier);  // which puts the next one in its place
            const float next = data[n].logit;  // of the others, the likeliest
            llama_token_data_array likeliest = { data, n, -1, false };
            llama_grammar_apply_impl(*grammar, &likeliest);
            if (suffice(data, n, next)) {
                std::sort(data, data + n, likelier);
                candidates.size = n;
                return;
            }
        }
        if (n_wanted > 0 && n_first < candidates.size) {
            order_by_id(candidates);
        }
        const std::vector<bool> & allowed = allowed_now();
        for (size_t i = 0; i < candidates.size; ++i) {
            if (!allowed[data[i].id]) {
                data[i].logit = -INFINITY;
            }
        }
    }

private:
    // As the chain's other samplers expect them where they take the first of equal ones.
    void order_by_id(llama_token_data_array & candidates) const {
        std::vector<llama_token_data> placed(llama_vocab_n_tokens(vocab), { -1, 0.0f, 0.0f });
        for (size_t i = 0; i < candidates.size; ++i) {
            placed[candidates.data[i].id] = candidates.data[i];
        }
        std::copy_if(placed.begin(), placed.end(), candidates.data, [](const llama_token_data & each) { return each.id >= 0; });
    }

    // Whether no other token, which are all at most that likely, has a part in what is drawn.
    bool suffice(const llama_token_data * data, size_t n, float next) const {
        size_t n_left = 0;
        float  best   = -INFINITY;
        for (size_t i = 0; i < n; ++i) {
            n_left += data[i].logit > -INFINITY;
            best    = std::max(best, data[i].logit);
        }
        return n_left >= n_wanted || next < best - gap;
    }

    // Of every token whether the grammar lets it follow.
    const std::vector<bool> & allowed_now() {
        const std::string state = state_now();
        const auto it = known.find(state);
        if (it != known.end()) {
            return it->second;
        }
        if (known.size() == N_STATES) {
            known.clear();
        }
        const int32_t n_vocab = llama_vocab_n_tokens(vocab);
        std::vector<llama_token_data> all(n_vocab);
        for (int32_t id = 0; id < n_vocab; ++id) {
            all[id] = { id, 0.0f, 0.0f };
        }
        llama_token_data_array candidates = { all.data(), all.size(), -1, false };
        llama_grammar_apply_impl(*grammar, &candidates);

        std::vector<bool> & allowed = state.size() <= STATE_MAX ? known[state] : unkept;
        allowed.resize(n_vocab);
        for (int32_t id = 0; id < n_vocab; ++id) {
            allowed[id] = all[id].logit == 0.0f;
        }
        return allowed;
    }

    // What the grammar's answers depend on. Its rules stay where they are as long as it lives, so pointers will do.
    std::string state_now() const {
        std::string state;
        const auto add = [&](uint64_t x) { state.append((const char *) &x, sizeof(x)); };
        add(grammar->partial_utf8.value);
        add((uint64_t) grammar->partial_utf8.n_remain);
        for (const llama_grammar_stack & stack : grammar->stacks) {
            add(stack.size());
            for (const llama_grammar_element * element : stack) {
                add((uint64_t) element);
            }
            if (state.size() > STATE_MAX) {
                break;
            }
        }
        return state;
    }

    const llama_vocab *  vocab;
    size_t               n_wanted;  // of the likeliest tokens that are left; 0: all
    float                gap;       // between their logits and the best one's, at most
    grammar_ptr          grammar;
    llama_grammar_stacks begin;

    std::unordered_map<std::string, std::vector<bool>> known;  // by state
    std::vector<bool>                                  unkept;
};

rules & rules_of(const llama_sampler * sampler) {
    return *(rules *) sampler->ctx;
}

llama_sampler_i interface = {
    /* .name              = */ [](const llama_sampler *) { return "grammar"; },
    /* .accept            = */ [](llama_sampler * sampler, llama_token token) { rules_of(sampler).accept(token); },
    /* .apply             = */ [](llama_sampler * sampler, llama_token_data_array * candidates) { rules_of(sampler).apply(*candidates); },
    /* .reset             = */ [](llama_sampler * sampler) { rules_of(sampler).reset(); },
    /* .clone             = */ nullptr,
    /* .free              = */ [](llama_sampler * sampler) { delete &rules_of(sampler); },
    /* .backend_init      = */ nullptr,
    /* .backend_accept    = */ nullptr,
    /* .backend_apply     = */ nullptr,
    /* .backend_set_input = */ nullptr,
    /* .backend_reset     = */ nullptr,
    /* .copy_state        = */ nullptr,
};

} // namespace

llama_sampler * selfspec_sampler_init_grammar(const llama_vocab * vocab, const char * text, int32_t n_wanted, float gap) {
    auto made = std::make_unique<rules>(vocab, text, (size_t) n_wanted, gap);
    return made->valid() ? llama_sampler_init(&interface, made.release()) : nullptr;
}
