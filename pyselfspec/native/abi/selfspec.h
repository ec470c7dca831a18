// The C interface of pyselfspec, exported from the patched libllama: decode a batch with a layer mask.
//
// Flat on purpose: one struct is passed, the arguments of a pass, and bindings in another language copy its layout only.
// Given a session from selfspec_init(), no function throws or aborts on bad arguments: a function that takes a session and
// returns a status other than SELFSPEC_OK leaves a message in selfspec_error(). A session belongs to one llama_context and,
// like the context, may be used by one thread at a time; selfspec_stop_passes() is the exception.

#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32) && !defined(__MINGW32__)
#    define SELFSPEC_API __declspec(dllexport)
#else
#    define SELFSPEC_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

struct llama_context;
struct llama_model;
struct llama_sampler;
struct llama_token_data_array;
struct llama_vocab;
struct selfspec_session;

// The largest value of selfspec_exact_width(): in a pass over at most this many rows, each row may get results that are
// bit-identical to those of a pass over that row alone.
#define SELFSPEC_EXACT_WIDTH 32

// A mask is one byte per block. A set bit skips this part of the block.
enum selfspec_part {
    SELFSPEC_SKIP_ATTN = 1,
    SELFSPEC_SKIP_FFN  = 2,
};

// The result of a pass for each row with an output.
enum selfspec_head {
    SELFSPEC_HEAD_LOGITS = 0, // logits, read with llama_get_logits_ith() as after llama_decode()
    SELFSPEC_HEAD_BEST   = 1, // the most likely token only, found on the head's device, read with selfspec_argmax()
};

enum selfspec_status {
    SELFSPEC_OK              =   0,
    SELFSPEC_FULL            =   1, // no free K/V cells for the batch
    SELFSPEC_ABORTED         =   2, // the pass was stopped: selfspec_stop_passes(), SIGINT, or the context's abort callback
    SELFSPEC_BAD_ARGUMENT    =  -1,
    SELFSPEC_FAILED          =  -3, // allocation or computation failed
    SELFSPEC_NO_TOKEN        =  -4, // a sampler has no token left to draw
    SELFSPEC_LIMIT           =  -5, // following a grammar takes too long
    SELFSPEC_UNSUPPORTED     = -10, // the architecture or block does not support the request
};

// What holds for a context and its memory, see selfspec_memory().
enum selfspec_memory_bits {
    SELFSPEC_MEMORY_ROLLBACK = 1, // any tail of a sequence can be removed
    SELFSPEC_MEMORY_IN_PLACE = 2, // K/V of existing cells can be rewritten
    SELFSPEC_MEMORY_SCATTER  = 4, // results do not depend on where the cells of a sequence are, as long as they are in order
    SELFSPEC_MEMORY_STATES   = 8, // there are recurrent states, which can be saved and restored
    SELFSPEC_MEMORY_CAUSAL   = 16, // a row sees only the rows before it
};

// The build id, "VERSION-HASH": the version of the pinned llama.cpp and a hash of the pin, the patches and the native
// sources. The Python package compares it with its own. The string is static.
SELFSPEC_API const char * selfspec_build_id(void);

// llama.cpp's log, for the whole process. selfspec_log_take() installs our log callback, after which the log is silent;
// selfspec_log_show() switches its output to stderr on or off. selfspec_log_error() returns the first error that llama.cpp
// logged in the calling thread since the thread's last selfspec_log_forget(), or ""; the string belongs to the thread and is
// valid until the thread's next error or selfspec_log_forget().
SELFSPEC_API void         selfspec_log_take(void);
SELFSPEC_API void         selfspec_log_show(bool shown);
SELFSPEC_API const char * selfspec_log_error(void);
SELFSPEC_API void         selfspec_log_forget(void);

// Create a session for a context, or return NULL when ctx is NULL or memory ran out. The caller owns the session and frees
// it with selfspec_free() before the context. selfspec_free(NULL) does nothing.
SELFSPEC_API struct selfspec_session * selfspec_init(struct llama_context * ctx);
SELFSPEC_API void                      selfspec_free(struct selfspec_session * session);

