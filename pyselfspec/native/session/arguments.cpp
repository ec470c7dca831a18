#include "session/arguments.h"

#include <algorithm>
#include <set>
#include <utility>

namespace {

std::string allowed(const char * name, int64_t value, int64_t first, int64_t last) {
    return std::string(name) + " is " + std::to_string(value) + ", allowed is " + std::to_string(first) + " to " + std::to_string(last);
}

std::string architecture(const selfspec_facts & facts) {
    return std::string("architecture ") + facts.architecture;
}

} // namespace

int32_t selfspec_rows::n_outputs() const {
    return (int32_t) std::count_if(outputs, outputs + n, [](uint8_t wanted) { return wanted != 0; });
}

bool selfspec_rows::has_shared() const {
    return n_seq_ids && std::any_of(n_seq_ids, n_seq_ids + n, [](int32_t n_here) { return n_here > 1; });
}

void selfspec_refuse(const std::string & text, int32_t status) {
    throw selfspec_failure { status, text };
}

void selfspec_require_n_layer(const selfspec_facts & facts, int32_t n_layer) {
    if (n_layer != facts.n_layer) {
        selfspec_refuse("the model has " + std::to_string(facts.n_layer) + " blocks, not " + std::to_string(n_layer));
    }
}

selfspec_request selfspec_request_of(const selfspec_decode_args & args) {
    selfspec_pass pass;
    pass.head     = args.head;
    pass.n_among  = args.among ? args.n_among : 0;
    pass.n_best   = args.head == SELFSPEC_HEAD_LOGITS && args.n_best <= SELFSPEC_MOST_BEST ? std::max(args.n_best, 0) : 0;
    pass.in_place = args.in_place;
    return { { args.n_tokens, args.tokens, args.seq_ids, args.n_seq_ids, args.pos, args.outputs }, { args.hidden, args.hidden_out },
        { args.among, args.n_among }, std::move(pass) };
}

void selfspec_add_parts(const selfspec_facts & facts, const selfspec_decode_args & args, selfspec_pass & pass) {
    if (args.mask) {
        selfspec_require_n_layer(facts, args.n_layer);
        if (std::any_of(args.mask, args.mask + args.n_layer, [](uint8_t bits) { return bits != 0; })) {
            pass.mask.assign(args.mask, args.mask + args.n_layer);
        }
    }
    if (args.hidden) {
        const auto runs = std::find_if(pass.mask.begin(), pass.mask.end(), [](uint8_t bits) { return bits != SELFSPEC_SKIP_BLOCK; });
        pass.enter_at = (int32_t) (runs - pass.mask.begin());
    }
    if (args.hidden_at) {
        if (args.n_hidden_at < 0) {
            selfspec_refuse("n_hidden_at is " + std::to_string(args.n_hidden_at) + ", allowed is 0 or more");
        }
        pass.hidden_at.assign(args.hidden_at, args.hidden_at + args.n_hidden_at);
    }
    pass.has_tokens = args.tokens != nullptr;
    pass.weights    = args.weights;
}

void selfspec_require_seq(const selfspec_facts & facts, int32_t seq_id) {
    if (seq_id < 0 || seq_id >= facts.n_seq_max) {
        selfspec_refuse(allowed("seq_id", seq_id, 0, (int64_t) facts.n_seq_max - 1));
    }
}

void selfspec_require_batch(const selfspec_facts & facts, const selfspec_rows & rows) {
    if (rows.n < 1 || rows.n > facts.n_batch) {
        selfspec_refuse("n_tokens is " + std::to_string(rows.n) + ", allowed is 1 to n_batch = " + std::to_string(facts.n_batch));
    }
    if (!rows.seq_ids || !rows.pos || !rows.outputs) {
        selfspec_refuse("a batch needs a sequence, a position and an output mark for every row");
    }
    for (int32_t i = 0; i < rows.n; ++i) {
        if (rows.n_sequences(i) < 1) {
            selfspec_refuse("row " + std::to_string(i) + " is in no sequence");
        }
    }
    rows.each_sequence([&](int32_t, int32_t seq_id) { selfspec_require_seq(facts, seq_id); });
    for (int32_t i = 0; i < rows.n; ++i) {
        if (rows.tokens && (rows.tokens[i] < 0 || rows.tokens[i] >= facts.n_vocab)) {
            selfspec_refuse("token id " + std::to_string(rows.tokens[i]) + " is not in the vocabulary, allowed is 0 to " +
                std::to_string(facts.n_vocab - 1));
        }
    }
}

