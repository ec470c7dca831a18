#include "grammar/rules.h"

#include <algorithm>
#include <utility>

static constexpr int64_t WORK_MAX       = 1 << 25; // about a third of a second
static constexpr int64_t WORK_PER_TOKEN = 1 << 22;
static constexpr int64_t STACK_WORK     = 16;      // cost of adding a stack, in units of comparing one character
static constexpr size_t  STACKS_MAX     = 1 << 16; // most stacks of one state
static constexpr size_t  STATES_KEPT    = 1 << 14;
static constexpr size_t  NODES_KEPT     = 1 << 20;
static constexpr size_t  NEXT_MAX       = 128;     // most next states of a state that are kept in a plain list
static constexpr uint32_t N_ASCII       = 128;
static constexpr uint32_t UNKNOWN       = UINT32_MAX;

selfspec_automaton::selfspec_automaton(const selfspec_rules & given) : alternatives(given.rules.size()), root(given.root) {
    for (size_t rule = 0; rule < given.rules.size(); ++rule) {
        selfspec_each_alternative(given.rules[rule], [&](size_t first, size_t) {
            alternatives[rule].push_back((uint32_t) (elements.size() + first));
        });
        elements.insert(elements.end(), given.rules[rule].begin(), given.rules[rule].end());
    }
    classify();
    begin();
    if (first == DEAD) {
        throw std::runtime_error("no text matches it");
    }
}

void selfspec_automaton::classify() {
    classes = { 0 };
    for (size_t i = 0; i < elements.size(); ++i) {
        const auto & [type, value] = elements[i];
        if (type == LLAMA_GRETYPE_CHAR || type == LLAMA_GRETYPE_CHAR_NOT || type == LLAMA_GRETYPE_CHAR_ALT) {
            const bool is_range = elements[i + 1].type == LLAMA_GRETYPE_CHAR_RNG_UPPER;
            classes.push_back(value);
            classes.push_back((is_range ? elements[i + 1].value : value) + 1);
        }
    }
    std::sort(classes.begin(), classes.end());
    classes.erase(std::unique(classes.begin(), classes.end()), classes.end());
    for (uint32_t character = 0; character < N_ASCII; ++character) {
        ascii.push_back((uint32_t) (std::upper_bound(classes.begin(), classes.end(), character) - classes.begin()));
    }
}

uint32_t selfspec_automaton::class_of(uint32_t character) const {
    return character < N_ASCII ? ascii[character]
                               : (uint32_t) (std::upper_bound(classes.begin(), classes.end(), character) - classes.begin());
}

void selfspec_automaton::begin() {
    work_left = WORK_MAX;
    nodes     = { { 0, EMPTY } };
    states.clear();
    states.emplace_back(); // DEAD
    known_nodes.clear();
    known_states.clear();
    known_open.clear();
    seen.clear();
    n_kept = 0;

    std::vector<stack> open;
    for (uint32_t alternative : alternatives[root]) {
        open.push_back(advanced(alternative, EMPTY));
    }
    first = closed(std::move(open));
}

void selfspec_automaton::allow_work() {
    work_left = std::min(work_left + WORK_PER_TOKEN, WORK_MAX);
}

void selfspec_automaton::spend(int64_t work) {
    work_left -= work;
    if (work_left < 0) {
        throw selfspec_grammar_limit("following the grammar takes too long");
    }
}

selfspec_automaton::stack selfspec_automaton::push(uint32_t top, stack rest) {
    const auto [it, is_new] = known_nodes.emplace((uint64_t) top << 32 | rest, (stack) nodes.size());
    if (is_new) {
        nodes.push_back({ top, rest });
    }
    return it->second;
}

// Returns the state of a set of stacks that may have references to rules on top.
selfspec_automaton::state selfspec_automaton::closed(std::vector<stack> open) {
    std::sort(open.begin(), open.end());
    const auto [it, is_new] = known_open.emplace(open, DEAD);
    if (!is_new) {
        return it->second;
    }
    n_kept += open.size();
    try {
        return it->second = expanded(std::move(open));
    } catch (...) {
        known_open.erase(it);
        throw;
    }
}

selfspec_automaton::state selfspec_automaton::expanded(std::vector<stack> open) {
    ++round;
    std::vector<stack> found;
    while (!open.empty()) {
        const stack at = open.back();
        open.pop_back();
        spend(STACK_WORK);
        seen.resize(nodes.size());
        if (seen[at] == round) {
            continue;
        }
        seen[at] = round;
        const auto [top, rest] = nodes[at];
        if (at == EMPTY || elements[top].type != LLAMA_GRETYPE_RULE_REF) {
            found.push_back(at);
            continue;
        }
        const stack after = advanced(top + 1, rest);
        for (uint32_t alternative : alternatives[elements[top].value]) {
            open.push_back(advanced(alternative, after));
        }
    }
    return interned(std::move(found));
}

