#include "states/replay.h"

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml.h"
#include "llama-context.h"
#include "llama-memory-recurrent.h"

#include <algorithm>
#include <vector>

namespace {

ggml_tensor * root_of(ggml_tensor * t) {
    return t->view_src ? t->view_src : t;
}

// The sources of an operation on states: where the state is, and by which dimension each of the others has a row per token.
struct operation {
    static constexpr int NO_ROWS = -1; // weights

    int state; // index of the source
    int rows[GGML_MAX_SRC];
    int n_src;
};

// Returns NULL for an operation that does not advance a state.
const operation * known(ggml_op op) {
    static const operation ssm_scan    = { 0, { -1, 2, 1, -1, 2, 2 }, 6 }; // the seventh source has the ids of states
    static const operation gated_delta = { 5, { 2, 2, 2, 2, 2, -1 }, 6 };
    switch (op) {
        case GGML_OP_SSM_SCAN:        return &ssm_scan;
        case GGML_OP_GATED_DELTA_NET: return &gated_delta;
        default:                      return nullptr;
    }
}

void keep(ggml_tensor * t) {
    ggml_tensor * root = root_of(t);
    if (root->op != GGML_OP_NONE) { // weights and inputs of the graph have memory of their own
        ggml_set_output(root);
    }
}

// A window of a convolution is the end of the vectors before the pass and in it, joined: keep them all.
void keep_window(ggml_tensor * stored) {
    if (root_of(stored)->op == GGML_OP_CONCAT) {
        keep(stored);
    }
}

} // namespace

void selfspec_keep_inputs(ggml_cgraph * gf) {
    for (int i = 0; i < ggml_graph_n_nodes(gf); ++i) {
        ggml_tensor * node = ggml_graph_node(gf, i);
        if (node->op == GGML_OP_CPY) {
            keep_window(node->src[0]);
        }
        const operation * op = known(node->op);
        for (int j = 0; op && j < op->n_src; ++j) {
            if (op->rows[j] != operation::NO_ROWS) {
                keep(node->src[j]);
            }
        }
    }
}

namespace {

// The graph of a replay.
class builder {
public:
    builder(const llama_memory_recurrent & memory, const selfspec_replayed & rows, ggml_cgraph * gf) : memory(memory), rows(rows) {
        const size_t n_tensors = 4*(size_t) ggml_graph_n_nodes(gf) + 64;
        const ggml_init_params params = { n_tensors*ggml_tensor_overhead() + ggml_graph_overhead_custom(n_tensors, false), nullptr, true };
        ctx.reset(ggml_init(params));
        out = ggml_new_graph_custom(ctx.get(), n_tensors, false);
        ids = ggml_new_tensor_1d(ctx.get(), GGML_TYPE_I32, 1);
        ggml_set_input(ids);

        complete = true;
        for (int i = 0; i < ggml_graph_n_nodes(gf) && complete; ++i) {
            ggml_tensor * node = ggml_graph_node(gf, i);
            complete = node->op == GGML_OP_NONE || !is_state(root_of(node)) || add(node);
        }
    }

    ggml_context_ptr ctx;
    ggml_cgraph    * out;
    ggml_tensor    * ids;             // of the state before the pass
    ggml_tensor    * zeros = nullptr; // the state of an empty sequence
    bool             complete;        // every write of a state is in the graph

private:
    bool is_state(const ggml_tensor * t) const {
        const auto has = [t](const std::vector<ggml_tensor *> & all) { return std::find(all.begin(), all.end(), t) != all.end(); };
        return has(memory.s_l) || has(memory.r_l) || has(memory.p_l);
    }

    // Adds what corresponds to a node that may write a state. Returns false if it is not known.
    bool add(ggml_tensor * node) {
        switch (node->op) {
            case GGML_OP_VIEW:
            case GGML_OP_RESHAPE:
            case GGML_OP_SCALE: // the state of an empty sequence
                return true;
            case GGML_OP_CPY:
                break;
            default:
                return false;
        }
        if (ggml_nelements(node) == 0) {
            return true;
        }
        ggml_tensor * source = root_of(node->src[0]);
        if (source->op == GGML_OP_GET_ROWS) {
            return true; // the state of another sequence was moved
        }
        place to = place_of(node);
        if (to.seq < 0 || to.seq >= to.n_seqs) {
            return false;
        }
        if (known(source->op)) {
            return add_scan(source, to);
        }
        return source->op == GGML_OP_CONCAT && add_window(node->src[0], source, to);
    }