void selfspec_require_rows(const selfspec_facts & facts, const selfspec_rows & rows) {
    selfspec_require_batch(facts, rows);

    if (facts.is_special) {
        selfspec_refuse("the context is of a special type or samples by itself; make an ordinary one", SELFSPEC_UNSUPPORTED);
    }
    if (facts.has_encoder && facts.has_decoder) {
        selfspec_refuse(architecture(facts) + " has an encoder, whose output the decoder would read; decoder-only models work",
            SELFSPEC_UNSUPPORTED);
    }
    if ((!facts.has_memory || !facts.is_causal) && rows.n > facts.n_ubatch) {
        selfspec_refuse("n_tokens is " + std::to_string(rows.n) + ", without K/V or causal attention at most n_ubatch = " +
            std::to_string(facts.n_ubatch));
    }
    const int32_t n_outputs = facts.embeds || !facts.has_memory ? rows.n : rows.n_outputs();
    if (std::max(n_outputs, facts.n_seq_max) > facts.n_outputs_max) {
        selfspec_refuse(std::to_string(n_outputs) + " outputs and " + std::to_string(facts.n_seq_max) +
            " sequences, allowed is n_outputs_max = " + std::to_string(facts.n_outputs_max));
    }
}

void selfspec_require_head(const selfspec_pass & pass) {
    if (pass.head != SELFSPEC_HEAD_LOGITS && pass.head != SELFSPEC_HEAD_BEST) {
        selfspec_refuse("head is " + std::to_string(pass.head) + ", allowed is 0 (logits) or 1 (best)");
    }
    if (pass.n_among != 0 && pass.head != SELFSPEC_HEAD_BEST) {
        selfspec_refuse("some tokens only can be looked at for the best one, not for logits");
    }
}

void selfspec_require_pass(
        const selfspec_facts & facts, const selfspec_rows & rows, const selfspec_states & states, const selfspec_pass & pass) {
    if (!rows.tokens && !states.in) {
        selfspec_refuse("a batch needs token ids or hidden states");
    }
    selfspec_require_head(pass);
    if (pass.head == SELFSPEC_HEAD_BEST && !facts.has_memory) {
        selfspec_refuse(architecture(facts) + " keeps no K/V: it has logits only", SELFSPEC_UNSUPPORTED);
    }
    const auto unknown = std::find_if(pass.mask.begin(), pass.mask.end(), [](uint8_t bits) { return bits > SELFSPEC_SKIP_BLOCK; });
    if (unknown != pass.mask.end()) {
        selfspec_refuse("block " + std::to_string(unknown - pass.mask.begin()) + ": " + allowed("mask", *unknown, 0, SELFSPEC_SKIP_BLOCK));
    }
    if (states.in && (pass.enter_at < 1 || pass.enter_at >= facts.n_layer)) {
        selfspec_refuse("hidden states need a mask that skips the first blocks whole and leaves at least one block to enter");
    }
    const int32_t last = facts.leaves_last ? facts.n_layer + 1 : facts.n_layer;
    for (const int32_t il : pass.hidden_at) {
        if (il < 1 || il > last || !states.out) {
            selfspec_refuse(allowed("hidden_at", il, 1, last) + " with a place to copy to");
        }
        if (il < pass.enter_at && !pass.has_tokens) {
            selfspec_refuse("hidden_at is " + std::to_string(il) + ", below block " + std::to_string(pass.enter_at) +
                " where the given states enter; that needs token ids");
        }
    }
    if (pass.leaves(facts.n_layer) && rows.n_outputs() < rows.n) {
        selfspec_refuse("the states leaving the last block exist for tokens with outputs only, ask for outputs of all");
    }
}

void selfspec_require_among(const selfspec_facts & facts, const selfspec_among & among, const selfspec_rows & rows) {
    if (!among.ids) {
        return;
    }
    if (!facts.is_cpu_only) {
        selfspec_refuse("the head cannot look at some tokens only: another device than the CPU may compute it", SELFSPEC_UNSUPPORTED);
    }
    if (among.n < 1 || among.n > facts.n_vocab) {
        selfspec_refuse(allowed("n_among", among.n, 1, facts.n_vocab));
    }
    for (int32_t i = 0; i < among.n; ++i) {
        if (among.ids[i] <= (i > 0 ? among.ids[i - 1] : -1) || among.ids[i] >= facts.n_vocab) {
            selfspec_refuse("the tokens to look at are ids from 0 to " + std::to_string(facts.n_vocab - 1) + " in rising order, none twice");
        }
    }
    if (rows.n_outputs() > SELFSPEC_EXACT_WIDTH) {
        selfspec_refuse(allowed("the number of outputs that look at some tokens only", rows.n_outputs(), 0, SELFSPEC_EXACT_WIDTH));
    }
}

