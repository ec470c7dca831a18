#include "ngrams/chain.h"

#include <algorithm>

void selfspec_learn(
        const selfspec_copy_sources             & sources,
        const std::vector<selfspec_chain_token> & expected,
        const int32_t                           * came,
        size_t                                    n,
        double                                    forget) {
    for (size_t i = 0; i < std::min(n, expected.size()); ++i) {
        const auto & [copy, source, chance] = expected[i];
        const bool is_right = copy.token == came[i];
        double *   counts   = sources[source].of(copy);
        counts[0] = forget * counts[0] + is_right;
        counts[1] = forget * counts[1] + 1.0;
        if (!is_right) {
            break;
        }
    }
}

static std::optional<selfspec_chain_token> next_token(const selfspec_copy_sources & sources, const selfspec_tail & tail) {
    std::optional<selfspec_chain_token> best;
    for (size_t i = 0; i < sources.size(); ++i) {
        const auto * index = sources[i].index;
        const auto   found = index ? index->following(tail, best ? best->copy.length : -1) : std::nullopt;
        if (!found) {
            continue;
        }
        const double * counts = sources[i].of(*found);
        const double   chance = counts[0] / counts[1];
        if (i == 0 || chance > (best ? best->chance : 0.0)) {
            best = { *found, (int32_t) i, chance };
        }
    }
    return best;
}

std::vector<selfspec_chain_token> selfspec_chain(
        const selfspec_copy_sources & sources, const selfspec_tail & text, double chance_min, size_t n_max) {
    std::vector<int32_t>              context(text.end - std::min(text.n, sources[0].index->lengths.back()), text.end);
    std::vector<selfspec_chain_token> chain;
    double                            all_right = 1.0;
    while (chain.size() < n_max) {
        const auto found = next_token(sources, { context.data() + context.size(), (int32_t) context.size() });
        if (!found || found->copy.token < 0) {
            break;
        }
        all_right *= found->chance;
        if (!chain.empty() && all_right < chance_min) {
            break;
        }
        chain.push_back(*found);
        context.push_back(found->copy.token);
    }
    return chain;
}
