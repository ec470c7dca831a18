// Checks of the arguments of a decode, before anything is changed. The checks take facts about the context and throw a
// selfspec_failure, so they can be tested without a model.

#pragma once

#include "graph/batch.h"

#include <cstdint>
#include <string>
#include <vector>

// Thrown inside the session only, which turns it into a status and a message.
struct selfspec_failure {
    int32_t     status;
    std::string text;
};

// The caller's rows, see selfspec_decode().
struct selfspec_rows {
    int32_t         n;
    const int32_t * tokens;    // may be NULL
    const int32_t * seq_ids;   // row after row
    const int32_t * n_seq_ids; // may be NULL: one each
    const int32_t * pos;
    const uint8_t * outputs;

    int32_t n_outputs() const;
    int32_t n_sequences(int32_t row) const { return n_seq_ids ? n_seq_ids[row] : 1; }
    bool    has_shared() const; // whether a row belongs to several sequences

    // Calls f(row, sequence) for every sequence of every row, in order.
    template <typename F> void each_sequence(F f) const {
        const int32_t * seq_id = seq_ids;
        for (int32_t row = 0; row < n; ++row) {
            for (int32_t i = 0; i < n_sequences(row); ++i) {
                f(row, *seq_id++);
            }
        }
    }
};

// The list of tokens in which the best one is searched, see selfspec_decode(). ids NULL: all tokens.
struct selfspec_among {
    const int32_t * ids;
    int32_t         n;
};

// The caller's arrays of hidden states, see selfspec_decode().
struct selfspec_states {
    const float * in;
    float       * out;
};

// What the caller asks of one pass.
struct selfspec_request {
    selfspec_rows   rows;
    selfspec_states states;
    selfspec_among  among;
    selfspec_pass   pass;
    selfspec_coarse_head_ptr coarse_head; // for pass.n_best; NULL: the pass reads all of the head
    std::vector<float> *     head_inputs = nullptr; // see selfspec_batch
};

// The positions of one sequence's rows in a batch, which are consecutive: first to last, both included.
struct selfspec_span {
    int32_t seq_id;
    int64_t first, last;
};

// The facts about a context and its model that the checks need.
struct selfspec_facts {
    const char * architecture  = "";
    int32_t      n_layer       = 0;
    int32_t      n_vocab       = 0;
    int32_t      n_batch       = 0;
    int32_t      n_ubatch      = 0;
    int32_t      n_seq_max     = 0;
    int32_t      n_outputs_max = 0;
    int32_t      memory_bits   = 0;     // selfspec_memory_bits
    bool         has_memory    = true;
    bool         leaves_last   = false; // there are states for a head that reads what leaves all blocks
    bool         has_encoder   = false;
    bool         has_decoder   = true;
    bool         is_special    = false; // the context is of a type for draft heads, or has samplers
    bool         is_causal     = true;
    bool         embeds        = false;
    bool         is_cpu_only   = true;  // no other device may compute
};

// The positions that the sequences of a context hold. first() and last() are -1 for an empty sequence.
class selfspec_held {
public:
    virtual ~selfspec_held() = default;

    virtual int64_t first(int32_t seq_id) const = 0;
    virtual int64_t last (int32_t seq_id) const = 0;

    // Whether the sequence holds all earlier positions that a token at `pos` sees through a sliding window.
    virtual bool holds_window(int32_t seq_id, int64_t pos) const = 0;

    // The cell with the K/V of a position that the sequence holds; equal for sequences that share the cell.
    virtual int64_t cell(int32_t seq_id, int64_t pos) const = 0;
};

// These functions throw a selfspec_failure. The others rely on selfspec_require_batch() having been called before.

[[noreturn]] void selfspec_refuse(const std::string & text, int32_t status = SELFSPEC_BAD_ARGUMENT);

void selfspec_require_n_layer(const selfspec_facts & facts, int32_t n_layer);

// Returns what both kinds of passes read of their arguments; and adds what selfspec_decode() reads besides.
selfspec_request selfspec_request_of(const selfspec_decode_args & args);
void selfspec_add_parts(const selfspec_facts & facts, const selfspec_decode_args & args, selfspec_pass & pass);

void selfspec_require_seq(const selfspec_facts & facts, int32_t seq_id);

// Checks that apply to the rows of any decode.
void selfspec_require_batch(const selfspec_facts & facts, const selfspec_rows & rows);

// Further checks that apply to the rows of selfspec_decode().
void selfspec_require_rows(const selfspec_facts & facts, const selfspec_rows & rows);

void selfspec_require_head (const selfspec_pass & pass);
void selfspec_require_pass (const selfspec_facts & facts, const selfspec_rows & rows, const selfspec_states & states, const selfspec_pass & pass);
void selfspec_require_among(const selfspec_facts & facts, const selfspec_among & among, const selfspec_rows & rows);

// Returns one span for each sequence, in the order of their first rows.
std::vector<selfspec_span> selfspec_spans_of(const selfspec_rows & rows);

// Requires that the spans continue their sequences or, where the pass writes in place, that the sequences hold them.
void selfspec_require_span (const selfspec_held & held, const selfspec_span & span, bool in_place);
void selfspec_require_place(const selfspec_facts & facts, const selfspec_held & held, const selfspec_rows & rows,
        const std::vector<selfspec_span> & spans, const selfspec_pass & pass);
