#include "ngrams/chain.h"

static std::optional<selfspec_chain_token> next_token(const std::vector<selfspec_copy_source> & sources, const selfspec_tail & tail) {
    std::optional<selfspec_chain_token> best;
    for (size_t i = 0; i < sources.size(); ++i) {
        const auto & [index, chances] = sources[i];
        const auto found = index ? index->following(tail, best ? best->copy.length : -1) : std::nullopt;
        if (!found) {
            continue;
        }
        const double chance = chances[found->length * SELFSPEC_N_SURENESS + found->sureness];
        if (i == 0 || chance > (best ? best->chance : 0.0)) {
            best = { *found, (int32_t) i, chance };
        }
    }
    return best;
}

std::vector<selfspec_chain_token> selfspec_chain(
        const std::vector<selfspec_copy_source> & sources, const selfspec_tail & text, double chance_min, size_t n_max) {
    std::vector<int32_t>              context(text.end - text.n, text.end);
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
