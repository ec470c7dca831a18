// Decides which matrix products are computed here, and divides them among threads.
#include "product.h"

#if defined(SELFSPEC_KERNELS)

#include "chunks.h"
#include "products.h"

#include "ggml-backend-impl.h"
#include "ggml-cpu-impl.h"
#include "ggml-cpu.h"
#include "repack.h"

#include <algorithm>
#include <iterator>
#include <new>

namespace selfspec {

namespace {

bool in_repacked_buffer(const ggml_tensor * t) {
    return t->buffer && t->buffer->buft == ggml_backend_cpu_repack_buffer_type();
}

}  // namespace

bool is_interleaved(const ggml_tensor * weights) {
    return in_repacked_buffer(weights) && (weights->view_src ? weights->view_src : weights)->extra;
}

namespace {

// Matrix (i2, i3) of these weights. A view of weights whose rows have grown begins at as many rows of the whole.
Weights weights_of(const Scheme & scheme, const ggml_tensor * w, int64_t i2, int64_t i3) {
    const size_t offset = i2*w->nb[2] + i3*w->nb[3];
    if (scheme.grown == 0) {
        return {(const char *) w->data + offset, w->nb[1], w->ne[0]};
    }
    const ggml_tensor * whole    = w->view_src ? w->view_src : w;
    const size_t        row_size = scheme.row_size(w->type, w->ne[0]);
    return {(const char *) whole->data + (w->view_offs + offset)/w->nb[1]*row_size, row_size, w->ne[0]};
}

// Returns the kernel for weights; none if upstream must compute products with them. `precision`: the least precision of the
// activations.
Scheme scheme_of(const ggml_tensor * weights, int32_t precision) {
    if (in_repacked_buffer(weights)) {
        return weights->extra ? column_scheme(weights->type) : Scheme{};
    }
    if ((weights->buffer && !ggml_backend_buffer_is_host(weights->buffer)) ||
        weights->nb[0] != ggml_type_size(weights->type)) {
        return {};
    }
    return file_scheme(weights->type, (ggml_prec) precision);
}

// Hints of a product: precision of the sums, a kind of weights, and in `ACTIVATIONS` the least precision of activations.
enum { SUMS, KIND, UNUSED, ACTIVATIONS, N_KNOWN };

Scheme scheme_of_product(const ggml_tensor * op) { return scheme_of(op->src[0], op->op_params[ACTIVATIONS]); }

// The sums are as precise as any hint can require.
bool knows_hints(const ggml_tensor * op) {
    const int32_t sums = op->op_params[SUMS], activations = op->op_params[ACTIVATIONS];
    const auto is_precision = [](int32_t x) { return x == GGML_PREC_UNDEFINED || (GGML_PREC_F32 <= x && x <= GGML_PREC_Q4); };
    return is_precision(sums) && is_precision(activations) && op->op_params[KIND] == GGML_HINT_NONE && op->op_params[UNUSED] == 0 &&
           std::all_of(op->op_params + N_KNOWN, std::end(op->op_params), [](int32_t hint) { return hint == 0; });
}

// The list of weight rows to multiply instead of all, ids in ascending order: a third operand of ours, see graph/hooks.cpp.
const ggml_tensor * list_of(const ggml_tensor * op) { return op->op == GGML_OP_MUL_MAT ? op->src[2] : nullptr; }

bool is_known_list(const ggml_tensor * list) {
    return !list || (list->type == GGML_TYPE_I32 && ggml_is_vector(list) && ggml_is_contiguous(list));
}

}  // namespace

int32_t most_tokens(const ggml_tensor * weights) {
    const Scheme scheme = scheme_of(weights, GGML_PREC_UNDEFINED);
    return scheme.kernel ? scheme.most : 0;
}

// An unknown operand or hint may change the meaning of the op, so such an op is left to upstream.
bool takes_product(const ggml_tensor * op) {
    if (op->op != GGML_OP_MUL_MAT && op->op != GGML_OP_MUL_MAT_ID) {
        return false;
    }
    const bool known_only = std::all_of(op->src + 3, std::end(op->src), [](const ggml_tensor * t) { return !t; });
    const ggml_tensor * x = op->src[1];
    if (!known_only || !is_known_list(list_of(op)) || !knows_hints(op) || x->type != GGML_TYPE_F32 || x->nb[0] != sizeof(float)) {
        return false;
    }
    const Scheme scheme = scheme_of_product(op);
    return scheme.kernel && x->ne[op->op == GGML_OP_MUL_MAT ? 1 : 2] <= scheme.most;
}

bool same_inputs(const ggml_tensor * a, const ggml_tensor * b) {
    const Form x = scheme_of_product(a).form, y = scheme_of_product(b).form;
    return x.layout == y.layout && x.offset == y.offset;
}

namespace {

// Work memory: for each of the products that share activations, what was taken of each thread's share of the rows; then the
// activations.
struct Work {
    Taken * taken;
    char *  activations;