    // Where a node writes.
    struct place {
        ggml_tensor * states;
        size_t        in_row; // bytes
        int64_t       n_seqs; // of the pass
        int64_t       seq;    // index of the sequence among them
    };

    place place_of(ggml_tensor * node) const {
        ggml_tensor  * states = root_of(node);
        const size_t   row    = states->nb[1];
        const int64_t  first  = (int64_t) (node->view_offs/row);
        return { states, node->view_offs % row, n_seqs_of(node), rows.after - first };
    }

    static int64_t n_seqs_of(const ggml_tensor * node) {
        const ggml_tensor * from = node->src[0];
        const ggml_tensor * root = from->view_src ? from->view_src : from;
        switch (root->op) {
            case GGML_OP_SSM_SCAN:        return root->src[1]->ne[3];
            case GGML_OP_GATED_DELTA_NET: return root->src[2]->ne[3];
            default:                      return root->ne[2]; // windows
        }
    }

    // Returns a tensor without an operation that shares memory with t, from `offset` bytes on.
    ggml_tensor * shared(ggml_tensor * t, const std::vector<int64_t> & ne, const std::vector<size_t> & nb, size_t offset) {
        ggml_tensor * r = ggml_new_tensor(ctx.get(), t->type, GGML_MAX_DIMS, ne.data());
        std::copy(nb.begin(), nb.end(), r->nb);
        r->data   = (char *) t->data + offset;
        r->buffer = root_of(t)->buffer;
        return r;
    }

    ggml_tensor * whole(ggml_tensor * t) {
        return shared(t, { t->ne, t->ne + GGML_MAX_DIMS }, { t->nb, t->nb + GGML_MAX_DIMS }, 0);
    }

    // Returns the rows that remain, of a source with one row per token in dimension `dim`; NULL if the shape is another.
    ggml_tensor * kept_rows(ggml_tensor * t, int dim, const place & to) {
        std::vector<int64_t> ne(t->ne, t->ne + GGML_MAX_DIMS);
        std::vector<size_t>  nb(t->nb, t->nb + GGML_MAX_DIMS);
        if (ne[dim] != rows.n_rows || ne[dim + 1] != to.n_seqs) {
            return nullptr;
        }
        const size_t offset = to.seq*nb[dim + 1];
        ne[dim]     = rows.n_keep;
        ne[dim + 1] = 1;
        for (int k = dim + 1; k < GGML_MAX_DIMS; ++k) {
            nb[k] = nb[k - 1]*ne[k - 1];
        }
        return shared(t, ne, nb, offset);
    }

    ggml_tensor * empty_state(const std::vector<int64_t> & ne) {
        if (!zeros) {
            int64_t n = 0;
            for (const auto * s : memory.s_l) {
                n = s ? std::max(n, s->ne[0]) : n;
            }
            zeros = ggml_new_tensor_1d(ctx.get(), GGML_TYPE_F32, n);
            ggml_set_input(zeros);
        }
        return ggml_view_4d(ctx.get(), zeros, ne[0], ne[1], ne[2], ne[3], ne[0]*sizeof(float), ne[0]*ne[1]*sizeof(float),
            ne[0]*ne[1]*ne[2]*sizeof(float), 0);
    }

    // Returns the state of this sequence before the pass, in the shape that the operation reads.
    ggml_tensor * state_before(ggml_tensor * scan, const operation & op, const place & to) {
        ggml_tensor * read = scan->src[op.state];
        std::vector<int64_t> ne(read->ne, read->ne + GGML_MAX_DIMS);
        ne[3] = 1;
        const int64_t n = ne[0]*ne[1]*ne[2]*ne[3];
        if (n != to.states->ne[0] || read->type != GGML_TYPE_F32) {
            return nullptr;
        }
        if (rows.before < 0) {
            return empty_state(ne);
        }
        std::vector<size_t> nb = { sizeof(float) };
        for (int k = 1; k < GGML_MAX_DIMS; ++k) {
            nb.push_back(nb[k - 1]*ne[k - 1]);
        }
        return shared(to.states, ne, nb, rows.before*to.states->nb[1]);
    }

