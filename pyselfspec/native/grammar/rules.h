// The rules of a grammar (GBNF), and an automaton of the continuations that they allow.
//
// llama.cpp's parser reads the rules. Its matcher is not used: it copies each stack of open rules for every character, so
// that a short pattern with nested repetitions takes seconds. Here stacks share their tails, a set of stacks is a numbered
// state, and each state caches the state that follows each character. All work is counted: a grammar that would take too
// long throws selfspec_grammar_limit.
#pragma once

#include "abi/selfspec.h"

#include "llama-grammar.h"

#include <cstdint>
#include <deque>
#include <map>
#include <stdexcept>
#include <unordered_map>
#include <vector>

struct selfspec_grammar_limit : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Calls a function that returns a status and may follow a grammar, and turns its exceptions into a status.
template <typename F> int32_t selfspec_with_status(F f) noexcept {
    try {
        return f();
    } catch (const selfspec_grammar_limit &) {
        return SELFSPEC_LIMIT;
    } catch (...) {
        return SELFSPEC_FAILED;
    }
}

struct selfspec_rules {
    llama_grammar_rules rules;
    uint32_t            root;
};

// Calls f(first, last) for every alternative of a rule, without the element that ends it.
template <typename F> void selfspec_each_alternative(const llama_grammar_rule & rule, F f) {
    for (size_t first = 0, last = 0; first < rule.size(); first = ++last) {
        while (rule[last].type != LLAMA_GRETYPE_END && rule[last].type != LLAMA_GRETYPE_ALT) {
            ++last;
        }
        f(first, last);
    }
}

// Throws std::runtime_error with a short reason when the text is not a valid grammar.
selfspec_rules selfspec_parse_grammar(const llama_vocab * vocab, const char * text);

class selfspec_automaton {
public:
    using state = uint32_t;

    static constexpr state DEAD = 0; // the text can neither continue nor end

    explicit selfspec_automaton(const selfspec_rules & given);

    state start() const { return first; }
    state after(state from, uint32_t character);
    state after_token(state from, llama_token token); // considers only elements that name tokens
    state either(state a, state b);
    bool  may_end(state at) const { return states[at].may_end; }

    // Whether a character whose UTF-8 begins with these bits, and has n_left more bytes, can follow.
    bool may_begin(state at, uint32_t value, int32_t n_left);

    // Extends the limit of work, called once per token.
    void allow_work();

    // Deletes states when there are many. Returns whether it did: then only start() and `kept`, renumbered, are valid.
    bool forget(state & kept);

private:
    using stack = uint32_t; // number of a node; EMPTY: nothing is open

    static constexpr stack EMPTY = 0;

    struct node {
        uint32_t top;  // the element that comes next
        stack    rest; // what comes after its alternative
    };

    struct info {
        std::vector<stack> stacks; // with a character, a token or nothing on top, sorted by the top element
        bool may_end      = false;
        bool names_tokens = false;
        std::vector<state> next;                    // by class of characters, for the first classes
        std::unordered_map<uint32_t, state> others; // by class of characters, for the other classes
    };

    struct match {
        bool     found;
        uint32_t after; // the element after the characters
    };

    bool  is_end(uint32_t element) const { return elements[element].type <= LLAMA_GRETYPE_ALT; }
    stack push(uint32_t top, stack rest);
    stack advanced(uint32_t element, stack rest) { return is_end(element) ? rest : push(element, rest); }
    state closed(std::vector<stack> open);
    state expanded(std::vector<stack> open);
    state interned(std::vector<stack> stacks);
    match matches(uint32_t element, uint32_t low, uint32_t high);
    void  spend(int64_t work);
    void  begin();
    void  classify();

    uint32_t class_of(uint32_t character) const;

    std::vector<llama_grammar_element> elements; // of all rules
    std::vector<std::vector<uint32_t>> alternatives; // by rule: the first elements of its alternatives
    std::vector<uint32_t> classes; // the first character of each class; the grammar does not distinguish characters of a class
    std::vector<uint32_t> ascii;   // by ASCII character: its class
    uint32_t root;

    std::vector<node> nodes;
    std::unordered_map<uint64_t, stack> known_nodes;
    std::deque<info> states; // references stay valid while it grows
    std::unordered_multimap<size_t, state> known_states;
    std::map<std::vector<stack>, state> known_open; // states, by the stacks given to closed()
    std::vector<uint32_t> seen; // by node: the last round that visited it
    uint32_t round = 0;
    state   first = DEAD;
    size_t  n_kept = 0; // number of stacks and next states stored in states
    int64_t work_left;
};