    explicit Work(const ggml_compute_params * params, int sharing = 0) {
        Taken * const first = (Taken *) GGML_PAD((uintptr_t) params->wdata, alignof(Taken));
        taken       = first + sharing*params->nth;
        activations = (char *) (first + MAX_SHARING*params->nth);
    }
};

// Activations are prepared in the order of src1's rows: row index i1 + ne1*(i2 + ne2*i3).
struct Prepared {
    Form         form;
    int64_t      k;
    const char * base;

    Activations row(int64_t i) const { return activation_view(form, k, base + i*activation_size(form, k)); }
};

// Called by all threads: each prepares its share of the steps of all rows, and its counts of taken pieces.
Prepared prepare_all(const ggml_compute_params * params, const ggml_tensor * x, Form form, Inputs inputs) {
    const int64_t k       = x->ne[0];
    const int64_t n_steps = (k + K_STEP - 1)/K_STEP;
    const int64_t n_all   = n_steps*ggml_nrows(x);
    const Work    work(params);
    if (inputs == Inputs::ready) {
        return {form, k, work.activations};
    }
    for (int i = 0; i < MAX_SHARING; i++) {
        new (work.taken + i*params->nth + params->ith) Taken;
    }
    const bool    by_first = inputs == Inputs::only_with_first;
    const int64_t begin    = by_first ? 0 : n_all*params->ith/params->nth;
    const int64_t end      = by_first ? (params->ith == 0 ? n_all : 0) : n_all*(params->ith + 1)/params->nth;
    for (int64_t i = begin; i < end; i++) {
        const int64_t row = i/n_steps;
        const int64_t k0  = i%n_steps*K_STEP;
        const int64_t i1 = row%x->ne[1], i2 = row/x->ne[1]%x->ne[2], i3 = row/(x->ne[1]*x->ne[2]);
        const char * data = (const char *) x->data + i1*x->nb[1] + i2*x->nb[2] + i3*x->nb[3];
        prepare(form, k, k0, std::min(k0 + K_STEP, k), (const float *) data, work.activations + row*activation_size(form, k));
    }
    ggml_barrier(params->threadpool);
    return {form, k, work.activations};
}

// Calls f(matrix, row0, row1) for pieces of all matrices. On NUMA machines no thread takes another's pieces, so that their
// memory stays on its own node.
template <typename F> void share(const Chunks & chunks, const ggml_compute_params * params, int sharing, F f) {
    share_and_steal(chunks.n, params->ith, params->nth, Work(params, sharing).taken, !ggml_is_numa(), [&](int64_t i) {
        const Piece piece = chunks.piece(i);
        f(piece.matrix, piece.row0, piece.row1);
    });
}

// Computes the results of several tokens for listed rows [i0, i1); token.out is the place of the result of the list's first
// row. Rows that are adjacent in memory are multiplied in one call of the kernel, interleaved rows in groups of eight.
void multiply_listed(const Scheme & scheme, const Weights & weights, bool interleaved, const int32_t * list, int64_t i0, int64_t i1,
                     const Token * tokens, int n_tokens) {
    constexpr int GROUP = 8;
    float results[MAX_WIDTH][GROUP];
    Token moved[MAX_WIDTH];
    for (int64_t i = i0, end; i < i1; i = end) {
        end = i + 1;
        const int64_t first = interleaved ? list[i]/GROUP*GROUP : list[i];
        while (end < i1 && (interleaved ? list[end] < first + GROUP : list[end] == list[end - 1] + 1)) {
            end++;
        }
        for (int t = 0; t < n_tokens; t++) {
            moved[t] = {tokens[t].in, interleaved ? results[t] : tokens[t].out + i};
        }
        const Weights here = {weights.data + first*weights.row_size, weights.row_size, weights.k};
        scheme.kernel(here, 0, interleaved ? GROUP : end - i, moved, n_tokens);
        for (int t = 0; t < n_tokens && interleaved; t++) {
            for (int64_t j = i; j < end; j++) {
                tokens[t].out[j] = results[t][list[j] - first];
            }
        }
    }
}

// The activations of as many tokens stay in the second-level cache while weight rows are multiplied with all of them.
int tokens_at_once(Form form, int64_t k) {
    constexpr int64_t ROOM = 512*1024;  // bytes
    return (int) std::clamp<int64_t>(ROOM/activation_size(form, k)/MAX_WIDTH*MAX_WIDTH, 2*MAX_WIDTH, MAX_TOKENS);
}

void mul_mat(const ggml_compute_params * params, ggml_tensor * op, Inputs inputs, int sharing) {
    const ggml_tensor * w = op->src[0];
    const ggml_tensor * list = list_of(op);
    const ggml_tensor * x = op->src[1];
    const Scheme   scheme = scheme_of_product(op);
    const Prepared in     = prepare_all(params, x, scheme.form, inputs);

    // Several matrices of src1 may share one of src0: grouped heads that read the same K or V.
    const int64_t r2 = x->ne[2]/w->ne[2], r3 = x->ne[3]/w->ne[3];
    const int n_most = list ? MAX_WIDTH : tokens_at_once(scheme.form, w->ne[0]);
    const Chunks chunks(w->ne[2]*w->ne[3], op->ne[0], params->nth);
    share(chunks, params, sharing, [&](int64_t matrix, int64_t row0, int64_t row1) {
        const int64_t i02 = matrix%w->ne[2], i03 = matrix/w->ne[2];
        const Weights weights = weights_of(scheme, w, i02, i03);
        Token tokens[MAX_TOKENS];
        int   n = 0;
        const int64_t n_all = r3*r2*x->ne[1];
        for (int64_t i = 0; i < n_all; i++) {
            const int64_t i1 = i%x->ne[1], i2 = i02*r2 + i/x->ne[1]%r2, i3 = i03*r3 + i/(x->ne[1]*r2);
            char * out = (char *) op->data + i1*op->nb[1] + i2*op->nb[2] + i3*op->nb[3];
            tokens[n++] = {in.row(i1 + x->ne[1]*(i2 + x->ne[2]*i3)), (float *) out};
            if (n == n_most || i + 1 == n_all) {
                if (list) {
                    multiply_listed(scheme, weights, in_repacked_buffer(w), (const int32_t *) list->data, row0, row1, tokens, n);
                } else {
                    scheme.kernel(weights, row0, row1, tokens, n);
                }
                n = 0;
            }
        }
    });
}

int32_t expert_of(const ggml_tensor * ids, int64_t id, int64_t token) {
    return *(const int32_t *) ((const char *) ids->data + id*ids->nb[0] + token*ids->nb[1]);
}

// The rows that each expert multiplies, stored after the activations. Row `id` of token `t` has number id + n_ids*t.
struct Routes {
    int32_t * n_used;   // number of experts that multiply a row
    int32_t * experts;  // these experts, in ascending order
    int32_t * ends;     // by expert: the end of its rows in `rows`; they begin at the end of the expert before
    int32_t * rows;

