#include "selfspec-batch.h"

#include "ggml-backend.h"
#include "ggml.h"
#include "llama-arch.h"
#include "llama-batch.h"
#include "llama-graph.h"
#include "llama-hparams.h"
#include "llama-model.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <set>
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
    return std::tie(p.mask, p.enter_at, p.hidden_at, p.head, p.in_place, p.has_tokens);
}

bool selfspec_pass::operator==(const selfspec_pass & other) const { return selfspec_key(*this) == selfspec_key(other); }
bool selfspec_pass::operator< (const selfspec_pass & other) const { return selfspec_key(*this) <  selfspec_key(other); }

selfspec_batch::selfspec_batch(selfspec_pass pass, int32_t n_layer) : pass(std::move(pass)) {
    found.asked.assign(n_layer, 0);
    found.ended.assign(n_layer, 0);
}

bool selfspec_same_graph(const llama_ubatch & a, const llama_ubatch & b) {
    return selfspec_pass_of(a) == selfspec_pass_of(b);
}

bool selfspec_plan_changed(selfspec_pass_ptr & planned, const llama_ubatch & ubatch) {
    const auto & pass = selfspec_pass_of(ubatch);
    if (planned ? *planned == pass : pass.is_plain()) {
        return false;
    }
    planned = std::make_shared<const selfspec_pass>(pass);
    return true;
}

// True when the mask skips this part; records that the part asked.
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

    // without wo the caller projects the heads itself. v is missing where K/V of an earlier block is used
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

namespace {

// Hidden states that take the place of a block's output. Rows are looked up by their index in the batch.
class selfspec_input_hidden : public llm_graph_input_i {
public:
    explicit selfspec_input_hidden(ggml_tensor * hidden) : hidden(hidden) {}

    void set_input(const llama_ubatch * ubatch) override {
        const size_t row = hidden->nb[1];

        for (uint32_t i = 0; i < ubatch->n_tokens; ++i) {
            const size_t src = ubatch->data->batch_idxs[i];
            ggml_backend_tensor_set(hidden, ubatch->selfspec->hidden + src*hidden->ne[0], i*row, row);
        }
    }

    // width and place are compared with the ubatch, see llm_graph_params::allow_reuse
    bool can_reuse(const llm_graph_params &) override { return true; }

private:
    ggml_tensor * hidden; // F32 [n_embd, n_tokens]
};

} // namespace

ggml_tensor * selfspec_block_end(const llm_graph_context & gctx, ggml_tensor * cur, int il) {
    const auto * ss = selfspec_of(gctx.ubatch);
    if (!ss || il < 0 || il >= (int) ss->found.ended.size()) {
        return cur;
    }
    ss->found.ended[il]++;

    const int il_next = il + 1;

    if (il_next == ss->pass.enter_at) {
        cur = ggml_new_tensor_2d(gctx.ctx0, GGML_TYPE_F32, gctx.n_embd, gctx.n_tokens);
        ggml_set_input(cur);
        gctx.cb(cur, "selfspec_hidden", il);
        gctx.res->add_input(std::make_unique<selfspec_input_hidden>(cur));
    }

    if (il_next == ss->pass.hidden_at) {
        ggml_set_output(cur);
        ggml_build_forward_expand(gctx.gf, cur);
        gctx.res->t_layer_inp[il_next] = cur;
    }

    return cur;
}

//
// checks on the finished graph
//

// "blk.12.attn_q.weight" -> 12, rest "attn_q.weight"; -1 for tensors that belong to no block
static int selfspec_block_of(const ggml_tensor * t, const char *& rest) {
    int il = -1;
    int n  = 0;
    if (std::sscanf(t->name, "blk.%d.%n", &il, &n) == 1 && n > 0) {
        rest = t->name + n;
        return il;
    }
    return -1;
}

static bool starts_with(const char * s, const char * prefix) {
    return std::strncmp(s, prefix, std::strlen(prefix)) == 0;
}

// "cache_k_l12", also behind a view -> 12
static int selfspec_cache_block_of(const ggml_tensor * t) {
    const char * name = t->view_src ? t->view_src->name : t->name;
    int il = -1;
    if (std::sscanf(name, "cache_k_l%d", &il) == 1 || std::sscanf(name, "cache_v_l%d", &il) == 1) {
        return il;
    }
    return -1;
}

static bool selfspec_refuse(const selfspec_batch & ss, const llama_model & model, int il, const std::string & why) {
    ss.found.error = std::string("architecture ") + llm_arch_name(model.arch) + ", block " + std::to_string(il) + ": " + why;
    return false;
}

