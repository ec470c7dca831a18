// The n largest logits of each token, and -inf for the rest, without reading all of the head's weights.
//
// A coarse copy of the weights is multiplied first. A logit differs from the coarse one by at most the size of the activations times a
// bound that is stored for each row (coarse.h). So rows whose coarse logit plus that is below n exact logits cannot be among the n
// largest. The others are multiplied by the weights themselves, which gives them the bits of the whole product.
#include "likeliest.h"

#include "coarse.h"

#if defined(SELFSPEC_KERNELS)

#include "graph/largest.h"
#include "products.h"

#include "ggml-cpu.h"

#include <cstring>
#include <functional>
#include <vector>

namespace selfspec {

namespace {

struct Head {
    const ggml_tensor * op;
    const ggml_tensor * coarse     = op->src[SELFSPEC_COARSE];
    const ggml_tensor * directions = op->src[SELFSPEC_DIRECTIONS];
    const float *       errors     = (const float *) op->src[SELFSPEC_ERRORS]->data;
    Scheme              scheme     = file_scheme(op->src[0]->type, GGML_PREC_UNDEFINED);
    int64_t             k          = op->src[0]->ne[0], n_rows = op->src[0]->ne[1], n_tokens = op->src[1]->ne[1];
    int                 n_best     = op->op_params[SELFSPEC_N_BEST];

    explicit Head(const ggml_tensor * op) : op(op) {}

    const float * x(int64_t token) const { return (const float *) ((const char *) op->src[1]->data + token*op->src[1]->nb[1]); }
    float * logits(int64_t token) const  { return (float *) ((char *) op->data + token*op->nb[1]); }

    // The results of these rows. They are copied side by side first, as kernels fetch what follows a row.
    void multiply(const std::vector<int32_t> & rows, Activations in, float * results) const {
        constexpr size_t ROOM = 64*1024, AHEAD = 8;  // bytes, rows
        const size_t row_size = op->src[0]->nb[1], n_most = std::max<size_t>(ROOM/row_size, 1);
        const auto row = [&](size_t i) { return (const char *) op->src[0]->data + rows[i]*row_size; };
        std::vector<char> copied(std::min(n_most, rows.size())*row_size);
        for (size_t first = 0; first < rows.size(); first += n_most) {
            const size_t n = std::min(n_most, rows.size() - first);
            for (size_t i = first; i < first + n; i++) {
                for (size_t at = 0; i + AHEAD < rows.size() && at < row_size; at += 64) {
                    fetch_near(row(i + AHEAD) + at);
                }
                memcpy(copied.data() + (i - first)*row_size, row(i), row_size);
            }
            const Token token = {in, results + first};
            scheme.kernel({copied.data(), row_size, k}, 0, (int64_t) n, &token, 1);
        }
    }
};

// The product of the coarse copy and activations with their parts along the directions; its results are written where the exact ones
// will be.
struct CoarseProduct {
    ggml_tensor inputs, product;

    CoarseProduct(const Head & head, float * data) : inputs(*head.op->src[1]), product(*head.op) {
        inputs.data  = data;
        inputs.ne[0] = head.coarse->ne[0];
        inputs.nb[1] = inputs.ne[0]*sizeof(float);
        inputs.nb[2] = inputs.nb[3] = inputs.nb[1]*inputs.ne[1];
        std::fill(std::begin(product.src), std::end(product.src), nullptr);
        std::fill(std::begin(product.op_params), std::end(product.op_params), 0);
        product.src[0] = (ggml_tensor *) head.coarse;
        product.src[1] = &inputs;
    }
    CoarseProduct(const CoarseProduct &) = delete;
};

// Work memory after that of the coarse product: its inputs, n_best logits of each thread and token, activations for the exact product, and
// the size of each token's.
struct Work {
    float * inputs;
    float * best;
    char *  activations;
    float * sizes;
    char *  end;

