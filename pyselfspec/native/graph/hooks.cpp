#include "graph/batch.h"
#include "graph/checks.h"
#include "graph/coarse_head.h"
#include "graph/inputs.h"
#include "graph/weights.h"
#include "states/replay.h"

#include "ggml-backend.h"
#include "ggml.h"
#include "llama-batch.h"
#include "llama-graph.h"
#include "llama-hparams.h"
#include "llama-model.h"

#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>

static const selfspec_batch * selfspec_of(const llama_ubatch & ubatch) {
    return ubatch.selfspec.get();
}

static const selfspec_pass & selfspec_pass_of(const llama_ubatch & ubatch) {
    static const selfspec_pass plain;

    return ubatch.selfspec ? ubatch.selfspec->pass : plain;
}

static auto selfspec_key(const selfspec_pass & p) {
    return std::tie(p.mask, p.enter_at, p.hidden_at, p.head, p.n_among, p.n_best, p.coarse_head, p.nextn, p.in_place, p.has_tokens, p.cell,
        p.keeps, p.weights);
}

bool selfspec_pass::operator==(const selfspec_pass & other) const { return selfspec_key(*this) == selfspec_key(other); }
bool selfspec_pass::operator< (const selfspec_pass & other) const { return selfspec_key(*this) <  selfspec_key(other); }

selfspec_batch::selfspec_batch(selfspec_pass pass, int32_t n_layer) : pass(std::move(pass)) {
    found.asked.assign(n_layer, 0);
    found.ended.assign(n_layer, 0);
}

int32_t selfspec_rope_shift(const selfspec_batch_ptr & batch, int32_t row) {
    return batch && !batch->rope_shift.empty() ? batch->rope_shift[row] : 0;
}

bool selfspec_set_rope(const llama_ubatch & ubatch, ggml_tensor * pos) {
    if (!ubatch.selfspec || ubatch.selfspec->rope_shift.empty()) {
        return false;
    }
    const uint32_t n = ubatch.n_tokens;
    std::vector<llama_pos> in(ubatch.pos, ubatch.pos + n*GGML_MROPE_SECTIONS);
    std::copy_n(ubatch.pos + 3*n, n, in.begin()); // the cells' positions give way
    std::fill_n(in.begin() + 3*n, n, 0);
    ggml_backend_tensor_set(pos, in.data(), 0, ggml_nbytes(pos));
    return true;
}

bool selfspec_same_graph(const llama_ubatch & a, const llama_ubatch & b) {
    return selfspec_pass_of(a) == selfspec_pass_of(b);
}

const llama_model & selfspec_weights_of(const llama_model & model, const llama_ubatch & ubatch) {
    const llama_model * other = selfspec_pass_of(ubatch).weights;
    return other ? *other : model;
}

bool selfspec_plan_changed(selfspec_pass_ptr & planned, const llama_ubatch & ubatch) {
    const auto & pass = selfspec_pass_of(ubatch);
    if (planned ? *planned == pass : pass.is_plain()) {
        return false;
    }
    planned = std::make_shared<const selfspec_pass>(pass);
    return true;
}

// Returns whether the mask skips this part, and records that the part consulted the mask.
static bool selfspec_consult(const llama_ubatch & ubatch, int il, int part) {
    const auto * ss = selfspec_of(ubatch);
    if (!ss || il < 0 || il >= (int) ss->found.asked.size()) {
        return false;
    }
    ss->found.asked[il] |= part;

    return ss->pass.skips(il, part);
}

static ggml_tensor * selfspec_zeros(const llm_graph_context & gctx, int64_t ne0, int64_t ne1, int il) {
    ggml_tensor * zeros = ggml_fill(gctx.ctx0, ggml_new_tensor_2d(gctx.ctx0, GGML_TYPE_F32, ne0, ne1), 0.0f);
    gctx.cb(zeros, "selfspec_skip", il);

    return zeros;
}

