// An index of n-grams over a growing text: the tokens that followed an n-gram are found in a few steps, whatever the length of the
// text.
//
// For every n-gram of some lengths it stores where it last ended, and for each end the one before it. Saxena, "Prompt Lookup
// Decoding", https://github.com/apoorvumang/prompt-lookup-decoding, copies after the latest match of one length; here the latest
// matches of the longest length that has any are counted, as in Oliaro et al., "SuffixDecoding", section 3,
// https://arxiv.org/abs/2411.04975. Needs nothing of llama.cpp.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

constexpr int32_t SELFSPEC_MAX_LENGTHS = 8;       // of n-grams that an index holds
constexpr int32_t SELFSPEC_MAX_TEXT    = 1 << 24; // tokens; more do not fit into the slots of a table
constexpr int32_t SELFSPEC_N_MATCHES   = 8;       // latest matches that count
constexpr int32_t SELFSPEC_N_SURENESS  = 4;       // values of sureness

// The end of a text: n tokens, the last one before `end`.
struct selfspec_tail {
    const int32_t * end;
    int32_t         n;
};

// A token that followed a match.
struct selfspec_copy {
    int32_t token;
    int32_t length;   // index of the n-gram's length
    int32_t sureness; // 0: one match, 1: matches that differ, 2: most agree, 3: all agree
};

// A token of a chain of copies. source: index of the text that it is from. chance: how likely it is right if those before it are.
struct selfspec_chain_token {
    selfspec_copy copy;
    int32_t       source;
    double        chance;
};

// The places where n-grams of one length last ended: a hash table with linear probing. An end is the number of tokens up to the
// n-gram's last one.
class selfspec_ngram_table {
  public:
    explicit selfspec_ngram_table(int32_t length);

    // Makes room for n more n-grams. Throws std::bad_alloc, and then changes nothing.
    void reserve(size_t n, const int32_t * text);

    // Returns where an n-gram last ended, 0: nowhere. hash: of its tokens, the last of them before gram_end.
    int32_t last(uint64_t hash, const int32_t * gram_end, const int32_t * text) const;

    // Records that the n-gram before `end` ends there, and returns where it ended before. Needs room.
    int32_t replace(uint64_t hash, int32_t end, const int32_t * text);

  private:
    size_t find(uint64_t hash, const int32_t * gram_end, const int32_t * text) const;

    int32_t               length;
    size_t                n_used = 0;
    std::vector<uint32_t> slots; // an end and a part of the hash, so that hardly any n-gram is compared in vain; 0: empty
};

// May be read by several threads, as long as none extends it.
struct selfspec_ngrams {
    // lengths: ascending, at most SELFSPEC_MAX_LENGTHS. first: index of the shortest one that is looked up. n_most: most tokens, at
    // most SELFSPEC_MAX_TEXT - 1.
    selfspec_ngrams(std::vector<int32_t> lengths, int32_t first, int32_t n_most);

    // Appends tokens to the text; those after n_most are ignored. A token of -1 stands between texts. Throws std::bad_alloc, and then changes nothing.
    void extend(const int32_t * tokens, int32_t n);

    // Returns the token that follows most of the latest matches of a tail, of several the latest; none without matches.
    // beyond: index of a length; only longer matches count.
    std::optional<selfspec_copy> following(const selfspec_tail & tail, int32_t beyond = -1) const;

    // Returns at most n tokens other than this one that have followed a tail, longest matches first, then most frequent first.
    std::vector<selfspec_copy> others(const selfspec_tail & tail, int32_t token, size_t n) const;

    const std::vector<int32_t>        lengths;
    std::vector<selfspec_chain_token> expected; // to follow the text, when it was last extended for a chain

  private:
    // The tokens after the latest matches of one length, the latest first.
    struct continuations {
        std::array<int32_t, SELFSPEC_N_MATCHES> tokens;
        int32_t                                 n = 0;

        int32_t       count(int32_t token) const;
        int32_t       most_frequent() const; // of several the latest
        selfspec_copy copy(int32_t token, int32_t length) const;
    };

    using hashes = std::array<uint64_t, SELFSPEC_MAX_LENGTHS>;

    hashes        hash(const selfspec_tail & tail) const;
    continuations after(const selfspec_tail & tail, int32_t i, uint64_t hash) const;

    int32_t & before(int32_t i, int32_t end) { return ends_before[(size_t) (end - 1) * tables.size() + i - first]; }
    int32_t   before(int32_t i, int32_t end) const { return ends_before[(size_t) (end - 1) * tables.size() + i - first]; }

    const int32_t                     first;
    const size_t                      n_most;
    std::vector<int32_t>              text;
    std::vector<selfspec_ngram_table> tables;      // by length, from `first` on
    std::vector<int32_t>              ends_before; // [tokens, tables] where the n-gram that ends with a token ended before; 0: nowhere
};
