// The C interface of pyselfspec, exported from the patched libllama: decode a batch with a layer mask.
//
// Flat on purpose: no struct crosses the border, so nothing has to be mirrored in another language.
// With a session from selfspec_init(), no function throws, and none aborts on bad arguments: a status other than
// SELFSPEC_OK comes with a sentence in selfspec_error(). A session belongs to one llama_context and, like it, to one
// thread at a time.

#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#    define SELFSPEC_API __declspec(dllexport)
#else
#    define SELFSPEC_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

struct llama_context;
struct llama_sampler;
struct llama_token_data_array;
struct llama_vocab;
struct selfspec_session;

// A pass over so many rows gives each of them the bits of a pass over it alone, see selfspec_exact_width().
#define SELFSPEC_EXACT_WIDTH 32

// One byte per block. A set bit means: skip this part of the block.
enum selfspec_part {
    SELFSPEC_SKIP_ATTN = 1,
    SELFSPEC_SKIP_FFN  = 2,
};

// What the head leaves behind for the rows with an output.
enum selfspec_head {
    SELFSPEC_HEAD_LOGITS = 0, // logits, read with llama_get_logits_ith() as after llama_decode()
    SELFSPEC_HEAD_BEST   = 1, // no logits on the host, but selfspec_argmax(), found where the head runs
};

enum selfspec_status {
    SELFSPEC_OK              =   0,
    SELFSPEC_FULL            =   1, // no free K/V cells for the batch
    SELFSPEC_ABORTED         =   2, // the pass was stopped: selfspec_stop_passes(), SIGINT, or the context's abort callback
    SELFSPEC_BAD_ARGUMENT    =  -1,
    SELFSPEC_FAILED          =  -3, // allocation or computation failed
    SELFSPEC_NO_TOKEN        =  -4, // a sampler has no token left to draw
    SELFSPEC_LIMIT           =  -5, // following a grammar takes too long
    SELFSPEC_UNSUPPORTED     = -10, // this architecture or block cannot do what was asked
};

// What a sequence memory can take back, see selfspec_memory().
enum selfspec_memory_bits {
    SELFSPEC_MEMORY_ROLLBACK = 1, // any tail of a sequence can be removed
    SELFSPEC_MEMORY_IN_PLACE = 2, // K/V of existing cells can be rewritten
    SELFSPEC_MEMORY_SCATTER  = 4, // results do not depend on where the cells of a sequence are, as long as they are in order
};

// "<pin>-<hash of patches and native sources>", the same string that the Python package was built with.
SELFSPEC_API const char * selfspec_build_id(void);

// Take over the log of llama.cpp, for the whole process: it is shown on stderr or not at all (as at first), and of every
// thread the first error is kept until the thread forgets it. "" where there was none. The text is the thread's own.
SELFSPEC_API void         selfspec_log_take(void);
SELFSPEC_API void         selfspec_log_show(bool shown);
SELFSPEC_API const char * selfspec_log_error(void);
SELFSPEC_API void         selfspec_log_forget(void);

// NULL when ctx is NULL or memory ran out. Free the session before its context.
SELFSPEC_API struct selfspec_session * selfspec_init(struct llama_context * ctx);
SELFSPEC_API void                      selfspec_free(struct selfspec_session * session);

// The sentence that belongs to the last status other than SELFSPEC_OK. Never NULL.
SELFSPEC_API const char * selfspec_error(const struct selfspec_session * session);

// out[i]: which parts of block i a mask may skip, as selfspec_part bits. n_layer: length of out and mask.
SELFSPEC_API int32_t selfspec_mask_support(struct selfspec_session * session, uint8_t * out, int32_t n_layer);

// 1 when the states entering block il can be copied out and put in again later, with K/V of the blocks from il on
// rewritten in place; 0 when this architecture or memory cannot do that.
SELFSPEC_API int32_t selfspec_can_enter(struct selfspec_session * session, int32_t il);

// 1 when the best token can be looked for among some tokens only, which needs a kernel for the head's weights and a head
// that ends in a product with them.
SELFSPEC_API int32_t selfspec_can_shorten(struct selfspec_session * session);

// selfspec_memory_bits of the context's memory. Negative: a selfspec_status.
SELFSPEC_API int32_t selfspec_memory(struct selfspec_session * session);

// The most tokens, at most n, that sequence seq_id can be rolled back to: n, or 0 where it has to start anew, because
// the memory takes no tail back or a sliding window before position n has lost tokens.
SELFSPEC_API int32_t selfspec_can_keep(struct selfspec_session * session, int32_t seq_id, int32_t n);

