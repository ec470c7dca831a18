// Convolutions of hybrid models: a channel's result for a token is the sum of its last few values times weights.
//
// A graph joins the values before a pass and those in it, channel by channel (CONCAT), and convolves these rows (SSM_CONV). Upstream joins
// value by value, on one thread, and convolves token by token. Here threads share channels, and VL channels go through VL tokens at once.
#include "product.h"

#if defined(SELFSPEC_KERNELS)

#include "windows.h"

#include "ggml-cpu-impl.h"
#include "ggml-impl.h"

#include <algorithm>
#include <cmath>

namespace selfspec {

namespace {

// Calls f(first, last, i2) for this thread's channels, a tile or less at once.
template <typename F> void share_channels(const ggml_compute_params * params, int64_t n, int64_t n_matrices, F f) {
    const int64_t n_tiles = (n + VL - 1)/VL;
    for (int64_t i2 = 0; i2 < n_matrices; i2++) {
        for (int64_t tile = n_tiles*params->ith/params->nth; tile < n_tiles*(params->ith + 1)/params->nth; tile++) {
            f(tile*VL, std::min(n, (tile + 1)*VL), i2);
        }
    }
}

// The values of a pass come token by token: `added` is transposed.
void join(const ggml_compute_params * params, ggml_tensor * op) {
    const ggml_tensor * before = op->src[0], * added = op->src[1];
    const int64_t n_before = before->ne[0], n_added = added->ne[0], n = op->ne[0], of_token = added->nb[0]/sizeof(float);
    share_channels(params, op->ne[1], op->ne[2], [&](int64_t first, int64_t last, int64_t i2) {
        float * const       to   = (float *) float_row(op, first, i2);
        const float * const from = float_row(added, first, i2);
        for (int64_t r = 0; r < last - first; r++) {
            std::copy_n(float_row(before, first + r, i2), n_before, to + r*n);
        }
        int64_t token = 0;
        for (; last - first == VL && token + VL <= n_added; token += VL) {
            transpose(from + token*of_token, of_token, to + n_before + token, n);
        }
        for (; token < n_added; token++) {
            for (int64_t r = 0; r < last - first; r++) {
                to[r*n + n_before + token] = from[token*of_token + r];
            }
        }
    });
}

void convolve(const ggml_compute_params * params, ggml_tensor * op) {
    const ggml_tensor * values = op->src[0], * weights = op->src[1];
    const int64_t n_weights = weights->ne[0], n_tokens = op->ne[1];
    share_channels(params, op->ne[0], op->ne[2], [&](int64_t first, int64_t last, int64_t i2) {
        int64_t token = 0;
        for (; last - first == VL && token + VL <= n_tokens; token += VL) {
            float found[VL*VL];  // by channel
            for (int r = 0; r < VL; r++) {
                const float * const x = float_row(values, first + r, i2) + token, * w = float_row(weights, first + r);
                vf sum = zero();
                for (int64_t i = 0; i < n_weights; i++) {
                    sum = fma(load_f(x + i), repeat_f(w[i]), sum);
                }
                store_f(found + r*VL, sum);
            }
            transpose(found, VL, (float *) float_row(op, token, i2) + first, op->nb[1]/sizeof(float));
        }
        for (; token < n_tokens; token++) {
            for (int64_t channel = first; channel < last; channel++) {
                const float * const x = float_row(values, channel, i2) + token, * w = float_row(weights, channel);
                float sum = 0;
                for (int64_t i = 0; i < n_weights; i++) {
                    sum = std::fma(x[i], w[i], sum);
                }
                ((float *) float_row(op, token, i2))[channel] = sum;
            }
        }
    });
}

}  // namespace

bool takes_window(const ggml_tensor * op) {
    const ggml_tensor * a = op->src[0], * b = op->src[1];
    const auto is_float = [](const ggml_tensor * t) { return t->type == GGML_TYPE_F32 && t->ne[3] == 1; };
    if ((op->op != GGML_OP_CONCAT && op->op != GGML_OP_SSM_CONV) || !is_float(op) || !is_float(a) || !is_float(b) || a->nb[0] != sizeof(float)) {
        return false;
    }
    if (op->op == GGML_OP_SSM_CONV) {
        return b->nb[0] == sizeof(float);
    }
    return ggml_get_op_params_i32(op, 0) == 0 && ggml_is_contiguous(op) && b->nb[1] == sizeof(float);
}

void window(const ggml_compute_params * params, ggml_tensor * op) {
    if (op->op == GGML_OP_CONCAT) {
        join(params, op);
    } else {
        convolve(params, op);
    }
}

}  // namespace selfspec
#endif
