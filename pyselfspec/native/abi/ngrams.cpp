// The part of the C interface that copies from texts.

#include "abi/selfspec.h"

#include "ngrams/chain.h"

#include <algorithm>
#include <functional>
#include <utility>

template <typename F> static int32_t with_status(bool is_valid, F f) noexcept {
    if (!is_valid) {
        return SELFSPEC_BAD_ARGUMENT;
    }
    try {
        return f();
    } catch (...) {
        return SELFSPEC_FAILED;
    }
}

static bool are_lengths(const int32_t * lengths, int32_t n) {
    return lengths && n > 0 && n <= SELFSPEC_MAX_LENGTHS && lengths[0] > 0 &&
        std::adjacent_find(lengths, lengths + n, std::greater_equal<>()) == lengths + n;
}

selfspec_ngrams * selfspec_ngrams_init(const int32_t * lengths, int32_t n_lengths, int32_t first, int32_t n_most) {
    const bool is_valid = are_lengths(lengths, n_lengths) && first >= 0 && first < n_lengths && n_most >= 0 &&
        n_most < SELFSPEC_MAX_TEXT;
    selfspec_ngrams * made = nullptr;
    with_status(is_valid, [&] {
        made = new selfspec_ngrams({ lengths, lengths + n_lengths }, first, n_most);
        return SELFSPEC_OK;
    });
    return made;
}

void selfspec_ngrams_free(selfspec_ngrams * ngrams) {
    delete ngrams;
}

int32_t selfspec_ngrams_extend(selfspec_ngrams * ngrams, const int32_t * tokens, int32_t n) {
    return with_status(ngrams && n >= 0 && (tokens || n == 0), [&] {
        ngrams->extend(tokens, n);
        return SELFSPEC_OK;
    });
}

int32_t selfspec_ngrams_chain(
        selfspec_ngrams       * own,
        const selfspec_ngrams * earlier,
        const selfspec_ngrams * others,
        const int32_t         * end,
        int32_t                 n_end,
        int32_t                 n_new,
        double                * counts,
        double                * other_counts,
        double                  forget,
        double                  chance_min,
        int32_t                 n_max,
        int32_t               * tokens,
        double                * chances) {
    const auto fits = [&](const selfspec_ngrams * other) { return !other || other->lengths == own->lengths; };
    const bool is_valid = own && fits(earlier) && fits(others) && n_new >= 0 && n_end >= n_new && (end || n_end == 0) && counts &&
        other_counts && n_max >= 0 && ((tokens && chances) || n_max == 0);
    return with_status(is_valid, [&]() -> int32_t {
        const selfspec_copy_sources sources = { { { own, counts }, { earlier, other_counts }, { others, other_counts } } };
        const selfspec_tail         tail    = { end + n_end, n_end };
        selfspec_learn(sources, own->expected, tail.end - n_new, n_new, forget);
        own->extend(tail.end - n_new, n_new);
        auto          chain = selfspec_chain(sources, tail, chance_min, n_max);
        const int32_t n     = chain.empty() || chain[0].chance < chance_min ? 0 : chain.size();
        for (int32_t i = 0; i < n; ++i) {
            tokens[i]  = chain[i].copy.token;
            chances[i] = chain[i].chance;
        }
        if (n_new) {
            own->expected = std::move(chain);
        }
        return n;
    });
}

int32_t selfspec_ngrams_others(
        const selfspec_ngrams * ngrams, const int32_t * end, int32_t n_end, int32_t token, int32_t n_max, int32_t * found) {
    const bool is_valid = ngrams && n_end >= 0 && (end || n_end == 0) && n_max >= 0 && (found || n_max == 0);
    return with_status(is_valid, [&]() -> int32_t {
        const auto others = ngrams->others({ end + n_end, n_end }, token, n_max);
        for (const auto & [other, length, sureness] : others) {
            for (const int32_t each : { other, length, sureness }) {
                *found++ = each;
            }
        }
        return others.size();
    });
}