    static size_t size(const ggml_tensor * op) { return (1 + 2*op->src[0]->ne[2] + ggml_nelements(op->src[2]))*sizeof(int32_t); }

    Routes(const ggml_compute_params * params, const ggml_tensor * op, Form form) {
        const ggml_tensor * x = op->src[1];
        n_used  = (int32_t *) (Work(params).activations + ggml_nrows(x)*activation_size(form, x->ne[0]));
        experts = n_used + 1;
        ends    = experts + op->src[0]->ne[2];
        rows    = ends + op->src[0]->ne[2];
    }

    // Call from one thread. Skips ids that are out of range.
    void fill(const ggml_tensor * op) {
        const ggml_tensor * ids = op->src[2];
        const int64_t n_experts = op->src[0]->ne[2], n_rows = ggml_nelements(ids);
        const auto expert_of = [&](int64_t i) {
            return *(const int32_t *) ((const char *) ids->data + i%ids->ne[0]*ids->nb[0] + i/ids->ne[0]*ids->nb[1]);
        };
        const auto is_expert = [&](int32_t expert) { return expert >= 0 && expert < n_experts; };
        std::fill_n(ends, n_experts, 0);
        for (int64_t i = 0; i < n_rows; i++) {
            if (is_expert(expert_of(i))) {
                ends[expert_of(i)]++;
            }
        }
        int32_t n = 0, end = 0;
        for (int64_t expert = 0; expert < n_experts; expert++) {
            if (ends[expert] > 0) {
                experts[n++] = (int32_t) expert;
            }
            end += ends[expert];
            ends[expert] = end - ends[expert];  // the beginning of its rows, until all are in their places
        }
        *n_used = n;
        for (int64_t i = 0; i < n_rows; i++) {
            if (is_expert(expert_of(i))) {
                rows[ends[expert_of(i)]++] = (int32_t) i;
            }
        }
    }

