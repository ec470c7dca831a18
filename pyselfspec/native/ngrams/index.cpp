#include "ngrams/index.h"

#include <algorithm>
#include <utility>

static constexpr int32_t  BETWEEN   = -1; // no token: stands between texts, and follows nothing
static constexpr uint32_t END_MASK  = SELFSPEC_MAX_TEXT - 1;
static constexpr uint64_t FACTOR    = 0x9E3779B97F4A7C15;
static constexpr size_t   MIN_SLOTS = 8;

// A hash over tokens from the last one back, so that one pass gives the hashes of n-grams of all lengths.
static uint64_t with_token(uint64_t hash, int32_t token) {
    return (hash + (uint32_t) token + 1) * FACTOR;
}

// Spreads the differences of hashes over all bits.
static uint64_t mixed(uint64_t hash) {
    hash = (hash ^ (hash >> 32)) * FACTOR;
    return hash ^ (hash >> 29);
}

static uint64_t hash_before(const int32_t * end, int32_t length) {
    uint64_t hash = 0;
    for (int32_t i = 1; i <= length; ++i) {
        hash = with_token(hash, end[-i]);
    }
    return mixed(hash);
}

static size_t place_of(uint64_t hash, size_t n_slots) {
    return ((hash >> 32) * n_slots) >> 32;
}

static uint32_t tag_of(uint64_t hash) {
    return (uint32_t) hash & ~END_MASK;
}

static size_t next_place(size_t place, size_t n_slots) {
    return place + 1 == n_slots ? 0 : place + 1;
}

selfspec_ngram_table::selfspec_ngram_table(int32_t length) : length(length), slots(MIN_SLOTS) {}

void selfspec_ngram_table::reserve(size_t n, const int32_t * text) {
    const size_t n_wanted = n_used + n;
    if (n_wanted <= slots.size() / 5 * 4) {
        return;
    }
    std::vector<uint32_t> larger(std::max(n_wanted, slots.size()) / 2 * 3 + MIN_SLOTS);
    for (const uint32_t slot : slots) {
        if (slot) {
            size_t place = place_of(hash_before(text + (slot & END_MASK), length), larger.size());
            while (larger[place]) {
                place = next_place(place, larger.size());
            }
            larger[place] = slot;
        }
    }
    slots = std::move(larger);
}

// Returns the place of an n-gram's slot, or of the empty one that it would take.
size_t selfspec_ngram_table::find(uint64_t hash, const int32_t * gram_end, const int32_t * text) const {
    size_t place = place_of(hash, slots.size());
    for (uint32_t slot; (slot = slots[place]); place = next_place(place, slots.size())) {
        const int32_t * end = text + (slot & END_MASK);
        if ((slot & ~END_MASK) == tag_of(hash) && std::equal(end - length, end, gram_end - length)) {
            break;
        }
    }
    return place;
}

int32_t selfspec_ngram_table::last(uint64_t hash, const int32_t * gram_end, const int32_t * text) const {
    return slots[find(hash, gram_end, text)] & END_MASK;
}

int32_t selfspec_ngram_table::replace(uint64_t hash, int32_t end, const int32_t * text) {
    uint32_t &    slot   = slots[find(hash, text + end, text)];
    const int32_t before = slot & END_MASK;
    n_used += before == 0;
    slot = tag_of(hash) | end;
    return before;
}

selfspec_ngrams::selfspec_ngrams(std::vector<int32_t> lengths, int32_t first, int32_t n_most)
    : lengths(std::move(lengths)), first(first), n_most(n_most), tables(this->lengths.begin() + first, this->lengths.end()) {}

void selfspec_ngrams::extend(const int32_t * tokens, int32_t n) {
    const size_t n_new = std::min<size_t>(n, n_most - text.size());
    const size_t n_all = text.size() + n_new;
    for (auto & table : tables) {
        table.reserve(n_new, text.data());
    }
    ends_before.resize(n_all * tables.size());
    text.insert(text.end(), tokens, tokens + n_new);
    for (int32_t end = n_all - n_new + 1; end <= (int32_t) n_all; ++end) {
        const selfspec_tail tail = { text.data() + end, end };
        const auto          all  = hash(tail);
        for (int32_t i = first; i < (int32_t) lengths.size() && lengths[i] <= end; ++i) {
            before(i, end) = tables[i - first].replace(all[i], end, text.data());
        }
    }
}

// Returns the hashes of the n-grams of all lengths at the end of a tail.
selfspec_ngrams::hashes selfspec_ngrams::hash(const selfspec_tail & tail) const {
    hashes   found  = {};
    uint64_t hash   = 0;
    int32_t  n_read = 0;
    for (size_t i = 0; i < lengths.size() && lengths[i] <= tail.n; ++i) {
        while (n_read < lengths[i]) {
            hash = with_token(hash, tail.end[-++n_read]);
        }
        found[i] = mixed(hash);
    }
    return found;
}

selfspec_ngrams::continuations selfspec_ngrams::after(const selfspec_tail & tail, int32_t i, uint64_t hash) const {
    continuations found;
    int32_t       end = tables[i - first].last(hash, tail.end, text.data());
    if (end == (int32_t) text.size() && end) {
        end = before(i, end);
    }
    for (int32_t n = 0; end && n < SELFSPEC_N_MATCHES; ++n, end = before(i, end)) {
        if (text[end] != BETWEEN) {
            found.tokens[found.n++] = text[end];
        }
    }
    return found;
}

int32_t selfspec_ngrams::continuations::count(int32_t token) const {
    return std::count(tokens.begin(), tokens.begin() + n, token);
}

int32_t selfspec_ngrams::continuations::most_frequent() const {
    return *std::max_element(tokens.begin(), tokens.begin() + n, [&](int32_t a, int32_t b) { return count(a) < count(b); });
}

selfspec_copy selfspec_ngrams::continuations::copy(int32_t token, int32_t length) const {
    const int32_t n_token = count(token);
    return { token, length, n == 1 ? 0 : n_token == n ? 3 : 2 * n_token > n ? 2 : 1 };
}

std::optional<selfspec_copy> selfspec_ngrams::following(const selfspec_tail & tail, int32_t beyond) const {
    const auto all = hash(tail);
    for (int32_t i = lengths.size() - 1; i >= std::max(first, beyond + 1); --i) {
        const auto found = lengths[i] <= tail.n ? after(tail, i, all[i]) : continuations();
        if (found.n) {
            return found.copy(found.most_frequent(), i);
        }
    }
    return std::nullopt;
}

std::vector<selfspec_copy> selfspec_ngrams::others(const selfspec_tail & tail, int32_t token, size_t n) const {
    const auto                 all = hash(tail);
    std::vector<selfspec_copy> found;
    for (int32_t i = lengths.size() - 1; i >= first && found.size() < n; --i) {
        const auto   here     = lengths[i] <= tail.n ? after(tail, i, all[i]) : continuations();
        const size_t n_before = found.size();
        for (int32_t j = 0; j < here.n; ++j) {
            const int32_t other    = here.tokens[j];
            const bool    is_known = std::any_of(found.begin(), found.end(), [&](const auto & each) { return each.token == other; });
            if (other != token && !is_known) {
                found.push_back(here.copy(other, i));
            }
        }
        const auto is_more_frequent = [&](const auto & a, const auto & b) { return here.count(a.token) > here.count(b.token); };
        std::stable_sort(found.begin() + n_before, found.end(), is_more_frequent);
    }
    found.resize(std::min(found.size(), n));
    return found;
}