// Sequence seq_id will hold at most n tokens: their cells get a place where they follow one another, and other sequences
// stay out of it as long as there is room elsewhere. n < 0: nobody knows how many.
SELFSPEC_API int32_t selfspec_reserve(struct selfspec_session * session, int32_t seq_id, int32_t n);

// 1 when the cells of the sequence ascend with its positions, and hence its results are those that it has alone; 0 when
// there was no room for that and its cells cannot be moved: on a GPU, without flash attention, or beside a draft context
// with the same cells. It is in order again when the tokens from the misplaced one on are removed.
SELFSPEC_API int32_t selfspec_in_order(struct selfspec_session * session, int32_t seq_id);

// How often cells were moved to keep that order. Negative: a selfspec_status.
SELFSPEC_API int64_t selfspec_n_moves(struct selfspec_session * session);

// Up to this many rows, a row's results do not depend on what else is in its batch or on the number of threads. With
// SELFSPEC_MEMORY_SCATTER they do not depend on the other texts in the cache either; without it, only those of a text that is
// alone there are always the same. 0: no promise, because another device than the CPU may compute, our kernels are switched
// off or not made for this processor, or the architecture itself adds up over the rows of a batch.
// Negative: a selfspec_status.
SELFSPEC_API int32_t selfspec_exact_width(struct selfspec_session * session);

// 1 when that holds for any number of rows, so that a prompt gives the same text however it is split. 0 where
// there is no such promise, or where wide batches are upstream's because of weights without a kernel of ours.
// Negative: a selfspec_status.
SELFSPEC_API int32_t selfspec_exact_prompts(struct selfspec_session * session);

// selfspec_exact_width() for products on the CPU with weights of a ggml type. With `fast`, 0 also where such products are exact because
// every row is multiplied by itself: a pass then costs about as much as its rows one by one.
SELFSPEC_API int32_t selfspec_type_width(int32_t type, bool fast);

// Memory of the graphs that are kept prepared for narrow batches, in bytes over all devices.
SELFSPEC_API size_t selfspec_graph_bytes(const struct selfspec_session * session);

// While stopped, no pass of the session finishes: the one that runs ends after the operation it is at, and later ones after
// their first, on the CPU, with SELFSPEC_ABORTED. May be called from any thread. Each call with true needs one with false.
SELFSPEC_API void selfspec_stop_passes(struct selfspec_session * session, bool stopped);

// Whether SIGINT ends passes of this session as well, until the next call. A SIGINT that arrived earlier is ignored; so is one
// during llama_decode() on the same context. For languages that handle signals when a call returns. Their handler is called as before: give it after it was installed, and
// again before each pass where it may have changed. Nothing happens where SIGINT is ignored or ends the process. One session
// of a process at a time may be told so.
SELFSPEC_API void selfspec_heed_interrupts(struct selfspec_session * session, bool heed);

// Graphs built so far only to check what they do. Each mask, entry and copy is checked once.
SELFSPEC_API int64_t selfspec_n_graph_checks(const struct selfspec_session * session);

// Decode n_tokens rows, each a token of some sequence at some position. For every sequence in the batch the positions
// are consecutive and go on where it ends.
//   tokens     [n_tokens] ids. May be NULL when hidden is given and the architecture reads ids only at its input.
//   seq_ids    the sequences of each row, row after row
//   n_seq_ids  [n_tokens] how many these are, or NULL: one each. A row of several sequences takes one cell, which they
//              share; the sequences hold the same until then, and rows behind it see it in any of them. Needs a memory
//              that takes tokens back, and not in_place
//   pos        [n_tokens] the position of each row in its sequences
//   outputs    [n_tokens] 1: the row wants an output
//   hidden     [n_tokens, n_embd] states entering the first block that the mask does not skip whole, or NULL
//   mask       [n_layer] selfspec_part bits, or NULL: run everything
//   hidden_at  [n_hidden_at] copy the states entering these blocks (1..n_layer; n_layer: leaving the last; n_layer + 1:
//              those that the model's own next-token-prediction blocks read) to hidden_out, or NULL
//   hidden_out [n_tokens, n_hidden_at * n_embd] the blocks' states side by side
//   head       a selfspec_head
//   among      [n_among] ids in rising order: SELFSPEC_HEAD_BEST looks at these tokens only, which reads no other rows of
//              the head's weights; or NULL. Up to SELFSPEC_EXACT_WIDTH outputs, and only where selfspec_can_shorten()
//   in_place   rewrite K/V of the cells that hold these positions already, instead of taking fresh cells. No two rows may
//              write the same cell
// A recurrent mixer that a mask skips neither moves nor clears its state: a text has to skip the same ones throughout, or it
// reads what an older text has left there.
// After a status other than SELFSPEC_OK no row has an output, also none of a decode before. Where the pass had begun, its
// rows are gone from the memory, in place also for sequences that share their cells; a memory that takes no tail back holds
// nothing of their sequences any more.
SELFSPEC_API int32_t selfspec_decode(
        struct selfspec_session * session,
                        int32_t   n_tokens,
                  const int32_t * tokens,
                  const int32_t * seq_ids,
                  const int32_t * n_seq_ids,
                  const int32_t * pos,
                  const uint8_t * outputs,
                    const float * hidden,
                  const uint8_t * mask,
                        int32_t   n_layer,
                  const int32_t * hidden_at,
                        int32_t   n_hidden_at,
                          float * hidden_out,
                        int32_t   head,
                  const int32_t * among,
                        int32_t   n_among,
                           bool   in_place);