    const int32_t * begin(int32_t expert) const { return rows + (expert > 0 ? ends[expert - 1] : 0); }
    const int32_t * end(int32_t expert) const   { return rows + ends[expert]; }
};

// Experts: row `id` of token `t` is multiplied by matrix ids[id, t].
void mul_mat_id(const ggml_compute_params * params, ggml_tensor * op) {
    const ggml_tensor * w   = op->src[0];
    const ggml_tensor * x   = op->src[1];
    const int64_t    n_ids  = op->src[2]->ne[0];
    const Scheme     scheme = scheme_of_product(op);
    Routes           routes(params, op, scheme.form);
    if (params->ith == 0) {
        routes.fill(op);
    }
    const Prepared   in     = prepare_all(params, x, scheme.form, Inputs::unready);

    const int n_most = tokens_at_once(scheme.form, w->ne[0]);
    const Chunks chunks(*routes.n_used, w->ne[1], params->nth);
    share(chunks, params, 0, [&](int64_t used, int64_t row0, int64_t row1) {
        const int32_t expert  = routes.experts[used];
        const Weights weights = weights_of(scheme, w, expert, 0);
        const int32_t * const end = routes.end(expert);
        for (const int32_t * i = routes.begin(expert); i < end; i += n_most) {
            const int n = (int) std::min<int64_t>(n_most, end - i);
            Token tokens[MAX_TOKENS];
            for (int j = 0; j < n; j++) {
                const int64_t id = i[j]%n_ids, t = i[j]/n_ids;
                tokens[j] = {in.row(id%x->ne[1] + x->ne[1]*t), (float *) ((char *) op->data + id*op->nb[1] + t*op->nb[2])};
            }
            scheme.kernel(weights, row0, row1, tokens, n);
        }
    });
}

}  // namespace

size_t product_work_size(const ggml_tensor * op, int n_threads) {
    const ggml_tensor * x = op->src[1];
    return alignof(Taken) + MAX_SHARING*n_threads*sizeof(Taken) + ggml_nrows(x)*activation_size(scheme_of_product(op).form, x->ne[0]) +
           (op->op == GGML_OP_MUL_MAT_ID ? Routes::size(op) : 0);
}

void product(const ggml_compute_params * params, ggml_tensor * op, Inputs inputs, int sharing) {
    op->op == GGML_OP_MUL_MAT ? mul_mat(params, op, inputs, sharing) : mul_mat_id(params, op);
}

}  // namespace selfspec
#endif