    Work(void * memory, const Head & head, int n_threads) {
        const CoarseProduct coarse(head, nullptr);
        inputs      = (float *) GGML_PAD((uintptr_t) memory + product_work_size(&coarse.product, n_threads), 64);
        best        = inputs + head.n_tokens*head.coarse->ne[0];
        activations = (char *) GGML_PAD((uintptr_t) (best + n_threads*head.n_tokens*head.n_best), 64);
        sizes       = (float *) (activations + head.n_tokens*activation_size(head.scheme.form, head.k));
        end         = (char *) (sizes + head.n_tokens);
    }
};

// The length of what activations lose where each n are rounded with one scale.
double rounding(const float * x, int64_t k, int64_t n) {
    std::vector<float> lost(k);
    for (int64_t i = 0; i < k; i += n) {
        const int64_t end = std::min(i + n, k);
        float most = 0;
        for (int64_t j = i; j < end; j++) {
            most = std::max(most, std::fabs(x[j]));
        }
        const float scale = most/127;
        for (int64_t j = i; j < end && scale > 0; j++) {
            lost[j] = x[j] - std::nearbyint(x[j]/scale)*scale;
        }
    }
    return length(lost.data(), k);
}

// What activations lose in the form that a kernel reads. The largest part of a float that rounding takes is known.
double rounding(const float * x, int64_t k, Form form) {
    switch (form.layout) {
        case Layout::f32:        return 0;
        case Layout::f16:        return length(x, k) < 65504 ? length(x, k)*0x1p-11 + std::sqrt(k)*0x1p-25 : INFINITY;
        case Layout::bf16:       return length(x, k)*0x1p-8;
        case Layout::steps:
        case Layout::steps_sums: return rounding(x, k, 32);
        default:                 return rounding(x, k, 256);
    }
}

// The size of activations that the exact product reads in `form`, and the coarse one as blocks of 32. along: their parts along directions.
float size_of(const float * x, int64_t k, const float * along, int64_t n_directions, Form form) {
    const double all        = length(x, k), of_along = length(along, n_directions);
    const double across     = std::sqrt(std::max(all*all - of_along*of_along, 1e-6*all*all));
    const double lost       = rounding(x, k, form);
    const bool   are_equal  = form.layout == Layout::steps || form.layout == Layout::steps_sums;
    const double difference = are_equal ? 0 : lost + rounding(x, k, 32);
    return (float) (1.001*together(across, (lost + rounding(along, n_directions, 32))/OF_ROUNDING, difference/OF_DIFFERENCE, of_along/OF_REST));
}

// Rows [begin, end) of one token, a thread's share.
struct Share {
    const Head &       head;
    Activations        in;
    float *            logits;  // of the whole head; coarse, until refine() has been called
    int64_t            begin, end;
    std::vector<float> most;    // of the coarse logits of each run

    Share(const Head & head, int64_t token, Activations in, int64_t begin, int64_t end) :
        head(head), in(in), logits(head.logits(token)), begin(begin), end(end) {
        each_run(begin, end, [&](int64_t, int64_t first, int64_t last) { most.push_back(selfspec_max_of(logits + first, last - first)); });
    }

    // The rows whose coarse logits plus `bound` times their errors are not below `least`.
    std::vector<int32_t> rows_from(float least, float bound) const {
        const float * const of_runs = head.errors + head.n_rows;
        std::vector<int32_t> rows;
        each_run(begin, end, [&](int64_t run, int64_t first, int64_t last) {
            if (most[run - begin/SELFSPEC_RUN] + bound*of_runs[run] < least) {
                return;
            }
            int32_t found[SELFSPEC_RUN];
            int     n = 0;
            for (int64_t row = first; row < last; row++) {  // without branches, which would be hard to foresee
                found[n] = (int32_t) row;
                n += !(logits[row] + bound*head.errors[row] < least);
            }
            rows.insert(rows.end(), found, found + n);
        });
        return rows;
    }

    std::vector<float> exact(const std::vector<int32_t> & rows) const {
        std::vector<float> results(rows.size());
        head.multiply(rows, in, results.data());
        return results;
    }