// A draft head is a model of its own that reads states of another one, its target. The following two need the session of
// a head's context: that of an EAGLE-3 head, which uses the embedding and the output of the context given as `ctx_other`
// where its file has none, or one of type LLAMA_CONTEXT_TYPE_MTP on the target's own model.

// What an EAGLE-3 head makes of the target's states, before it knows a token.
//   features   [n_rows, n_features] states of the target's blocks side by side, n_rows at most n_batch
//   states     [n_rows, n_embd]
SELFSPEC_API int32_t selfspec_draft_fuse(struct selfspec_session * session, int32_t n_rows, const float * features, float * states);

// Decode rows of the head, each a token and the states that led to it. Arguments as in selfspec_decode(); with
// SELFSPEC_HEAD_BEST, a head with tokens of its own looks at these alone, and among is not for it.
//   states     [n_tokens, n_embd] fused, or those that an earlier row left
//   states_out [outputs, n_embd] what the rows with an output leave, for the rows that follow them
SELFSPEC_API int32_t selfspec_draft_decode(
        struct selfspec_session * session,
                        int32_t   n_tokens,
                  const int32_t * tokens,
                  const int32_t * seq_ids,
                  const int32_t * pos,
                  const uint8_t * outputs,
                        int32_t   head,
                  const int32_t * among,
                        int32_t   n_among,
                    const float * states,
                          float * states_out);

// The most likely token after a row with an output and, when p is not NULL, its probability under softmax. Of equal
// logits the lowest id wins, except after SELFSPEC_HEAD_BEST, where the device decides. Where only some tokens were looked
// at, the probability is that among them. Also after llama_decode().
// Negative: a selfspec_status, the row has no output or there is no number in it.
SELFSPEC_API int32_t selfspec_argmax(struct selfspec_session * session, int32_t row, float * p);

// Draw a token with a chain from a row's logits and let the chain accept it. Negative: a selfspec_status, and the chain
// has accepted nothing; SELFSPEC_NO_TOKEN when grammar and filters leave none to draw.
SELFSPEC_API int32_t selfspec_sample(struct selfspec_session * session, struct llama_sampler * chain, int32_t row);

// The same from logits [n_vocab] of any origin, without a session and hence without a sentence.
SELFSPEC_API int32_t selfspec_sample_logits(struct llama_sampler * chain, const float * logits, int32_t n_vocab);

// A chain accepts a token. SELFSPEC_BAD_ARGUMENT when its grammar does not let the token follow; then it has accepted
// nothing. Without a session and hence without a sentence.
SELFSPEC_API int32_t selfspec_accept(struct llama_sampler * chain, int32_t token);

// llama_sampler_apply() for samplers that may fail: a status instead of an exception.
SELFSPEC_API int32_t selfspec_apply(struct llama_sampler * sampler, struct llama_token_data_array * candidates);

// A sampler that rules out what a grammar (GBNF, with a rule "root") does not let follow, for a chain that goes on with
// the n_wanted likeliest tokens of the others, or all with 0, of which those whose logits are more than `gap` below the
// best one's are not drawn. It may drop less likely ones unseen. It cannot be cloned.
// NULL: the grammar is not valid, the log says why.
SELFSPEC_API struct llama_sampler * selfspec_sampler_init_grammar(
        const struct llama_vocab * vocab, const char * text, int32_t n_wanted, float gap);

#ifdef __cplusplus
}
#endif