ggml_tensor * selfspec_skip_attn(
        const llm_graph_context & gctx, ggml_tensor * wo, ggml_tensor * q, ggml_tensor * v, ggml_tensor * v_mla, int il) {
    if (!selfspec_consult(gctx.ubatch, il, SELFSPEC_SKIP_ATTN)) {
        return nullptr;
    }

    // without wo the caller projects the heads. v is NULL where K/V of an earlier block is used
    const int64_t n_embd_head = v_mla ? v_mla->ne[1] : v ? v->ne[0] : gctx.hparams.n_embd_head_v(il);

    return selfspec_zeros(gctx, wo ? wo->ne[1] : n_embd_head*q->ne[1], q->ne[2], il);
}

ggml_tensor * selfspec_skip(const llm_graph_context & gctx, int part, ggml_tensor * cur, ggml_tensor * last, int il) {
    // without a last weight there is nothing to skip
    if (!last || !selfspec_consult(gctx.ubatch, il, part)) {
        return nullptr;
    }
    return selfspec_zeros(gctx, last->ne[1], ggml_nelements(cur)/cur->ne[0], il);
}

static bool selfspec_is_one_vector_per_token(const ggml_tensor * t, int64_t n_embd, int64_t n_tokens) {
    return t->type == GGML_TYPE_F32 && t->ne[0] == n_embd && t->ne[1] == n_tokens && ggml_is_matrix(t) && ggml_is_contiguous(t);
}

ggml_tensor * selfspec_block_end(const llm_graph_context & gctx, ggml_tensor * cur, int il) {
    const auto * ss = selfspec_of(gctx.ubatch);
    if (!ss || il < 0 || il >= (int) ss->found.ended.size()) {
        return cur;
    }
    const int il_next = il + 1;

    if (il_next == ss->pass.enter_at && !selfspec_is_one_vector_per_token(cur, gctx.n_embd, gctx.n_tokens)) {
        return cur; // a block whose end was not seen is refused later
    }
    ss->found.ended[il]++;

    if (il_next == ss->pass.enter_at) {
        cur = ggml_new_tensor_2d(gctx.ctx0, GGML_TYPE_F32, gctx.n_embd, gctx.n_tokens);
        ggml_set_input(cur);
        gctx.cb(cur, "selfspec_hidden", il);
        gctx.res->add_input(std::make_unique<selfspec_input_hidden>(cur));
    }

    if (ss->pass.leaves(il_next)) {
        ggml_set_output(cur);
        ggml_build_forward_expand(gctx.gf, cur);
        gctx.res->t_layer_inp[il_next] = cur;
    }

    return cur;
}

bool selfspec_best_only(const llama_ubatch & ubatch) { return selfspec_pass_of(ubatch).head == SELFSPEC_HEAD_BEST; }

ggml_tensor * selfspec_wanted_rows(const llm_graph_context & gctx) {
    return selfspec_best_only(gctx.ubatch) ? gctx.build_inp_out_ids() : nullptr;
}

//
// the finished graph
//

// Whether a node is an operation on each logit alone.
static bool selfspec_is_elementwise(const ggml_tensor * t) {
    return t->op == GGML_OP_SCALE || t->op == GGML_OP_UNARY || (t->op == GGML_OP_MUL && ggml_is_scalar(t->src[1]));
}