// Return the message of the session's last call that could fail, "" if that call succeeded. Never NULL. The string belongs to
// the session and is valid until its next call.
SELFSPEC_API const char * selfspec_error(const struct selfspec_session * session);

// Write to out[i] which parts of block i a mask may skip, as selfspec_part bits. n_layer is the length of out and must be the
// model's number of blocks. Returns a selfspec_status.
SELFSPEC_API int32_t selfspec_mask_support(struct selfspec_session * session, uint8_t * out, int32_t n_layer);

// Return 1 when a pass can copy out the states that enter block il and a later pass can start from them, rewriting K/V of
// the blocks from il on in place; 0 when the architecture or the memory does not allow that. Negative: a selfspec_status.
SELFSPEC_API int32_t selfspec_can_enter(struct selfspec_session * session, int32_t il);

// Return 1 when selfspec_decode() accepts a list of tokens in `among`, 0 when it does not. That needs a kernel of ours for the
// head's weights, and a head that ends in a product with them. Negative: a selfspec_status.
SELFSPEC_API int32_t selfspec_can_shorten(struct selfspec_session * session);

// Return the selfspec_memory_bits of the context's memory. Negative: a selfspec_status.
SELFSPEC_API int32_t selfspec_memory(struct selfspec_session * session);

// Return the length that sequence seq_id can be rolled back to when n tokens should stay: n, or 0 when it must start anew,
// because the memory cannot remove this tail or the sliding window before position n has lost tokens. Negative: a
// selfspec_status.
SELFSPEC_API int32_t selfspec_can_keep(struct selfspec_session * session, int32_t seq_id, int32_t n);

// Remove the tokens of a sequence from position n on. Returns a selfspec_status; SELFSPEC_UNSUPPORTED, without a change, where
// selfspec_can_keep() returns less than n, and SELFSPEC_FAILED, with an empty sequence, where a state cannot be computed again.
// Stopping passes does not stop it.
SELFSPEC_API int32_t selfspec_keep(struct selfspec_session * session, int32_t seq_id, int32_t n);

// Return the most tokens that can be removed directly after a pass, once: those of the pass but the first, at most the number
// of snapshots that the context keeps of a recurrent state (n_rs_seq), or 15 after selfspec_replay_for(). INT32_MAX where any
// tail can be removed. Negative: a selfspec_status.
SELFSPEC_API int32_t selfspec_max_rollback(struct selfspec_session * session);

// Keep the inputs of each short pass and the state before it instead of snapshots, so that a removal computes the state again.
// For a context with twice n_seq sequences, whose upper half then holds these states and no tokens. Returns a selfspec_status.
SELFSPEC_API int32_t selfspec_replay_for(struct selfspec_session * session, int32_t n_seq);

// Let sequence `copy`, which must be empty, hold the tokens of sequence seq_id. Returns a selfspec_status.
SELFSPEC_API int32_t selfspec_fork(struct selfspec_session * session, int32_t seq_id, int32_t copy);

// A checkpoint: the recurrent state of a sequence, without its K/V. selfspec_state_size() returns its number of bytes, 0 where
// there is none; selfspec_save_state() copies it to `out`. While the sequence still holds the K/V of its first n tokens,
// selfspec_load_state() goes back to the checkpoint that was made when it held n tokens; the later ones are removed. Size is
// the number of bytes of the array. They return a selfspec_status; after SELFSPEC_FAILED from selfspec_load_state() the
// sequence is empty.
SELFSPEC_API int64_t selfspec_state_size(struct selfspec_session * session, int32_t seq_id);
SELFSPEC_API int32_t selfspec_save_state(struct selfspec_session * session, int32_t seq_id, uint8_t * out, int64_t size);
SELFSPEC_API int32_t selfspec_load_state(
        struct selfspec_session * session, int32_t seq_id, const uint8_t * state, int64_t size, int32_t n);

// Return 1 when removals can compute the recurrent states of the model again (selfspec_replay_for), 0 when they cannot.
SELFSPEC_API int32_t selfspec_model_replays(const struct llama_model * model);

// Return the bytes of the recurrent state of one sequence, 0 for a model without one. A context holds one state for each
// sequence, and as many more as it keeps snapshots.
SELFSPEC_API int64_t selfspec_model_state_bytes(const struct llama_model * model);