int selfspec_parts_of(const llama_model & model, int il) {
    int parts = 0;
    for (const auto & [name, tensor] : model.tensors_by_name) {
        const char * rest = nullptr;
        if (selfspec_block_of(tensor, rest) == il && !std::strstr(rest, "norm")) {
            parts |= starts_with(rest, "ffn_") ? SELFSPEC_SKIP_FFN : SELFSPEC_SKIP_ATTN;
        }
    }
    return parts;
}

static bool selfspec_check_seen(const selfspec_batch & ss, const llama_model & model) {
    for (int il = 0; il < (int) ss.pass.mask.size(); ++il) {
        int missing = ss.pass.mask[il] & ~ss.found.asked[il];
        if (missing) {
            missing &= selfspec_parts_of(model, il);
        }
        if (missing) {
            return selfspec_refuse(ss, model, il, std::string("has no ") +
                (missing & SELFSPEC_SKIP_ATTN ? "attention" : "feed-forward part") + " that a mask can skip");
        }
    }
    if (ss.pass.enter_at > 0 && ss.found.ended[ss.pass.enter_at - 1] != 1) {
        return selfspec_refuse(ss, model, ss.pass.enter_at, "hidden states cannot enter here");
    }
    if (ss.pass.hidden_at > 0 && ss.found.ended[ss.pass.hidden_at - 1] != 1) {
        return selfspec_refuse(ss, model, ss.pass.hidden_at, "the states entering it cannot be copied");
    }
    return true;
}

// Models that run the same weights as several blocks: there a block of the file is no block of the mask.
static bool selfspec_check_shared(const selfspec_batch & ss, const llama_model & model) {
    std::map<const ggml_tensor *, int> owner;
    for (int il = 0; il < (int) ss.pass.mask.size(); ++il) {
        const ggml_tensor * down = model.layers[il].ffn_down;
        if (down && !owner.emplace(down, il).second) {
            return selfspec_refuse(ss, model, il, "shares its weights with block " + std::to_string(owner[down]) +
                ", masks need blocks of their own");
        }
    }
    return true;
}

using selfspec_tensors = std::set<const ggml_tensor *>;

// No node may read what the request rules out: weights of a skipped feed-forward part, K/V that a skipped attention
// should have written (another block shares it), weights below the entry (state passes around the block output).
static bool selfspec_check_node(
        const selfspec_batch & ss, const llama_model & model, const ggml_tensor * node, const selfspec_tensors & written) {
    for (const ggml_tensor * src : node->src) {
        if (!src) {
            continue;
        }

        const int il_kv = selfspec_cache_block_of(src);
        if (il_kv >= 0 && ss.pass.skips(il_kv, SELFSPEC_SKIP_ATTN) && !written.count(src->view_src ? src->view_src : src)) {
            return selfspec_refuse(ss, model, il_kv, "a later block uses its K/V, so its attention cannot be skipped alone");
        }

        const char * rest = nullptr;
        const int il = selfspec_block_of(src, rest);
        if (il < 0) {
            continue;
        }
        if (ss.pass.skips(il, SELFSPEC_SKIP_FFN) && starts_with(rest, "ffn_down")) {
            return selfspec_refuse(ss, model, il, "its feed-forward part cannot be skipped as a whole");
        }
        if (il < ss.pass.enter_at) {
            return selfspec_refuse(ss, model, ss.pass.enter_at, "hidden states cannot enter here, later blocks read more than "
                "the previous block's output");
        }
    }
    return true;
}

// Ids are read once, by the embedding lookup whose result the entering states replace. More readers need real ids.
static bool selfspec_reads_ids(const ggml_cgraph * gf) {
    int n_readers = 0;
    for (int i = 0; i < ggml_graph_n_nodes(const_cast<ggml_cgraph *>(gf)); ++i) {
        for (const ggml_tensor * src : ggml_graph_node(const_cast<ggml_cgraph *>(gf), i)->src) {
            n_readers += src && src->type == GGML_TYPE_I32 && starts_with(src->name, "inp_tokens");
        }
    }
    return n_readers > 1;
}

static const char * const BEST_TOKEN = "selfspec_best_token";
static const char * const BEST_P     = "selfspec_best_p";

