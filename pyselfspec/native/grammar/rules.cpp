#include "grammar/rules.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace {

constexpr int64_t WORK_MAX       = 1 << 25; // about a third of a second
constexpr int64_t WORK_PER_TOKEN = 1 << 22;
constexpr int64_t STACK_WORK     = 16;      // cost of adding a stack, in units of comparing one character
constexpr size_t  STACKS_MAX     = 1 << 16; // most stacks of one state
constexpr size_t  STATES_KEPT    = 1 << 14;
constexpr size_t  NODES_KEPT     = 1 << 20;
constexpr size_t  NEXT_MAX       = 128;     // most next states of a state that are kept in a plain list
constexpr uint32_t N_ASCII       = 128;
constexpr uint32_t UNKNOWN       = UINT32_MAX;
constexpr size_t  REASON_MAX     = 160;     // most bytes of the grammar's text in a message

using graph = std::vector<std::vector<uint32_t>>;

const char * skip_space(const char * text) {
    while (*text && std::strchr(" \t\r\n#", *text)) {
        text += *text == '#' ? std::strcspn(text, "\r\n") : 1;
    }
    return text;
}

bool ends(const llama_grammar_element & element) {
    return element.type == LLAMA_GRETYPE_END || element.type == LLAMA_GRETYPE_ALT;
}

// Calls f(first, last) for every alternative of a rule, without the element that ends it.
template <typename F> void each_alternative(const llama_grammar_rule & rule, F f) {
    for (size_t first = 0; first < rule.size();) {
        size_t last = first;
        while (!ends(rule[last])) {
            ++last;
        }
        f(first, last);
        first = last + 1;
    }
}

// Returns by rule whether it matches the empty text.
std::vector<bool> rules_that_may_be_empty(const llama_grammar_rules & rules) {
    struct alternative {
        uint32_t rule;
        size_t   n_left; // number of its references that have not yet been found to match the empty text
    };
    std::vector<alternative> open;
    graph users(rules.size()); // alternatives that refer to a rule
    std::vector<bool> found(rules.size());
    std::vector<uint32_t> todo;
    const auto add = [&](uint32_t rule) {
        if (!found[rule]) {
            found[rule] = true;
            todo.push_back(rule);
        }
    };
    for (uint32_t rule = 0; rule < rules.size(); ++rule) {
        each_alternative(rules[rule], [&](size_t first, size_t last) {
            const auto begin = rules[rule].begin();
            if (first == last) {
                add(rule);
            } else if (std::all_of(begin + first, begin + last, [](const auto & e) { return e.type == LLAMA_GRETYPE_RULE_REF; })) {
                for (size_t i = first; i < last; ++i) {
                    users[rules[rule][i].value].push_back((uint32_t) open.size());
                }
                open.push_back({ rule, last - first });
            }
        });
    }
    while (!todo.empty()) {
        const uint32_t empty = todo.back();
        todo.pop_back();
        for (uint32_t i : users[empty]) {
            if (--open[i].n_left == 0) {
                add(open[i].rule);
            }
        }
    }
    return found;
}

// Appends the nodes that can be reached from `from`, each after the nodes that are reached from it.
void reach(const graph & edges, uint32_t from, std::vector<bool> & seen, std::vector<uint32_t> & order) {
    std::vector<std::pair<uint32_t, size_t>> path;
    const auto enter = [&](uint32_t at) {
        if (!seen[at]) {
            seen[at] = true;
            path.push_back({ at, 0 });
        }
    };
    enter(from);
    while (!path.empty()) {
        auto & [at, i] = path.back();
        if (i < edges[at].size()) {
            enter(edges[at][i++]);
        } else {
            order.push_back(at);
            path.pop_back();
        }
    }
}

// Returns a number per node, equal for nodes that can be reached from each other (Kosaraju's algorithm).
std::vector<uint32_t> components(const graph & edges) {
    const size_t n = edges.size();
    graph back(n);
    for (uint32_t from = 0; from < n; ++from) {
        for (uint32_t to : edges[from]) {
            back[to].push_back(from);
        }
    }
    std::vector<uint32_t> order;
    std::vector<bool> seen(n);
    for (uint32_t from = 0; from < n; ++from) {
        reach(edges, from, seen, order);
    }
    std::vector<uint32_t> found(n);
    seen.assign(n, false);
    for (size_t i = n; i-- > 0;) {
        std::vector<uint32_t> members;
        reach(back, order[i], seen, members);
        for (uint32_t member : members) {
            found[member] = order[i];
        }
    }
    return found;
}

// Returns a rule that refers to itself before it matches a character, with elements left to match after the reference, so that
// stacks would grow without end; else UNKNOWN.
uint32_t left_recursive(const llama_grammar_rules & rules) {
    const std::vector<bool> may_be_empty = rules_that_may_be_empty(rules);
    graph edges(rules.size());
    std::vector<std::pair<uint32_t, uint32_t>> growing;
    for (uint32_t rule = 0; rule < rules.size(); ++rule) {
        each_alternative(rules[rule], [&](size_t first, size_t last) {
            for (size_t i = first; i < last && rules[rule][i].type == LLAMA_GRETYPE_RULE_REF; ++i) {
                const uint32_t to = rules[rule][i].value;
                edges[rule].push_back(to);
                if (i + 1 < last) {
                    growing.push_back({ rule, to });
                }
                if (!may_be_empty[to]) {
                    break;
                }
            }
        });
    }
    const std::vector<uint32_t> component = components(edges);
    for (const auto & [from, to] : growing) {
        if (component[from] == component[to]) {
            return from;
        }
    }
    return UNKNOWN;
}

std::string name_of(const llama_grammar_parser & parser, uint32_t rule) {
    for (const auto & [name, id] : parser.symbol_ids) {
        if (id == rule) {
            return name;
        }
    }
    return std::to_string(rule);
}

void require_valid(const llama_grammar_parser & parser) {
    if (parser.symbol_ids.find("root") == parser.symbol_ids.end()) {
        throw std::runtime_error("it has no rule named root");
    }
    for (const auto & [name, id] : parser.symbol_ids) {
        if (id >= parser.rules.size() || parser.rules[id].empty()) {
            throw std::runtime_error("the rule " + name.substr(0, REASON_MAX) + " is used and not defined");
        }
    }
    const uint32_t rule = left_recursive(parser.rules);
    if (rule != UNKNOWN) {
        throw std::runtime_error("left recursion: the rule " + name_of(parser, rule).substr(0, REASON_MAX) +
            " refers to itself before it matches a character");
    }
}

} // namespace

selfspec_rules selfspec_parse_grammar(const llama_vocab * vocab, const char * text) {
    llama_grammar_parser parser(vocab);
    try {
        for (const char * rest = skip_space(text); *rest;) {
            rest = parser.parse_rule(rest);
        }
    } catch (const std::out_of_range &) {
        throw std::runtime_error("a number in it is too large");
    } catch (const std::runtime_error & error) { // the message quotes the whole rest of the text
        const std::string reason = error.what();
        throw std::runtime_error(reason.substr(0, std::min(reason.find_first_of("\r\n"), REASON_MAX)));
    }
    require_valid(parser);
    return { std::move(parser.rules), parser.symbol_ids.at("root") };
}

selfspec_automaton::selfspec_automaton(const selfspec_rules & given) : alternatives(given.rules.size()), root(given.root) {
    for (size_t rule = 0; rule < given.rules.size(); ++rule) {
        each_alternative(given.rules[rule], [&](size_t first, size_t) {
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