// Reserve adjacent cells for the at most n tokens that sequence seq_id will hold; other sequences are placed elsewhere as long
// as there is room. n < 0: the length is unknown, and an earlier reservation ends. Returns a selfspec_status.
SELFSPEC_API int32_t selfspec_reserve(struct selfspec_session * session, int32_t seq_id, int32_t n);

// Return 1 when the indices of the sequence's cells ascend with its positions, so that its results are those of the sequence
// alone in the cache; 0 when there was no room for that and its cells cannot be moved (on a GPU, without flash attention, or
// where another cache mirrors them). Removing the tokens from the misplaced one on restores the order. Negative: a
// selfspec_status.
SELFSPEC_API int32_t selfspec_in_order(struct selfspec_session * session, int32_t seq_id);

// Return how many times cells were moved to keep that order. Negative: a selfspec_status.
SELFSPEC_API int64_t selfspec_n_moves(struct selfspec_session * session);

// Return the largest number of rows for which the results of a row do not depend on the other rows of its batch or on the
// number of threads. With SELFSPEC_MEMORY_SCATTER they do not depend on other sequences in the cache either; without it, this
// holds for a sequence that is alone in the cache. 0: no promise, because a device other than the CPU may compute, our kernels
// are switched off or do not support this processor, or the architecture sums over the rows of a batch. At most 1 without
// SELFSPEC_MEMORY_CAUSAL.
// Negative: a selfspec_status.
SELFSPEC_API int32_t selfspec_exact_width(struct selfspec_session * session);

// Return 1 when the promise of selfspec_exact_width() holds for any number of rows, so that the results do not depend on how a
// prompt is split into batches; 0 when it does not, for example because wide batches use upstream's products for weights
// without a kernel of ours. Negative: a selfspec_status.
SELFSPEC_API int32_t selfspec_exact_prompts(struct selfspec_session * session);

// Return the bytes that 256 weights of a ggml_type take in RAM where eight rows of them are interleaved for this CPU; 0 where they
// stay as they are in the file. Types that take more than in the file are interleaved in models that a thread loads while it may
// let them grow.
SELFSPEC_API int32_t selfspec_interleaved_bytes(int32_t type);
SELFSPEC_API void    selfspec_let_weights_grow(bool may);

// Return the memory of the graphs that are kept prepared for narrow batches, in bytes over all devices.
SELFSPEC_API size_t selfspec_graph_bytes(const struct selfspec_session * session);

// Stop passes of the session (true), or allow them again (false). While stopped, passes return SELFSPEC_ABORTED: the running
// one after its current operation on the CPU, later ones after their first. Calls are counted, so each call with true needs
// one with false. May be called from any thread.
SELFSPEC_API void selfspec_stop_passes(struct selfspec_session * session, bool stopped);

// Set whether SIGINT ends passes of this session with SELFSPEC_ABORTED, until the next call. Made for languages that handle a
// signal only after a call has returned. A SIGINT that arrived earlier is ignored, and so is one during llama_decode() on the
// same context. The handler of the language is still called: install it first, and call this again before each pass if it may
// have been replaced. Does nothing where SIGINT is ignored or ends the process. Only one session of a process at a time may
// heed SIGINT.
SELFSPEC_API void selfspec_heed_interrupts(struct selfspec_session * session, bool heed);

// Return how many graphs have been built without being computed, to check that they do what their pass requests. Each
// combination of mask, entry and copied states is checked once.
SELFSPEC_API int64_t selfspec_n_graph_checks(const struct selfspec_session * session);

// The arguments of a pass. A field that is 0 or NULL asks for nothing. The arrays are read during the call only.
struct selfspec_decode_args {
    int32_t n_tokens; // number of rows, each a token of one or more sequences at a position

    // [n_tokens] ids. May be NULL when hidden is given and the architecture reads ids only at its input
    const int32_t * tokens;

    // [sum of n_seq_ids] the sequences of each row, row after row
    const int32_t * seq_ids;

    // [n_tokens] how many sequences each row belongs to, or NULL: one each. A row of several sequences takes one cell, which
    // they share; their earlier tokens must be equal, and later rows see it in each of them. Needs SELFSPEC_MEMORY_ROLLBACK,
    // and cannot be combined with in_place
    const int32_t * n_seq_ids;

