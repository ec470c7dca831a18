// Grammars as samplers that test few tokens, and the whole vocabulary at most once in each state.
//
// Testing a whole vocabulary takes as long as a pass of a small model. Most chains draw one of the k most likely allowed
// tokens (top_k), or of those not far below the best (min_p), so the less likely tokens do not matter. The most likely ones
// are therefore tested first. If too few of them are allowed, the whole vocabulary is tested and the result is cached: a
// grammar often returns to such a state.
#include "abi/selfspec.h"

#include "grammar/rules.h"

#include "llama-impl.h"
#include "llama-vocab.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

namespace {

constexpr size_t N_FIRST   = 64;      // least number of tokens that are tested first
constexpr size_t GROWTH    = 8;       // factor by which this number grows for the second test; the third is of all tokens
constexpr size_t N_STATES  = 128;     // most states with cached results

// The end of a text: a state between characters, or within a character that is split between tokens.
struct place {
    selfspec_automaton::state at;
    uint32_t value;  // bits of the unfinished character
    int32_t  n_left; // missing bytes of the character

    bool operator<(const place & other) const {
        return std::tie(at, value, n_left) < std::tie(other.at, other.value, other.n_left);
    }
};

// Bytes of a character in UTF-8, by its first four bits; 0: not the first byte of a character
constexpr int32_t N_BYTES[16] = { 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 2, 2, 3, 4 };

// The first character that needs so many bytes after its first one
constexpr uint32_t LEAST[4] = { 0, 0x80, 0x800, 0x10000 };

constexpr uint8_t  NO_BYTE    = 0xF8;     // from here on, bytes that UTF-8 does not have
constexpr uint32_t LAST       = 0x10FFFF; // character of Unicode
constexpr uint32_t SURROGATES = 0x1B;     // upper bits of the numbers that are no characters

// The order of tokens in a chain: equal logits are ordered by id, and NaN comes last.
bool likelier(const llama_token_data & a, const llama_token_data & b) {
    const float x = std::isnan(a.logit) ? -INFINITY : a.logit;
    const float y = std::isnan(b.logit) ? -INFINITY : b.logit;
    return x != y ? x > y : a.id < b.id;
}

class rules {
public:
    rules(const llama_vocab * vocab, const char * text, size_t n_wanted, float gap) :
        vocab(vocab), n_wanted(n_wanted), gap(gap), automaton(selfspec_parse_grammar(vocab, text)) {
        reset();
    }

    // Whether the grammar allows this token next.
    bool allows(llama_token token) {
        if (token < 0 || token >= llama_vocab_n_tokens(vocab)) {
            return false;
        }
        const bool ends = vocab->is_eog(token);
        return ends ? now.n_left == 0 && automaton.may_end(now.at) : after(token).at != automaton.DEAD;
    }

    void accept(llama_token token) {
        automaton.allow_work();
        if (!allows(token)) {
            throw std::runtime_error("the grammar does not let this token follow");
        }
        if (vocab->is_eog(token)) {
            return;
        }
        now = after(token);
        if (automaton.forget(now.at)) {
            known.clear();
        }
    }

    void reset() {
        automaton.allow_work();
        now = { automaton.start(), 0, 0 };
    }