// Our kernels multiply the listed rows in place if the product with the head's weights has the list as its third operand.
// The nodes after it then have as many values as the list. No tensor is allocated yet, so nodes may still change their size.
static bool selfspec_shorten_head(const selfspec_batch & ss, const llama_model & model, llm_graph_result & res) {
    std::vector<ggml_tensor *> shorter;
    ggml_tensor * t = res.t_logits;
    for (; selfspec_is_elementwise(t); t = t->src[0]) {
        shorter.push_back(t);
    }
    const selfspec_width_function width_of = selfspec_width_of_weights();
    const bool is_product = t->op == GGML_OP_MUL_MAT && ggml_is_matrix(t->src[0]) && t->ne[0] == model.vocab.n_tokens();
    if (!is_product || model.d2t || !width_of || width_of(t->src[0], true) == 0) {
        ss.found.error = "the head cannot look at some tokens only: its weights have no kernel here, or what follows them is "
            "not known";
        return false;
    }
    ggml_tensor * ids = ggml_new_tensor_1d(res.get_ctx(), GGML_TYPE_I32, ss.pass.n_among);
    ggml_set_input(ids);
    ggml_set_name(ids, "selfspec_among");
    ggml_build_forward_expand(res.get_gf(), ids);
    res.add_input(std::make_unique<selfspec_input_among>(ids));

    t->src[2] = ids;
    shorter.push_back(t);
    for (ggml_tensor * each : shorter) {
        each->ne[0] = ss.pass.n_among;
        each->nb[1] = each->ne[0]*each->nb[0];
        each->nb[2] = each->ne[1]*each->nb[1];
        each->nb[3] = each->ne[2]*each->nb[2];
    }
    return true;
}

// Adds nodes that find the best token of every output. The result then has no logits, so decode() copies none to the host; those
// of a list of tokens are kept until selfspec_copy_best().
static void selfspec_add_best(llm_graph_result & res, bool has_list) {
    ggml_context * ctx0   = res.get_ctx();
    ggml_tensor  * logits = res.t_logits;
    res.t_logits = nullptr;
    if (logits->ne[1] == 0) {
        return;
    }

    ggml_tensor * token = ggml_argmax(ctx0, logits);
    ggml_tensor * probs = ggml_reshape_3d(ctx0, ggml_soft_max(ctx0, logits), 1, logits->ne[0], logits->ne[1]);
    ggml_tensor * p     = ggml_get_rows(ctx0, probs, ggml_reshape_2d(ctx0, token, 1, logits->ne[1]));

    ggml_set_output(token);
    ggml_set_output(p);
    ggml_build_forward_expand(res.get_gf(), p);

    for (ggml_tensor * t = has_list ? logits : nullptr; t; t = t->view_src) {
        ggml_set_output(t);
    }
    res.add_input(std::make_unique<selfspec_best_found>(token, p, has_list ? logits : nullptr));
}

static bool selfspec_is_product(const ggml_tensor * t, const ggml_tensor * weights) {
    return t && t->op == GGML_OP_MUL_MAT && t->src[0] == weights && ggml_is_matrix(t);
}

bool selfspec_finish_graph(const llama_model & model, const llama_ubatch & ubatch, llm_graph_result & res) {
    const auto * ss = selfspec_of(ubatch);
    if (!ss) {
        return true;
    }

    ggml_cgraph * gf = res.get_gf();

    // set_inputs() writes every input, also inputs whose only readers were skipped: give them memory
    for (ggml_tensor * t = ggml_get_first_tensor(res.get_ctx()); t; t = ggml_get_next_tensor(res.get_ctx(), t)) {
        if (t->flags & GGML_TENSOR_FLAG_INPUT) {
            ggml_build_forward_expand(gf, t);
        }
    }

    const bool ok = selfspec_check_graph(*ss, model, ubatch, res) && (ss->pass.n_among == 0 || selfspec_shorten_head(*ss, model, res));
    if (ok && ss->pass.head == SELFSPEC_HEAD_BEST) {
        selfspec_add_best(res, ss->pass.n_among > 0);
    }

    if (ok && ss->coarse_head && selfspec_is_product(res.t_logits, model.output)) {
        ss->coarse_head->add_to(res.t_logits, ss->pass.n_best);
    }

    if (ok && ss->pass.keeps) {
        selfspec_keep_inputs(gf);
    }

    // the next part of this batch may need a new graph
    std::fill(ss->found.asked.begin(), ss->found.asked.end(), 0);
    std::fill(ss->found.ended.begin(), ss->found.ended.end(), 0);
    return ok;
}