    // [n_tokens] the position of each row in its sequences. For every sequence in the batch the positions are consecutive and
    // continue the sequence
    const int32_t * pos;

    // [n_tokens] 1: compute an output for the row
    const uint8_t * outputs;

    // [n_tokens, n_embd] states entering the first block of which the mask runs a part, or NULL
    const float * hidden;

    // [n_layer] selfspec_part bits, or NULL: run everything
    const uint8_t * mask;
    int32_t n_layer;

    // [n_hidden_at] copy the states entering these blocks to hidden_out (1..n_layer; n_layer: the states leaving the last
    // block; n_layer + 1: the states that the model's own next-token-prediction blocks or Gemma 4's assistants read), or NULL
    const int32_t * hidden_at;
    int32_t n_hidden_at;

    // [n_tokens, sum of widths] receives the states, those of one row side by side: n_embd values of each block, at n_layer + 1
    // as many as the head reads
    float * hidden_out;

    // a selfspec_head
    int32_t head;

    // [n_among] ids in ascending order, or NULL: with SELFSPEC_HEAD_BEST, find the best of these tokens only, reading only
    // their rows of the head's weights; selfspec_logits() returns their logits. At most SELFSPEC_EXACT_WIDTH outputs, and only
    // where selfspec_can_shorten() is 1
    const int32_t * among;
    int32_t n_among;

    // the number of most likely tokens whose logits are wanted, or 0: all. Logits of others may be -inf then; those that are not have
    // the bits that they have without it
    int32_t n_best;

    // rewrite K/V of the cells that already hold these positions instead of taking free cells. No two rows may write one cell
    bool in_place;

    // compute with the weights of this model instead of those of the context's, of the same architecture and sizes and without
    // adapters, or NULL. It must live as long as the session
    const struct llama_model * weights;

    // for selfspec_draft_decode(): of the blocks that predict the token after next, the one that runs, counted from 0; each
    // has K/V of its own in the cells that all share. 0 for a head in a file of its own
    int32_t nextn;
};

// Decode rows, and return a selfspec_status.
// A recurrent mixer that a mask skips neither advances nor clears its state. A sequence must therefore skip the same mixers in
// all its passes; otherwise it reads the state that an earlier sequence left.
// After a status other than SELFSPEC_OK no row has an output, and the outputs of earlier passes are gone too. If the pass had
// begun, its rows are removed from the memory, with in_place also from sequences that share their cells; a memory without
// SELFSPEC_MEMORY_ROLLBACK then holds nothing of these sequences any more.
SELFSPEC_API int32_t selfspec_decode(struct selfspec_session * session, const struct selfspec_decode_args * args);

// Adjacent rows of one picture.
struct selfspec_picture_rows {
    int32_t         n;         // 1 to n_batch
    const float   * states;    // [n, width of the model's input] enter the first block
    const int32_t * grid;      // [n, 2] row and column of each in the picture, where RoPE has several dimensions (M-RoPE); else NULL
    int32_t         n_before;  // rows of the same picture that the sequence holds already
    int32_t         seq_id;
    int32_t         pos;       // of the first row, the next one of the sequence
    bool            is_causal; // whether a row attends only to itself and the rows before it, and not to all rows
};

// Decode rows of a picture as one pass of the whole model, without outputs. Returns a selfspec_status; a pass that fails or is
// stopped leaves none of its rows. Each row takes a cell and a position. With M-RoPE the text after a picture continues in
// RoPE after the larger of its sides, which the cells remember, also in copies and saved states.
SELFSPEC_API int32_t selfspec_decode_states(struct selfspec_session * session, const struct selfspec_picture_rows * rows);

// Compute the n tokens of a text in a context that was made for embeddings, alone in its memory, and wait for the result, which
// llama_get_embeddings() then returns. Returns a selfspec_status.
SELFSPEC_API int32_t selfspec_embed(struct selfspec_session * session, int32_t n_tokens, const int32_t * tokens);