selfspec_automaton::state selfspec_automaton::interned(std::vector<stack> stacks) {
    if (stacks.empty()) {
        return DEAD;
    }
    if (stacks.size() > STACKS_MAX) {
        throw selfspec_grammar_limit("the grammar has too many ways to go on");
    }
    std::sort(stacks.begin(), stacks.end(), [&](stack a, stack b) {
        return std::make_pair(nodes[a].top, a) < std::make_pair(nodes[b].top, b);
    });
    size_t hash = 14695981039346656037u; // FNV-1a
    for (stack each : stacks) {
        hash = (hash ^ each) * 1099511628211u;
    }
    const auto [begin, end] = known_states.equal_range(hash);
    for (auto it = begin; it != end; ++it) {
        if (states[it->second].stacks == stacks) {
            return it->second;
        }
    }
    info & made = states.emplace_back();
    for (stack each : stacks) {
        const auto type = elements[nodes[each].top].type;
        made.may_end |= each == EMPTY;
        made.names_tokens |= each != EMPTY && (type == LLAMA_GRETYPE_TOKEN || type == LLAMA_GRETYPE_TOKEN_NOT);
    }
    made.stacks = std::move(stacks);
    n_kept += made.stacks.size();
    const state number = (state) (states.size() - 1);
    known_states.emplace(hash, number);
    return number;
}

// Returns whether a character in low..high matches the character class that begins at an element.
selfspec_automaton::match selfspec_automaton::matches(uint32_t element, uint32_t low, uint32_t high) {
    const auto type = elements[element].type;
    if (type == LLAMA_GRETYPE_TOKEN || type == LLAMA_GRETYPE_TOKEN_NOT) {
        return { false, element + 1 };
    }
    if (type == LLAMA_GRETYPE_CHAR_ANY) {
        spend(1);
        return { true, element + 1 };
    }
    bool found = false;
    uint32_t at = element;
    do {
        const uint32_t from = elements[at].value;
        const bool is_range = elements[at + 1].type == LLAMA_GRETYPE_CHAR_RNG_UPPER;
        const uint32_t to   = is_range ? elements[at + 1].value : from;
        found |= from <= high && low <= to;
        at += is_range ? 2 : 1;
    } while (elements[at].type == LLAMA_GRETYPE_CHAR_ALT);
    spend(at - element);
    return { found == (type == LLAMA_GRETYPE_CHAR), at };
}

selfspec_automaton::state selfspec_automaton::after(state from, uint32_t character) {
    if (from == DEAD) {
        return DEAD;
    }
    info & here = states[from];
    const uint32_t kind = class_of(character);
    if (here.next.empty()) {
        here.next.resize(std::min(classes.size() + 1, NEXT_MAX), UNKNOWN);
    }
    state & next = kind < here.next.size() ? here.next[kind] : here.others.emplace(kind, UNKNOWN).first->second;
    if (next != UNKNOWN) {
        return next;
    }
    n_kept += kind >= here.next.size();
    std::vector<stack> open;
    uint32_t last = UNKNOWN; // stacks with equal top elements are adjacent
    match found = { false, 0 };
    for (stack at : here.stacks) {
        if (at == EMPTY) {
            continue;
        }
        const auto [top, rest] = nodes[at];
        if (top != last) {
            found = matches(top, character, character);
            last  = top;
        }
        spend(1);
        if (found.found) {
            open.push_back(advanced(found.after, rest));
        }
    }
    return next = closed(std::move(open));
}

selfspec_automaton::state selfspec_automaton::after_token(state from, llama_token token) {
    if (!states[from].names_tokens) {
        return DEAD;
    }
    std::vector<stack> open;
    for (stack at : states[from].stacks) {
        const auto [top, rest] = nodes[at];
        const auto & [type, value] = elements[top];
        if (at == EMPTY || (type != LLAMA_GRETYPE_TOKEN && type != LLAMA_GRETYPE_TOKEN_NOT)) {
            continue;
        }
        spend(1);
        if ((value == (uint32_t) token) == (type == LLAMA_GRETYPE_TOKEN)) {
            open.push_back(advanced(top + 1, rest));
        }
    }
    return closed(std::move(open));
}

selfspec_automaton::state selfspec_automaton::either(state a, state b) {
    if (a == DEAD || b == DEAD) {
        return a == DEAD ? b : a;
    }
    std::vector<stack> both = states[a].stacks;
    both.insert(both.end(), states[b].stacks.begin(), states[b].stacks.end());
    return closed(std::move(both));
}

bool selfspec_automaton::may_begin(state at, uint32_t value, int32_t n_left) {
    if (n_left == 1 && value < 2) {
        return false; // overlong encoding
    }
    uint32_t low = value << 6*n_left;
    const uint32_t high = low | ((1u << 6*n_left) - 1);
    if (low == 0) {
        low = n_left == 2 ? 1u << 11 : n_left == 3 ? 1u << 16 : 0;
    }
    uint32_t last = UNKNOWN;
    for (stack each : states[at].stacks) {
        const uint32_t top = nodes[each].top;
        if (each != EMPTY && top != last && matches(top, low, high).found) {
            return true;
        }
        last = each == EMPTY ? UNKNOWN : top;
    }
    return false;
}

bool selfspec_automaton::forget(state & kept) {
    if (states.size() < STATES_KEPT && nodes.size() < NODES_KEPT && n_kept < NODES_KEPT) {
        return false;
    }
    const std::vector<node>  old = std::move(nodes);
    const std::vector<stack> stacks = std::move(states[kept].stacks);
    const int64_t work = work_left;
    begin();
    work_left = work;

    std::vector<stack> moved(old.size(), EMPTY), made;
    for (stack each : stacks) {
        std::vector<stack> path;
        while (each != EMPTY && moved[each] == EMPTY) {
            path.push_back(each);
            each = old[each].rest;
        }
        for (; !path.empty(); path.pop_back()) {
            const stack at = path.back();
            moved[at] = push(old[at].top, moved[old[at].rest]);
        }
    }
    for (stack each : stacks) {
        made.push_back(moved[each]);
    }
    kept = interned(std::move(made));
    return true;
}