static const selfspec_best_found & selfspec_best_of(const llm_graph_result & res) {
    for (const auto & each : res.inputs) {
        if (const auto * found = dynamic_cast<const selfspec_best_found *>(each.get())) {
            return *found;
        }
    }
    GGML_ABORT("a graph that was asked for best tokens has them");
}

static void selfspec_copy_best(const selfspec_batch & ss, const llama_ubatch & ubatch, const llm_graph_result & res, ggml_backend_sched * sched) {
    if (std::none_of(ubatch.output, ubatch.output + ubatch.n_tokens, [](int8_t output) { return output != 0; })) {
        return;
    }
    const auto & found = selfspec_best_of(res);
    const auto copy = [&](ggml_tensor * t, size_t row, void * out, size_t n = 1) {
        const size_t size = n*sizeof(float); // also that of an id
        ggml_backend_tensor_get_async(ggml_backend_sched_get_tensor_backend(sched, t), t, out, row*size, size);
    };
    const size_t n_listed = ss.pass.n_among;

    size_t row = 0; // index of the output
    for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
        if (ubatch.output[i]) {
            const size_t dst = ubatch.data->batch_idxs[i];
            copy(found.token, row, &ss.best[dst].token);
            copy(found.p,     row, &ss.best[dst].p);
            if (found.listed) {
                copy(found.listed, row, ss.listed + dst*n_listed, n_listed);
            }
            row++;
        }
    }
}

// Copies the states row by row, those of all requested blocks side by side.
static void selfspec_copy_hidden(
        const selfspec_batch & ss, const llama_ubatch & ubatch, const llm_graph_result & res, ggml_backend_sched * sched) {
    const auto n_values = [&](int il) { return (size_t) ggml_nelements(selfspec_states_at(ss, res, il))/ubatch.n_tokens; };
    size_t row = 0;
    for (const int il : ss.pass.hidden_at) {
        row += n_values(il);
    }

    float * out = ss.hidden_out;
    for (const int il : ss.pass.hidden_at) {
        ggml_tensor  * hidden  = selfspec_states_at(ss, res, il);
        ggml_backend_t backend = ggml_backend_sched_get_tensor_backend(sched, hidden);
        const size_t   size    = n_values(il)*sizeof(float);

        for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
            ggml_backend_tensor_get_async(backend, hidden, out + ubatch.data->batch_idxs[i]*row, i*size, size);
        }
        out += n_values(il);
    }
}

// The last node reads the activations of the head, so that nothing has been written over them.
static void selfspec_copy_head_inputs(std::vector<float> & to, const llm_graph_result & res, ggml_backend_sched * sched) {
    ggml_tensor * inputs = res.t_logits && res.t_logits->op == GGML_OP_MUL_MAT ? res.t_logits->src[1] : nullptr;
    if (inputs && ggml_is_contiguous(inputs) && inputs->type == GGML_TYPE_F32) {
        to.resize(to.size() + ggml_nelements(inputs));
        ggml_backend_tensor_get_async(ggml_backend_sched_get_tensor_backend(sched, inputs), inputs, to.data() + to.size() - ggml_nelements(inputs),
            0, ggml_nbytes(inputs));
    }
}

void selfspec_copy_out(const llama_ubatch & ubatch, const llm_graph_result & res, ggml_backend_sched * sched) {
    const auto * ss = selfspec_of(ubatch);
    if (!ss) {
        return;
    }
    if (ss->pass.head == SELFSPEC_HEAD_BEST) {
        selfspec_copy_best(*ss, ubatch, res, sched);
    }
    selfspec_copy_hidden(*ss, ubatch, res, sched);
    if (ss->head_inputs) {
        selfspec_copy_head_inputs(*ss->head_inputs, res, sched);
    }
}
