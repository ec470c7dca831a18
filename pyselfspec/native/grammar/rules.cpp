#include "grammar/rules.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace {

constexpr uint32_t UNKNOWN = UINT32_MAX;
constexpr size_t REASON_MAX  = 160; // most bytes of the grammar's text in a message

using graph = std::vector<std::vector<uint32_t>>;

const char * skip_space(const char * text) {
    while (*text && std::strchr(" \t\r\n#", *text)) {
        text += *text == '#' ? std::strcspn(text, "\r\n") : 1;
    }
    return text;
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
        selfspec_each_alternative(rules[rule], [&](size_t first, size_t last) {
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
        selfspec_each_alternative(rules[rule], [&](size_t first, size_t last) {
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