    void apply(llama_token_data_array & candidates) {
        if (candidates.size > (size_t) llama_vocab_n_tokens(vocab)) {
            throw std::runtime_error("there are more candidates than the grammar's vocabulary has tokens");
        }
        llama_token_data * const data = candidates.data;
        const size_t n_first = std::max(N_FIRST, 2*n_wanted);
        for (size_t n : { n_first, GROWTH*n_first }) {
            if (n_wanted == 0 || n >= candidates.size) {
                break;
            }
            std::nth_element(data, data + n, data + candidates.size, likelier);  // places element n as sorting would
            const float next = data[n].logit;  // the most likely of the other tokens
            llama_token_data_array likeliest = { data, n, -1, false };
            rule_out(likeliest);
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
    // Sorts tokens by id, the order that the chain's other samplers expect when they take the first of equal ones.
    void order_by_id(llama_token_data_array & candidates) const {
        std::vector<llama_token_data> placed(llama_vocab_n_tokens(vocab), { -1, 0.0f, 0.0f });
        for (size_t i = 0; i < candidates.size; ++i) {
            placed[candidates.data[i].id] = candidates.data[i];
        }
        std::copy_if(placed.begin(), placed.end(), candidates.data, [](const llama_token_data & each) { return each.id >= 0; });
    }

    // Whether the other tokens, whose logits are at most `next`, cannot be drawn or affect the draw.
    bool suffice(const llama_token_data * data, size_t n, float next) const {
        size_t n_left = 0;
        float  best   = -INFINITY;
        for (size_t i = 0; i < n; ++i) {
            n_left += data[i].logit > -INFINITY;
            best    = std::max(best, data[i].logit);
        }
        return n_left >= n_wanted || next < best - gap;
    }

    void rule_out(llama_token_data_array & candidates) {
        for (size_t i = 0; i < candidates.size; ++i) {
            if (!allows(candidates.data[i].id)) {
                candidates.data[i].logit = -INFINITY;
            }
        }
    }

    // By token: whether the grammar allows it in the current state.
    const std::vector<bool> & allowed_now() {
        const auto it = known.find(now);
        if (it != known.end()) {
            return it->second;
        }
        if (known.size() == N_STATES) {
            known.clear();
        }
        std::vector<bool> allowed(llama_vocab_n_tokens(vocab));
        for (size_t id = 0; id < allowed.size(); ++id) {
            allowed[id] = allows((llama_token) id);
        }
        return known[now] = std::move(allowed);
    }

    // The place after a token that does not end the text.
    place after(llama_token token) {
        const std::string & piece = vocab->token_to_piece(token);
        if (piece.empty() || piece[0] == 0) {
            return { automaton.DEAD, 0, 0 };
        }
        place found = after(piece);
        if (now.n_left == 0) {
            found.at = automaton.either(found.at, automaton.after_token(now.at, token));
        }
        return found;
    }

    place after(const std::string & piece) {
        place found = now;
        for (const char * byte = piece.c_str(); *byte && found.at != automaton.DEAD; ++byte) {
            step(found, (uint8_t) *byte);
        }
        if (found.n_left > 0 && !automaton.may_begin(found.at, found.value, found.n_left)) {
            return { automaton.DEAD, 0, 0 };
        }
        return found;
    }

    // Tokens of single bytes could form what is no UTF-8; what their last bytes can begin is checked in may_begin().
    void step(place & here, uint8_t byte) {
        const int32_t n_bytes = N_BYTES[byte >> 4];
        if ((here.n_left > 0) != (byte >> 6 == 2) || byte >= NO_BYTE) {
            here = { automaton.DEAD, 0, 0 };
            return;
        }
        const uint32_t least = LEAST[here.n_left];
        here.value  = here.n_left > 0 ? here.value << 6 | (byte & 0x3F) : n_bytes == 1 ? byte : byte & (0x7F >> n_bytes);
        here.n_left = here.n_left > 0 ? here.n_left - 1 : n_bytes - 1;
        const uint32_t character = here.value << 6*here.n_left; // the first one that these bytes can begin
        if (character < least || character > LAST || character >> 11 == SURROGATES) {
            here = { automaton.DEAD, 0, 0 };
        } else if (here.n_left == 0) {
            here = { automaton.after(here.at, here.value), 0, 0 };
        }
    }

    const llama_vocab *  vocab;
    size_t               n_wanted;  // number of most likely allowed tokens that the chain needs; 0: all
    float                gap;       // the chain draws no token whose logit is further below the best one's
    selfspec_automaton   automaton;
    place                now;

    std::map<place, std::vector<bool>> known;
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
    if (!vocab || !text || n_wanted < 0) {
        LLAMA_LOG_ERROR("vocab or text is NULL, or n_wanted negative; give all tokens with 0\n");
        return nullptr;
    }
    try {
        auto made = std::make_unique<rules>(vocab, text, (size_t) n_wanted, gap);
        return llama_sampler_init(&interface, made.release());
    } catch (const std::bad_alloc &) {
        LLAMA_LOG_ERROR("there is not enough memory for it\n");
    } catch (const std::exception & error) {
        LLAMA_LOG_ERROR("%s\n", error.what());
    }
    return nullptr;
}

int32_t selfspec_accept(llama_sampler * chain, llama_token token) {
    if (!llama_sampler_chain_get(chain, -1)) {
        return SELFSPEC_BAD_ARGUMENT; // no chain
    }
    return selfspec_with_status([&]() -> int32_t {
        for (int i = 0; i < llama_sampler_chain_n(chain); ++i) {
            const llama_sampler * each = llama_sampler_chain_get(chain, i);
            if (each->iface == &interface && !rules_of(each).allows(token)) {
                return SELFSPEC_BAD_ARGUMENT;
            }
        }
        llama_sampler_accept(chain, token);
        return SELFSPEC_OK;
    });
}

int32_t selfspec_apply(llama_sampler * sampler, llama_token_data_array * candidates) {
    if (!sampler || !sampler->iface->apply || !candidates) {
        return SELFSPEC_BAD_ARGUMENT;
    }
    return selfspec_with_status([&]() -> int32_t {
        llama_sampler_apply(sampler, candidates);
        return SELFSPEC_OK;
    });
}
