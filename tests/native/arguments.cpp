// The checks of a decode's arguments, without a model: what each of them refuses, and that everything else is let through.
#include "session/arguments.h"

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>

namespace {

int n_failures = 0;

void expect(const char * what, int32_t status, const char * part, const std::function<void()> & check) {
    try {
        check();
    } catch (const selfspec_failure & e) {
        if (e.status != status || e.text.find(part) == std::string::npos) {
            fprintf(stderr, "%s: status %d, %s\n", what, e.status, e.text.c_str());
            n_failures++;
        }
        return;
    }
    if (status != SELFSPEC_OK) {
        fprintf(stderr, "%s: nothing was refused\n", what);
        n_failures++;
    }
}

// Sequences that hold positions 0 to their last; all share the cells of the first n_shared.
struct held_of : selfspec_held {
    std::map<int32_t, int64_t> lasts;
    int64_t                    n_shared = 0;
    int64_t                    window   = 0; // positions below it are lost

    int64_t first(int32_t seq_id) const override { return last(seq_id) < 0 ? -1 : window; }
    int64_t last(int32_t seq_id) const override {
        const auto it = lasts.find(seq_id);
        return it == lasts.end() ? -1 : it->second;
    }
    bool    holds_window(int32_t, int64_t pos) const override { return pos >= window; }
    int64_t cell(int32_t seq_id, int64_t pos) const override { return pos < n_shared ? pos : 1000*(seq_id + 1) + pos; }
};

struct batch {
    std::vector<int32_t> tokens  = { 5, 6, 7 };
    std::vector<int32_t> seq_ids = { 0, 0, 0 };
    std::vector<int32_t> counts  = { 1, 1, 1 };
    std::vector<int32_t> pos     = { 0, 1, 2 };
    std::vector<uint8_t> outputs = { 1, 1, 1 };

