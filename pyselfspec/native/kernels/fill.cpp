// Fills a tensor with one value. Upstream fills row by row, and llama.cpp's draft heads fill one row of a single value per
// token of the vocabulary, which took a third of a small head's pass.
#include "product.h"

#if defined(SELFSPEC_KERNELS)

#include "fill.h"

#include "ggml-impl.h"

#include <algorithm>

namespace selfspec {

bool takes_fill(const ggml_tensor * op) {
    return op->op == GGML_OP_FILL && op->type == GGML_TYPE_F32 && ggml_is_contiguous(op);
}

void fill(const ggml_compute_params * params, ggml_tensor * op) {
    const int64_t n = ggml_nelements(op);
    float * const data = (float *) op->data;
    std::fill(data + n*params->ith/params->nth, data + n*(params->ith + 1)/params->nth, ggml_get_op_params_f32(op, 0));
}

}  // namespace selfspec
#endif
