#include "graph/checks.h"

#include "graph/inputs.h"

#include "ggml.h"
#include "llama-arch.h"
#include "llama-graph.h"
#include "llama-hparams.h"
#include "llama-kv-cache-iswa.h"
#include "llama-kv-cache.h"
#include "llama-model.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <map>
#include <set>
#include <vector>

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

// "cache_k_l12", also seen through a view -> 12
static int selfspec_cache_block_of(const ggml_tensor * t) {
    const char * name = t->view_src ? t->view_src->name : t->name;
    int il = -1;
    if (std::sscanf(name, "cache_k_l%d", &il) == 1 || std::sscanf(name, "cache_v_l%d", &il) == 1) {
        return il;
    }
    return -1;
}

static bool selfspec_fault(const selfspec_batch & ss, const llama_model & model, int il, const std::string & why) {
    ss.found.error = std::string("architecture ") + llm_arch_name(model.arch) + ", block " + std::to_string(il) + ": " + why;
    return false;
}

// The caches whose tensors' names contain the number of their block.
static std::vector<const llama_kv_cache *> selfspec_caches_of(const llama_memory_i * memory) {
    if (const auto * cache = dynamic_cast<const llama_kv_cache *>(memory)) {
        return { cache };
    }
    if (const auto * pair = dynamic_cast<const llama_kv_cache_iswa *>(memory)) {
        return { pair->get_base(), pair->get_swa() };
    }
    return {};
}

std::string selfspec_names_fault(const llama_model & model, const llama_memory_i * memory) {
    const auto in_block = [](const auto & each) {
        const char * rest = nullptr;
        return selfspec_block_of(each.second, rest) >= 0;
    };
    if (std::none_of(model.tensors_by_name.begin(), model.tensors_by_name.end(), in_block)) {
        return "no weight is called blk.N.*, so masks could not be checked";
    }
    for (const auto * cache : selfspec_caches_of(memory)) {
        for (const uint32_t il : cache->get_layer_ids()) {
            if (selfspec_cache_block_of(cache->get_k_storage((int32_t) il)) != (int) il) {
                return "K of block " + std::to_string(il) + " is not called cache_k_l" + std::to_string(il) + ", so masks could not be checked";
            }
        }
    }
    return {};
}

int selfspec_parts_of(const llama_model & model, int il) {
    int parts = 0;
    for (const auto & [name, tensor] : model.tensors_by_name) {
        const char * rest = nullptr;
        if (selfspec_block_of(tensor, rest) == il && !std::strstr(rest, "norm")) {
            const bool ffn = starts_with(rest, "ffn_") || starts_with(rest, "channel_mix_"); // RWKV calls it so
            parts |= ffn ? SELFSPEC_SKIP_FFN : SELFSPEC_SKIP_ATTN;
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
            return selfspec_fault(ss, model, il, std::string("has no ") +
                (missing & SELFSPEC_SKIP_ATTN ? "attention" : "feed-forward part") + " that a mask can skip");
        }
    }
    if (ss.pass.enter_at > 0 && ss.found.ended[ss.pass.enter_at - 1] != 1) {
        return selfspec_fault(ss, model, ss.pass.enter_at, "hidden states cannot enter here");
    }
    for (const int il : ss.pass.hidden_at) {
        if (il <= (int) ss.found.ended.size() && ss.found.ended[il - 1] != 1) {
            return selfspec_fault(ss, model, il, "the states entering it cannot be copied");
        }
    }
    return true;
}

// Refuses models that run one block's weights several times: there a block of the file is not a block of the mask.
static bool selfspec_check_shared(const selfspec_batch & ss, const llama_model & model) {
    std::map<const ggml_tensor *, int> owner;
    for (int il = 0; il < (int) ss.pass.mask.size(); ++il) {
        const ggml_tensor * down = model.layers[il].ffn_down;
        if (down && !owner.emplace(down, il).second) {
            return selfspec_fault(ss, model, il, "shares its weights with block " + std::to_string(owner[down]) +
                ", masks need blocks of their own");
        }
    }
    return true;
}

using selfspec_tensors = std::set<const ggml_tensor *>;

static bool selfspec_writes(const ggml_tensor * node) {
    return node->op == GGML_OP_SET_ROWS || node->op == GGML_OP_CPY;
}

// No node may read tensors that the request rules out: weights of a skipped feed-forward part, K/V that a skipped attention
// should have written (another block shares it), weights of blocks below the entry (a state bypasses the block output).
static bool selfspec_check_node(
        const selfspec_batch & ss, const llama_model & model, const ggml_tensor * node, const selfspec_tensors & written) {
    for (const ggml_tensor * src : node->src) {
        if (!src) {
            continue;
        }

        const int il_kv = selfspec_cache_block_of(src);
        if (il_kv >= 0 && ss.pass.skips(il_kv, SELFSPEC_SKIP_ATTN) && !written.count(src->view_src ? src->view_src : src)) {
            return selfspec_fault(ss, model, il_kv, "a later block uses its K/V, so its attention cannot be skipped alone");
        }

        const char * rest = nullptr;
        const int il = selfspec_block_of(src, rest);
        if (il < 0) {
            continue;
        }
        if (ss.pass.skips(il, SELFSPEC_SKIP_FFN) && starts_with(rest, "ffn_down")) {
            return selfspec_fault(ss, model, il, "its feed-forward part cannot be skipped as a whole");
        }
        if (il < ss.pass.enter_at) {
            return selfspec_fault(ss, model, ss.pass.enter_at, "hidden states cannot enter here, later blocks read more than "
                "the previous block's output");
        }
    }
    return true;
}

