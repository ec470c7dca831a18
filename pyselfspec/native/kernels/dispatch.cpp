// Entry points: decides which nodes of a graph are computed here.
#include "selfspec-kernels.h"
#include "product.h"

#if defined(SELFSPEC_KERNELS)

#include "attention.h"
#include "fill.h"
#include "products.h"

#include "ggml-backend-impl.h"
#include "repack.h"

#include <cstdlib>

// PYSELFSPEC_KERNELS=off leaves all nodes to upstream, for comparisons.
static bool switched_off() {
    static const bool off = [] {
        const char * value = getenv("PYSELFSPEC_KERNELS");
        return value && strcmp(value, "off") == 0;
    }();
    return off;
}

size_t selfspec_work_size(const ggml_tensor * op, int n_threads) {
    using namespace selfspec;
    if (switched_off()) {
        return 0;
    }
    switch (op->op) {
        case GGML_OP_MUL_MAT:
        case GGML_OP_MUL_MAT_ID:     return takes_product(op) ? product_work_size(op, n_threads) : 0;
        case GGML_OP_FLASH_ATTN_EXT: return takes_attention(op) ? attention_work_size(op, n_threads) : 0;
        default:                     return 0;
    }
}

bool selfspec_compute_forward(const ggml_compute_params * params, ggml_tensor * op) {
    using namespace selfspec;
    if (switched_off() || params->use_ref) {
        return false;
    }
    if (takes_fill(op)) {
        fill(params, op);
        return true;
    }
    const size_t work_size = selfspec_work_size(op, params->nth);
    if (work_size == 0) {
        return false;
    }
    GGML_ASSERT(params->wsize >= work_size);
    if (op->op == GGML_OP_FLASH_ATTN_EXT) {
        attention(params, op);
    } else {
        product(params, op);
    }
    return true;
}

bool selfspec_is_narrow(int64_t n_tokens) {
    return !switched_off() && n_tokens <= selfspec::MAX_WIDTH;
}

bool selfspec_reads_columns() {
    return !switched_off() && selfspec::column_scheme(GGML_TYPE_Q6_K).kernel;
}

int32_t selfspec_kernel_width(const ggml_tensor * weights, bool fast) {
    const ggml_backend_buffer_t buffer = weights->buffer;
    const bool known = !buffer || ggml_backend_buffer_is_host(buffer) || buffer->buft == ggml_backend_cpu_repack_buffer_type();
    if (!known || switched_off()) {
        return 0;
    }
    return selfspec::has_kernel(weights) ? INT32_MAX : fast ? 0 : selfspec::MAX_WIDTH;
}

#else

size_t selfspec_work_size(const ggml_tensor *, int) { return 0; }
bool   selfspec_compute_forward(const ggml_compute_params *, ggml_tensor *) { return false; }
bool   selfspec_is_narrow(int64_t) { return false; }
bool   selfspec_reads_columns() { return false; }
int32_t selfspec_kernel_width(const ggml_tensor *, bool) { return 0; }

#endif

int64_t selfspec_rows_in_fours(int64_t n_rows) {
    return selfspec_is_narrow(n_rows) ? 0 : n_rows - n_rows%4;
}