// A draft head is a separate model that reads hidden states of its target. The next two functions need the session of a
// head's context: the context of an EAGLE-3 head, which uses the embedding and output weights of the context given as
// `ctx_other` where its file has none; a context of type LLAMA_CONTEXT_TYPE_MTP on the target model; or the context of an
// assistant for Gemma 4, which attends to the K/V of `ctx_other` and adds none, so that all rows of a sequence have one
// position, the next one of the target. Its target must have one stream of cells. The context of a DFlash head, which uses
// weights of `ctx_other` as EAGLE-3 does, is made with the kind of attention that its file says.

// Fuse states of the target with the encoder of an EAGLE-3 head, and return a selfspec_status.
//   features   [n_rows, n_features] states of the target's blocks, those of one row side by side; n_rows is at most n_ubatch
//   states     [n_rows, n_embd] receives the fused states
SELFSPEC_API int32_t selfspec_draft_fuse(struct selfspec_session * session, int32_t n_rows, const float * features, float * states);

// Decode rows of the head, each a token and the states that led to it, and return a selfspec_status. With SELFSPEC_HEAD_BEST,
// a head with a vocabulary of its own looks at its own tokens only, and among must be NULL. Fields that are not those of
// selfspec_decode():
//   n_seq_ids, mask, hidden_at  not read
//   hidden      [n_tokens, n_embd] fused states, the target's at n_layer + 1, or hidden_out of an earlier row; as wide as the
//               target's for heads that take its states as they are
//   hidden_out  [number of outputs, n_embd] receives the states after rows with an output, the input of later rows
// Rows of a DFlash head belong to one sequence and have either states [n_tokens, n_features], of the target's blocks as for
// selfspec_draft_fuse() and without outputs, whose K/V are kept; or tokens, all with outputs: one after those states, and mask
// tokens. The caller removes the latter. hidden_out is NULL; or, for tokens and a DSpark head with confidence, [n_tokens]
// receives the predicted probabilities that the tokens drafted by the rows are accepted.
SELFSPEC_API int32_t selfspec_draft_decode(struct selfspec_session * session, const struct selfspec_decode_args * args);

// After a pass over a block of a DFlash2 head, make the logits of a row the scores of its candidates when they follow a token:
// -inf for all other tokens. Return a selfspec_status. Rows are scored in order, from row 1.
//   previous   the token before the row; from row 2, a candidate of the row before
SELFSPEC_API int32_t selfspec_draft_score(struct selfspec_session * session, int32_t row, int32_t previous);

// Return the most likely token after a row with an output, and write its softmax probability to *p unless p is NULL. Of equal
// logits the lowest id wins, except after SELFSPEC_HEAD_BEST, where the device decides. After a pass with `among` the
// probability is relative to the listed tokens, and after one with n_best to those whose logits were computed. May also be called
// after llama_decode().
// Negative: a selfspec_status, because the row has no output or its logits are not numbers.
SELFSPEC_API int32_t selfspec_argmax(struct selfspec_session * session, int32_t row, float * p);

// Copy the logits after a row with an output to logits [n_vocab], and return a selfspec_status. After a pass with `among` those
// of tokens outside the list are -inf, and after one with n_best the logits that were not computed. May also be called after
// llama_decode().
SELFSPEC_API int32_t selfspec_logits(struct selfspec_session * session, int32_t row, float * logits);

// Draw a token from a row's logits with a sampler chain, let the chain accept it, and return it. n_kept: the chain begins by
// leaving out all but so many of the most likely tokens; 0: it may need all of them. With 1, the row may also be one of a pass with
// SELFSPEC_HEAD_BEST. Negative: a selfspec_status, and the chain has accepted nothing; SELFSPEC_NO_TOKEN when grammar and filters
// leave no token to draw.
SELFSPEC_API int32_t selfspec_sample(struct selfspec_session * session, struct llama_sampler * chain, int32_t row, int32_t n_kept);

// Draw a token as selfspec_sample() does, from logits [n_vocab] of any origin. Without a session, hence without a message.
SELFSPEC_API int32_t selfspec_sample_logits(struct llama_sampler * chain, const float * logits, int32_t n_vocab, int32_t n_kept);