    // Writes the n largest exact logits among those with the largest coarse ones, in any order; -inf if the share has fewer.
    void find_best(float * best, int n) const {
        std::vector<float> found = exact(rows_from(selfspec_nth_largest(most, n), 0));
        const auto middle = found.begin() + std::min<int64_t>(n, (int64_t) found.size());
        std::partial_sort(found.begin(), middle, found.end(), std::greater<float>());
        std::fill(std::copy(found.begin(), middle, best), best + n, -INFINITY);
    }

    // Writes the exact logits that may be at least nth, and -inf for the others.
    void refine(float nth, float size) const {
        const float least = nth - 1e-4f*(1 + std::fabs(nth));  // sums of floats are rounded, too
        const std::vector<int32_t> rows    = rows_from(least, size);
        const std::vector<float>   results = exact(rows);
        std::fill(logits + begin, logits + end, -INFINITY);
        for (size_t i = 0; i < rows.size(); i++) {
            logits[rows[i]] = results[i];
        }
    }
};

}  // namespace

bool takes_likeliest(const ggml_tensor * op) {
    return op->op == GGML_OP_MUL_MAT && op->src[SELFSPEC_COARSE];
}

size_t likeliest_work_size(const ggml_tensor * op, int n_threads) {
    return (size_t) Work(nullptr, Head(op), n_threads).end + 64;
}

void likeliest(const ggml_compute_params * params, ggml_tensor * op) {
    const Head head(op);
    const Work work(params->wdata, head, params->nth);
    GGML_ASSERT(work.end <= (char *) params->wdata + params->wsize);

    const Form   form = head.scheme.form;
    const size_t size = activation_size(form, head.k);
    for (int64_t token = params->ith; token < head.n_tokens; token += params->nth) {
        const float * const x = head.x(token);
        float * const inputs = work.inputs + token*head.coarse->ne[0], * const along = inputs + head.k;
        std::copy(x, x + head.k, inputs);
        for (int64_t i = 0; i < head.directions->ne[1]; i++) {
            along[i] = dot(x, (const float *) head.directions->data + i*head.k, head.k);
        }
        work.sizes[token] = size_of(x, head.k, along, head.directions->ne[1], form);
        for (int64_t k0 = 0; k0 < head.k; k0 += K_STEP) {
            prepare(form, head.k, k0, std::min(k0 + K_STEP, head.k), x, work.activations + token*size);
        }
    }
    ggml_barrier(params->threadpool);
    CoarseProduct coarse(head, work.inputs);
    product(params, &coarse.product, Inputs::unready, 0);
    ggml_barrier(params->threadpool);

    const int64_t n_runs = (head.n_rows + SELFSPEC_RUN - 1)/SELFSPEC_RUN;
    const int64_t begin  = n_runs*params->ith/params->nth*SELFSPEC_RUN;
    const int64_t end    = std::min(n_runs*(params->ith + 1)/params->nth*SELFSPEC_RUN, head.n_rows);
    const auto best_of = [&](int64_t token, int thread) { return work.best + (token*params->nth + thread)*head.n_best; };
    std::vector<Share> shares;
    for (int64_t token = 0; token < head.n_tokens; token++) {
        const Activations in = activation_view(form, head.k, work.activations + token*size);
        shares.emplace_back(head, token, in, begin, end).find_best(best_of(token, params->ith), head.n_best);
    }
    ggml_barrier(params->threadpool);
    for (int64_t token = 0; token < head.n_tokens; token++) {
        const std::vector<float> best(best_of(token, 0), best_of(token, params->nth));
        shares[token].refine(selfspec_nth_largest(best, head.n_best), work.sizes[token]);
    }
}

}  // namespace selfspec

#else

namespace selfspec {
bool   takes_likeliest(const ggml_tensor *) { return false; }
size_t likeliest_work_size(const ggml_tensor *, int) { return 0; }
void   likeliest(const ggml_compute_params *, ggml_tensor *) {}
}

#endif