    selfspec_rows rows() const {
        return { (int32_t) pos.size(), tokens.data(), seq_ids.data(), counts.data(), pos.data(), outputs.data() };
    }
};

selfspec_facts usual() {
    selfspec_facts facts;
    facts.architecture  = "some";
    facts.n_layer       = 4;
    facts.n_vocab       = 100;
    facts.n_batch       = 64;
    facts.n_ubatch      = 64;
    facts.n_seq_max     = 4;
    facts.n_outputs_max = 64;
    facts.memory_bits   = SELFSPEC_MEMORY_ROLLBACK | SELFSPEC_MEMORY_IN_PLACE;
    return facts;
}

void test_rows() {
    const auto require = [](const batch & b, const selfspec_facts & facts) {
        return [&b, facts] { selfspec_require_rows(facts, b.rows()); };
    };
    const batch fine;
    expect("rows", SELFSPEC_OK, "", require(fine, usual()));

    for (const int32_t token : { -1, 100 }) {
        batch b;
        b.tokens[1] = token;
        expect("token", SELFSPEC_BAD_ARGUMENT, "allowed is 0 to 99", require(b, usual()));
    }
    for (const int32_t seq_id : { -1, 4 }) {
        batch b;
        b.seq_ids[2] = seq_id;
        expect("sequence", SELFSPEC_BAD_ARGUMENT, "allowed is 0 to 3", require(b, usual()));
    }
    batch nowhere;
    nowhere.counts[0] = 0;
    expect("row without a sequence", SELFSPEC_BAD_ARGUMENT, "row 0 is in no sequence", require(nowhere, usual()));

    const auto with = [](const std::function<void(selfspec_facts &)> & change) {
        selfspec_facts facts = usual();
        change(facts);
        return facts;
    };
    expect("wide", SELFSPEC_BAD_ARGUMENT, "n_batch = 2", require(fine, with([](auto & f) { f.n_batch = 2; })));
    expect("special", SELFSPEC_UNSUPPORTED, "special type", require(fine, with([](auto & f) { f.is_special = true; })));
    expect("encoder", SELFSPEC_UNSUPPORTED, "has an encoder", require(fine, with([](auto & f) { f.has_encoder = true; })));
    expect("outputs", SELFSPEC_BAD_ARGUMENT, "n_outputs_max = 2", require(fine, with([](auto & f) { f.n_outputs_max = f.n_seq_max = 2; })));
    const auto narrow = [](auto & f) { f.n_ubatch = 2; f.is_causal = false; };
    expect("not causal", SELFSPEC_BAD_ARGUMENT, "n_ubatch = 2", require(fine, with(narrow)));
    expect("no rows", SELFSPEC_BAD_ARGUMENT, "n_tokens is 0", [] { selfspec_require_rows(usual(), { 0, nullptr, nullptr, nullptr, nullptr, nullptr }); });
}

void test_pass() {
    const batch b;
    float       place[8] = {};
    const auto require = [&](const selfspec_pass & pass, const selfspec_states & states) {
        return [&, pass, states] { selfspec_require_pass(usual(), b.rows(), states, pass); };
    };
    expect("pass", SELFSPEC_OK, "", require({}, { nullptr, nullptr }));

    selfspec_pass pass;
    pass.mask = { 0, 4, 0, 0 };
    expect("mask", SELFSPEC_BAD_ARGUMENT, "block 1: mask is 4", require(pass, { nullptr, nullptr }));
    pass = {};
    pass.head = 2;
    expect("head", SELFSPEC_BAD_ARGUMENT, "head is 2", require(pass, { nullptr, nullptr }));
    pass = {};
    pass.n_among = 1;
    expect("logits of a list", SELFSPEC_BAD_ARGUMENT, "not for logits", require(pass, { nullptr, nullptr }));
    for (const int32_t il : { 0, 5 }) {
        pass = {};
        pass.hidden_at = { il };
        expect("block to leave", SELFSPEC_BAD_ARGUMENT, "allowed is 1 to 4", require(pass, { nullptr, place }));
    }
    pass.hidden_at = { 2 };
    expect("no place for states", SELFSPEC_BAD_ARGUMENT, "with a place to copy to", require(pass, { nullptr, nullptr }));
    pass.enter_at = 3;
    expect("states enter and leave", SELFSPEC_OK, "", require(pass, { place, place }));
    pass.has_tokens = false;
    expect("below the entry", SELFSPEC_BAD_ARGUMENT, "below block 3", require(pass, { place, place }));
    for (const int32_t il : { 0, 4 }) {
        pass = {};
        pass.enter_at = il;
        expect("entry", SELFSPEC_BAD_ARGUMENT, "hidden states need a mask", require(pass, { place, nullptr }));
    }
}

void test_among() {
    const batch b;
    const auto require = [&](std::vector<int32_t> ids, bool is_cpu_only) {
        return [&b, ids, is_cpu_only] {
            selfspec_facts facts = usual();
            facts.is_cpu_only = is_cpu_only;
            selfspec_require_among(facts, { ids.data(), (int32_t) ids.size() }, b.rows());
        };
    };
    expect("a list", SELFSPEC_OK, "", require({ 0, 5, 99 }, true));
    expect("another device", SELFSPEC_UNSUPPORTED, "another device than the CPU", require({ 0, 5 }, false));
    for (const auto & ids : std::vector<std::vector<int32_t>>({ { 5, 4 }, { 5, 5 }, { -1, 2 }, { 99, 100 } })) {
        expect("ids", SELFSPEC_BAD_ARGUMENT, "in rising order", require(ids, true));
    }
    expect("no list", SELFSPEC_OK, "", [&] { selfspec_require_among(usual(), { nullptr, 0 }, b.rows()); });
}

void test_place() {
    held_of held;
    held.lasts = { { 0, 9 }, { 1, 9 } };
    selfspec_facts facts = usual();
    const auto require = [&](const batch & b, bool in_place) {
        return [&, in_place] {
            selfspec_pass pass;
            pass.in_place = in_place;
            selfspec_require_place(facts, held, b.rows(), selfspec_spans_of(b.rows()), pass);
        };
    };
    batch b;
    b.pos = { 10, 11, 12 };
    expect("next rows", SELFSPEC_OK, "", require(b, false));
    expect("beyond the end, in place", SELFSPEC_BAD_ARGUMENT, "held 0 to 9", require(b, true));
    b.pos = { 7, 8, 9 };
    expect("held rows", SELFSPEC_BAD_ARGUMENT, "the next batch starts at 10, not at 7", require(b, false));
    expect("held rows in place", SELFSPEC_OK, "", require(b, true));
    b.pos = { 7, 9, 8 };
    expect("positions", SELFSPEC_BAD_ARGUMENT, "sequence 0 has 9 after 7", require(b, true));

    b.seq_ids = { 0, 1, 0 };
    b.pos     = { 8, 8, 9 };
    expect("cells of their own", SELFSPEC_OK, "", require(b, true));
    held.n_shared = 9;
    expect("one cell twice", SELFSPEC_BAD_ARGUMENT, "position 8 of sequence 1 is shared", require(b, true));
    held.n_shared = 8;
    expect("cells that nobody writes are shared", SELFSPEC_OK, "", require(b, true));

    held.window = 9;
    b.seq_ids = { 0, 0, 0 };
    b.pos     = { 10, 11, 12 };
    expect("window", SELFSPEC_OK, "", require(b, false));
    held.window = 11;
    expect("lost window", SELFSPEC_UNSUPPORTED, "no longer holds all", require(b, false));

    held.window = 0;
    facts.memory_bits = 0;
    b.pos = { 7, 8, 9 };
    expect("a memory that writes nothing in place", SELFSPEC_UNSUPPORTED, "in place", require(b, true));
    b.seq_ids = { 0, 1, 0, 0 };
    b.counts  = { 2, 1, 1 };
    b.pos     = { 10, 11, 12 };
    expect("shared rows", SELFSPEC_UNSUPPORTED, "rows of several sequences", require(b, false));

    facts.has_memory = false;
    b = {};
    expect("no memory", SELFSPEC_OK, "", require(b, false));
    b.pos = { 1, 2, 3 };
    expect("not from 0", SELFSPEC_UNSUPPORTED, "keeps no K/V", require(b, false));
}

}  // namespace

int main() {
    test_rows();
    test_pass();
    test_among();
    test_place();
    expect("blocks", SELFSPEC_BAD_ARGUMENT, "has 4 blocks, not 3", [] { selfspec_require_n_layer(usual(), 3); });
    if (n_failures == 0) {
        puts("as expected");
    }
    return n_failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