// Let a chain accept a token, and return a selfspec_status: SELFSPEC_BAD_ARGUMENT when it is no chain, or its grammar does
// not allow the token, and the chain has then accepted nothing. Without a session, hence without a message.
SELFSPEC_API int32_t selfspec_accept(struct llama_sampler * chain, int32_t token);

// Call llama_sampler_apply() on a sampler that may throw, and return a selfspec_status instead of an exception.
SELFSPEC_API int32_t selfspec_apply(struct llama_sampler * sampler, struct llama_token_data_array * candidates);

// Create a sampler that rules out the tokens a grammar (GBNF, with a rule "root") does not allow next. The caller owns it, or
// the chain it is added to. The rest of the chain may use only the n_wanted most likely tokens that are allowed (0: all), and
// must not draw tokens whose logits are more than `gap` below the best one's; less likely tokens may be dropped without asking
// the grammar about them. The sampler cannot be cloned. NULL: an argument or the grammar is not valid, and the log has the reason.
SELFSPEC_API struct llama_sampler * selfspec_sampler_init_grammar(
        const struct llama_vocab * vocab, const char * text, int32_t n_wanted, float gap);

// An index of n-grams over a growing text: what followed the end of a text before. Its arrays of tokens may be changed after a
// call. An index belongs to one thread while it is extended; several threads may read it.
struct selfspec_ngrams;

// Create an index of the n-grams of these lengths, in ascending order and at most 8, without those before lengths[first]. Tokens
// after n_most, which is at most 2^24 - 1, are ignored. The caller owns it; selfspec_ngrams_free(NULL) does nothing. NULL: an
// argument is not valid, or memory ran out.
SELFSPEC_API struct selfspec_ngrams * selfspec_ngrams_init(const int32_t * lengths, int32_t n_lengths, int32_t first, int32_t n_most);
SELFSPEC_API void                     selfspec_ngrams_free(struct selfspec_ngrams * ngrams);

// Append n tokens to the text, and return a selfspec_status; SELFSPEC_FAILED when memory ran out, and nothing has changed then.
// Tokens below 0 are no text; of these, -1 stands between texts and follows nothing.
SELFSPEC_API int32_t selfspec_ngrams_extend(struct selfspec_ngrams * ngrams, const int32_t * tokens, int32_t n);

// Look up a chain of at most n_max tokens that may follow a text, and return their number. Negative: a selfspec_status.
//   own              the index of the text itself
//   earlier, others  indexes of other texts, of the same lengths, or NULL. Their tokens count only after a longer match, and if
//                    they are more likely accepted
//   end              [n_end] the last tokens of the text
//   n_new            how many of them are new: they are appended to own, as selfspec_ngrams_extend() does, after it was learned
//                    how many of the last chain they are; the chain is then kept for the next call. 0: only look up
//   counts           [n_lengths, 4, 2] how many tokens from the text itself were right, and how many there were, by the length of
//                    the match and its sureness: 0 for one match, 1 for matches that differ, 2 if most agree, 3 if all agree
//   other_counts     likewise of tokens from other texts
//   forget           weight of an outcome relative to the next one of its kind
//   chance_min       the chain ends where the product of its chances falls below. A first token that is less likely is only kept to
//                    be learned from
//   tokens, chances  [n_max] receive the tokens, and how likely each is right if those before it are
SELFSPEC_API int32_t selfspec_ngrams_chain(
              struct selfspec_ngrams * own,
        const struct selfspec_ngrams * earlier,
        const struct selfspec_ngrams * others,
                       const int32_t * end,
                             int32_t   n_end,
                             int32_t   n_new,
                              double * counts,
                              double * other_counts,
                              double   forget,
                              double   chance_min,
                             int32_t   n_max,
                             int32_t * tokens,
                              double * chances);

// Look up at most n_max tokens other than this one that have followed the end of a text, after longer matches first and then
// the most frequent first, and return their number. Negative: a selfspec_status.
//   found  [n_max, 3] receives the token, the index of the length, the sureness
SELFSPEC_API int32_t selfspec_ngrams_others(
        const struct selfspec_ngrams * ngrams, const int32_t * end, int32_t n_end, int32_t token, int32_t n_max, int32_t * found);

#ifdef __cplusplus
}
#endif