std::vector<selfspec_span> selfspec_spans_of(const selfspec_rows & rows) {
    std::vector<selfspec_span> spans;
    rows.each_sequence([&](int32_t i, int32_t seq_id) {
        const int64_t pos = rows.pos[i];

        const auto it = std::find_if(spans.begin(), spans.end(), [&](const auto & s) { return s.seq_id == seq_id; });
        if (it == spans.end()) {
            spans.push_back({ seq_id, pos, pos });
        } else if (pos == it->last + 1) {
            it->last = pos;
        } else {
            selfspec_refuse("positions of a sequence are consecutive: sequence " + std::to_string(seq_id) + " has " +
                std::to_string(pos) + " after " + std::to_string(it->last));
        }
    });
    return spans;
}

void selfspec_require_span(const selfspec_held & held, const selfspec_span & span, bool in_place) {
    const std::string name  = "sequence " + std::to_string(span.seq_id);
    const int64_t     first = held.first(span.seq_id);
    const int64_t     last  = held.last(span.seq_id);

    if (!in_place && span.first != last + 1) {
        selfspec_refuse(name + " ends at position " + std::to_string(last) + ", the next batch starts at " + std::to_string(last + 1) +
            ", not at " + std::to_string(span.first));
    }
    if (in_place && (last < 0 || span.first < first || span.last > last)) {
        selfspec_refuse("in place needs positions that " + name + " holds: asked " + std::to_string(span.first) + " to " +
            std::to_string(span.last) + ", held " + std::to_string(first) + " to " + std::to_string(last));
    }
    if (!held.holds_window(span.seq_id, span.first)) {
        selfspec_refuse(name + " no longer holds all that position " + std::to_string(span.first) + " sees through its sliding window, "
            "it begins at " + std::to_string(first) + "; decode it anew", SELFSPEC_UNSUPPORTED);
    }
}

// Refuses two rows that write one cell: they would do so at the same time.
static void selfspec_require_own_cells(const selfspec_held & held, const std::vector<selfspec_span> & spans) {
    std::set<int64_t> written;
    for (const auto & span : spans) {
        for (int64_t pos = span.first; pos <= span.last; ++pos) {
            if (!written.insert(held.cell(span.seq_id, pos)).second) {
                selfspec_refuse("position " + std::to_string(pos) + " of sequence " + std::to_string(span.seq_id) +
                    " is shared with another sequence of the batch; in place, write it in one of them");
            }
        }
    }
}

void selfspec_require_place(const selfspec_facts & facts, const selfspec_held & held, const selfspec_rows & rows,
        const std::vector<selfspec_span> & spans, const selfspec_pass & pass) {
    if (!facts.has_memory) {
        // attention over the batch alone, as in diffusion models
        const bool from_0 = std::all_of(spans.begin(), spans.end(), [](const auto & s) { return s.first == 0; });
        if (!from_0 || pass.in_place || pass.enter_at != -1 || !pass.hidden_at.empty()) {
            selfspec_refuse(architecture(facts) + " keeps no K/V: it decodes whole batches from position 0, without hidden states",
                SELFSPEC_UNSUPPORTED);
        }
        return;
    }
    if (pass.in_place && !(facts.memory_bits & SELFSPEC_MEMORY_IN_PLACE)) {
        selfspec_refuse(architecture(facts) + ": K/V cannot be rewritten in place", SELFSPEC_UNSUPPORTED);
    }
    if (rows.has_shared() && (pass.in_place || !(facts.memory_bits & SELFSPEC_MEMORY_ROLLBACK))) {
        selfspec_refuse(architecture(facts) + ": rows of several sequences need a memory that takes tokens back, and fresh cells",
            SELFSPEC_UNSUPPORTED);
    }
    for (const auto & span : spans) {
        selfspec_require_span(held, span, pass.in_place);
    }
    if (pass.in_place && spans.size() > 1) {
        selfspec_require_own_cells(held, spans);
    }
}