    bool add_scan(ggml_tensor * scan, const place & to) {
        const operation & op = *known(scan->op);
        std::vector<ggml_tensor *> src(op.n_src);
        for (int j = 0; j < op.n_src; ++j) {
            src[j] = j == op.state ? state_before(scan, op, to) :
                op.rows[j] == operation::NO_ROWS ? whole(scan->src[j]) : kept_rows(scan->src[j], op.rows[j], to);
            if (!src[j]) {
                return false;
            }
        }
        ggml_tensor * done = scanned(scan, src);
        const int64_t n = ggml_nelements(src[op.state]);
        write(ggml_view_1d(ctx.get(), done, n, (ggml_nelements(done) - n)*sizeof(float)), to, n);
        return true;
    }

    ggml_tensor * scanned(ggml_tensor * scan, const std::vector<ggml_tensor *> & src) {
        if (scan->op == GGML_OP_SSM_SCAN) {
            return ggml_ssm_scan(ctx.get(), src[0], src[1], src[2], src[3], src[4], src[5], ids, 1);
        }
        return ggml_gated_delta_net(ctx.get(), src[0], src[1], src[2], src[3], src[4], src[5], 1);
    }

    // A window of a convolution: the last vectors of all that came before and in the pass, one element of each per row.
    bool add_window(ggml_tensor * window, ggml_tensor * all, const place & to) {
        if (window->ne[3] != 1 || all->ne[0] != window->ne[0] + rows.n_rows || all->ne[1] != window->ne[1] ||
                window->view_offs != rows.n_rows*all->nb[0]) {
            return false;
        }
        ggml_tensor * kept = shared(all, { window->ne[0], window->ne[1], 1, 1 }, { all->nb, all->nb + GGML_MAX_DIMS },
            rows.n_keep*all->nb[0] + to.seq*all->nb[2]);
        write(kept, to, ggml_nelements(kept));
        return true;
    }

    void write(ggml_tensor * from, const place & to, int64_t n) {
        const size_t size = sizeof(float);
        ggml_tensor * cell = shared(to.states, { n, 1, 1, 1 }, { size, n*size, n*size, n*size }, rows.after*to.states->nb[1] + to.in_row);
        ggml_build_forward_expand(out, ggml_cpy(ctx.get(), from, cell));
    }

    const llama_memory_recurrent & memory;
    const selfspec_replayed        rows;
};

} // namespace

int64_t selfspec_replay::generation() const {
    return ctx.selfspec_generation;
}

bool selfspec_replay::knows(ggml_cgraph * gf, const selfspec_replayed & rows) {
    return builder(memory, rows, gf).complete;
}

bool selfspec_replay::run(ggml_cgraph * gf, const selfspec_replayed & rows) {
    builder built(memory, rows, gf);
    if (!built.complete) {
        return false;
    }
    if (!sched) {
        auto & backends = ctx.backend_ptrs;
        sched.reset(ggml_backend_sched_new(backends.data(), ctx.backend_buft.data(), (int) backends.size(),
            ctx.gf_res_reserve->get_max_nodes(), false, ctx.cparams.op_offload));
    }
    ggml_backend_sched_reset(sched.get());
    if (!ggml_backend_sched_alloc_graph(sched.get(), built.out)) {
        return false;
    }
    if (built.ids->buffer) {
        const int32_t id = 0;
        ggml_backend_tensor_set(built.ids, &id, 0, sizeof(id));
    }
    if (built.zeros) {
        ggml_backend_tensor_memset(built.zeros, 0, 0, ggml_nbytes(built.zeros));
    }
    return ggml_backend_sched_graph_compute(sched.get(), built.out) == GGML_STATUS_SUCCESS;
}
