// A draft head: a model that reads the hidden states of another one. See draft.cpp.

#pragma once

#include "session/arguments.h"

#include <cstdint>

struct llama_context;
struct llama_model;
struct selfspec_session;

class selfspec_draft_head {
public:
    explicit selfspec_draft_head(selfspec_session & session);

    void    fuse  (int32_t n_rows, const float * features, float * states);
    void    decode(const selfspec_decode_args & args);
    void    score (int32_t row, int32_t previous);

private:
    void    require_head() const;
    int32_t n_candidates() const;
    bool    has_confidence() const;
    void    require_block(const selfspec_request & asked) const;
    void    require_nextn(const selfspec_pass & pass) const;
    void    copy_left    (const selfspec_rows & rows, float * out) const;

    selfspec_session  & session;
    llama_context     & ctx;
    const llama_model & model;
    const bool          fuses;  // EAGLE-3
    const bool          blocks; // DFlash, DSpark, DFlash2
};