//
// entry by states alone
//

template <typename... Kinds>
static bool selfspec_is_any_of(const llm_graph_input_i & input) {
    return (dynamic_cast<const Kinds *>(&input) || ...);
}

// Inputs that are filled from positions, sequences and cells. Any other input may be filled from the ids, and then
// placeholders are not enough. The embedding lookup counts as one of them: the entering states replace its result, which is
// checked.
static bool selfspec_ignores_ids(const llm_graph_input_i & input) {
    return selfspec_is_any_of<
        selfspec_input_hidden, llm_graph_input_embd, llm_graph_input_pos, llm_graph_input_attn_temp, llm_graph_input_pos_bucket,
        llm_graph_input_pos_bucket_kv, llm_graph_input_out_ids, llm_graph_input_attn_no_cache, llm_graph_input_attn_k,
        llm_graph_input_attn_kv, llm_graph_input_attn_kv_iswa, llm_graph_input_attn_k_iswa>(input);
}

// Whether a tensor is computed from `wanted`.
static bool selfspec_reads(const ggml_tensor * tensor, const ggml_tensor * wanted, selfspec_tensors & visited) {
    std::vector<const ggml_tensor *> open = { tensor };
    while (!open.empty()) {
        const ggml_tensor * t = open.back();
        open.pop_back();
        if (!t || !visited.insert(t).second) {
            continue;
        }
        if (t == wanted) {
            return true;
        }
        open.push_back(t->view_src);
        open.insert(open.end(), std::begin(t->src), std::end(t->src));
    }
    return false;
}

static bool selfspec_needs_ids(const llm_graph_result & res) {
    for (const auto & input : res.inputs) {
        if (!selfspec_ignores_ids(*input)) {
            return true;
        }
    }
    selfspec_tensors visited;
    for (const ggml_tensor * result : { res.t_logits, res.t_embd, res.t_embd_pooled }) {
        if (selfspec_reads(result, res.t_inp_tokens, visited)) {
            return true;
        }
    }
    for (int i = 0; i < ggml_graph_n_nodes(res.get_gf()); ++i) {
        const ggml_tensor * node = ggml_graph_node(res.get_gf(), i);
        if (selfspec_writes(node) && selfspec_reads(node, res.t_inp_tokens, visited)) {
            return true;
        }
    }
    return false;
}

//
// all checks
//

static bool selfspec_check_nodes(const selfspec_batch & ss, const llama_model & model, ggml_cgraph * gf) {
    if (ss.pass.mask.empty() && ss.pass.enter_at < 0) {
        return true; // the request rules out no tensor, and reading the names of all takes time
    }
    selfspec_tensors written;
    for (int i = 0; i < ggml_graph_n_nodes(gf); ++i) {
        const ggml_tensor * node = ggml_graph_node(gf, i);
        if (selfspec_writes(node)) {
            written.insert(node->view_src);
        }
    }
    for (int i = 0; i < ggml_graph_n_nodes(gf); ++i) {
        if (!selfspec_check_node(ss, model, ggml_graph_node(gf, i), written)) {
            return false;
        }
    }
    return true;
}

ggml_tensor * selfspec_states_at(const selfspec_batch & ss, const llm_graph_result & res, int il) {
    return il > (int) ss.found.ended.size() ? res.get_h_nextn() : res.get_layer_inp(il);
}

static bool selfspec_check_states(
        const selfspec_batch & ss, const llama_model & model, const llama_ubatch & ubatch, const llm_graph_result & res) {
    for (const int il : ss.pass.hidden_at) {
        const auto * states = selfspec_states_at(ss, res, il);
        // hyper-connections keep several states per token, which only the model's own head reads
        const int64_t n_values = il > (int) model.hparams.n_layer() ? model.hparams.n_embd_out() : model.hparams.n_embd;
        if (!states || ggml_nelements(states) != n_values*ubatch.n_tokens || !ggml_is_contiguous(states)) {
            return selfspec_fault(ss, model, il, "the states entering it are not one vector per token");
        }
    }
    return true;
}

bool selfspec_check_graph(
        const selfspec_batch & ss, const llama_model & model, const llama_ubatch & ubatch, const llm_graph_result & res) {
    if (!selfspec_check_seen(ss, model) || !selfspec_check_shared(ss, model) || !selfspec_check_nodes(ss, model, res.get_gf()) ||
            !selfspec_check_states(ss, model, ubatch, res)) {
        return false;
    }
    if (!ss.pass.has_tokens && selfspec_needs_ids(res)) {
        return selfspec_fault(ss, model, ss.pass.enter_at, "hidden states alone do not suffice, give the token ids too");
    }
    if (ss.pass.head == SELFSPEC_HEAD_BEST && !res.t_logits) {
        return selfspec_fault(ss, model, (int) model.hparams.n_layer(), "there are no logits to find the best token in");
    }
    return true;
}