// Finds the best token of every output in the graph; without logits in its result, decode() copies none to the host.
static void selfspec_add_best(llm_graph_result & res) {
    ggml_context * ctx0   = res.get_ctx();
    ggml_tensor  * logits = res.t_logits;

    ggml_tensor * token = ggml_argmax(ctx0, logits);
    ggml_tensor * probs = ggml_reshape_3d(ctx0, ggml_soft_max(ctx0, logits), 1, logits->ne[0], logits->ne[1]);
    ggml_tensor * p     = ggml_get_rows(ctx0, probs, ggml_reshape_2d(ctx0, token, 1, logits->ne[1]));

    ggml_set_name(token, BEST_TOKEN);
    ggml_set_name(p,     BEST_P);
    ggml_set_output(token);
    ggml_set_output(p);
    ggml_build_forward_expand(res.get_gf(), p);

    res.t_logits = nullptr;
}

bool selfspec_finish_graph(const llama_model & model, const llama_ubatch & ubatch, llm_graph_result & res) {
    const auto * ss = selfspec_of(ubatch);
    if (!ss) {
        return true;
    }

    ggml_cgraph * gf = res.get_gf();

    // set_inputs() writes every input, also those whose only readers were skipped: give them memory
    for (ggml_tensor * t = ggml_get_first_tensor(res.get_ctx()); t; t = ggml_get_next_tensor(res.get_ctx(), t)) {
        if (t->flags & GGML_TENSOR_FLAG_INPUT) {
            ggml_build_forward_expand(gf, t);
        }
    }

    if (!selfspec_check_seen(*ss, model) || !selfspec_check_shared(*ss, model)) {
        return false;
    }

    selfspec_tensors written;
    for (int i = 0; i < ggml_graph_n_nodes(gf); ++i) {
        const ggml_tensor * node = ggml_graph_node(gf, i);
        if (node->op == GGML_OP_SET_ROWS || node->op == GGML_OP_CPY) {
            written.insert(node->view_src);
        }
    }
    for (int i = 0; i < ggml_graph_n_nodes(gf); ++i) {
        if (!selfspec_check_node(*ss, model, ggml_graph_node(gf, i), written)) {
            return false;
        }
    }

    if (!ss->pass.has_tokens && selfspec_reads_ids(gf)) {
        return selfspec_refuse(*ss, model, ss->pass.enter_at, "hidden states alone do not suffice, give the token ids too");
    }

    const auto * hidden = ss->pass.hidden_at > 0 ? res.get_layer_inp(ss->pass.hidden_at) : nullptr;
    if (hidden && (hidden->ne[0] != model.hparams.n_embd || hidden->ne[1] != ubatch.n_tokens || !ggml_is_matrix(hidden) ||
            !ggml_is_contiguous(hidden))) {
        return selfspec_refuse(*ss, model, ss->pass.hidden_at, "the states entering it are not one vector per token");
    }

    if (ss->pass.head == SELFSPEC_HEAD_BEST) {
        selfspec_add_best(res);
    }
    return true;
}

static void selfspec_copy_best(const selfspec_batch & ss, const llama_ubatch & ubatch, ggml_cgraph * gf, ggml_backend_sched * sched) {
    const auto copy = [&](ggml_tensor * t, size_t row, void * out) {
        ggml_backend_tensor_get_async(ggml_backend_sched_get_tensor_backend(sched, t), t, out, row*t->nb[0], t->nb[0]);
    };
    ggml_tensor * token = ggml_graph_get_tensor(gf, BEST_TOKEN);
    ggml_tensor * p     = ggml_graph_get_tensor(gf, BEST_P);

    size_t row = 0; // of the outputs
    for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
        if (ubatch.output[i]) {
            auto & best = ss.best[ubatch.data->batch_idxs[i]];
            copy(token, row, &best.token);
            copy(p,     row, &best.p);
            row++;
        }
    }
}

static void selfspec_copy_hidden(const selfspec_batch & ss, const llama_ubatch & ubatch, ggml_tensor * hidden, ggml_backend_sched * sched) {
    ggml_backend_t backend = ggml_backend_sched_get_tensor_backend(sched, hidden);

    for (uint32_t i = 0; i < ubatch.n_tokens; ++i) {
        const size_t dst = ubatch.data->batch_idxs[i];
        ggml_backend_tensor_get_async(backend, hidden, ss.hidden_out + dst*hidden->ne[0], i*hidden->nb[1], hidden->nb[1]);
    }
}

void selfspec_copy_out(const llama_ubatch & ubatch, const llm_graph_result & res, ggml_backend_sched * sched) {
    const auto * ss = selfspec_of(ubatch);
    if (!ss) {
        return;
    }
    if (ss->pass.head == SELFSPEC_HEAD_BEST) {
        selfspec_copy_best(*ss, ubatch, res.get_gf(), sched);
    }
    if (ss->pass.hidden_at > 0) {
        selfspec_copy_hidden(*ss, ubatch, res.get_layer_inp(ss->pass.hidden_at), sched);
    }
}
