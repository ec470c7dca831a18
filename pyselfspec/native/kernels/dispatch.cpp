// Entry points: decides which nodes of a graph are computed here.
#include "dispatch.h"
#include "coarse.h"
#include "likeliest.h"
#include "per_graph.h"
#include "product.h"

#include "ggml-cpu.h"
#include "ggml-impl.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <utility>

#if defined(SELFSPEC_KERNELS)

#include "attention.h"
#include "fill.h"
#include "products.h"
#include "recurrences.h"
#include "windows.h"

#include "ggml-backend-impl.h"
#include "repack.h"

#include <cstdlib>

bool selfspec::is_off() {
    static const bool off = [] {
        const char * value = getenv("PYSELFSPEC_KERNELS");
        return value && strcmp(value, "off") == 0;
    }();
    return off;
}

size_t selfspec_work_size(const ggml_tensor * op, int n_threads) {
    using namespace selfspec;
    if (selfspec::is_off()) {
        return 0;
    }
    switch (op->op) {
        case GGML_OP_MUL_MAT:
            if (takes_likeliest(op)) {
                return likeliest_work_size(op, n_threads);
            }
            [[fallthrough]];
        case GGML_OP_MUL_MAT_ID:     return takes_product(op) ? product_work_size(op, n_threads) : 0;
        case GGML_OP_FLASH_ATTN_EXT: return takes_attention(op) ? attention_work_size(op, n_threads) : 0;
        default:                     return 0;
    }
}

bool selfspec::compute(const selfspec_meetings & at, const ggml_compute_params * params, ggml_tensor * op) {
    if (selfspec::is_off() || params->use_ref) {
        return false;
    }
    if (takes_fill(op)) {
        fill(params, op);
        return true;
    }
    if (takes_recurrence(op)) {
        recurrence(params, op, {at.gathered, at.stored}, at.rows);
        return true;
    }
    if (takes_window(op)) {
        window(params, op);
        return true;
    }
    if (op->op == GGML_OP_FLASH_ATTN_EXT && takes_attention(op)) {
        attention(params, op);
        return true;
    }
    if (takes_likeliest(op)) {
        likeliest(params, op);
        return true;
    }
    if (takes_product(op)) {
        GGML_ASSERT(params->wsize >= product_work_size(op, params->nth));
        product(params, op, (Inputs) at.inputs, at.n_sharing > 0 ? at.n_sharing - 1 : 0);
        return true;
    }
    return false;
}

bool selfspec_is_narrow(int64_t n_tokens) {
    return !selfspec::is_off() && n_tokens <= selfspec::MAX_WIDTH;
}

namespace {
thread_local bool may_grow = false;
}

void selfspec_let_grow(bool may) { may_grow = may; }

bool selfspec_reads_columns(const ggml_tensor * weights) {
    if (selfspec::is_off() || weights->ne[1]%8 != 0) {
        return false;
    }
    const selfspec::Scheme scheme = selfspec::column_scheme(weights->type);
    return scheme.kernel && (scheme.grown == 0 || may_grow || selfspec::is_interleaved(weights));
}

bool selfspec_has_layout(const ggml_tensor * weights) {
    return selfspec_reads_columns(weights) && selfspec::our_column_scheme(weights->type).kernel;
}

size_t selfspec_buffer_size(const ggml_tensor * weights) {
    if (!selfspec_has_layout(weights)) {
        return ggml_nbytes(weights);
    }
    return ggml_nrows(weights)*selfspec::column_scheme(weights->type).row_size(weights->type, weights->ne[0]);
}

int32_t selfspec_interleaved_size(int32_t type) {
    const selfspec::Scheme scheme = selfspec::column_scheme((ggml_type) type);
    return selfspec::is_off() || !scheme.kernel ? 0 : (int32_t) scheme.row_size((ggml_type) type, 256);
}

int32_t selfspec_kernel_width(const ggml_tensor * weights, bool fast) {
    const ggml_backend_buffer_t buffer = weights->buffer;
    const bool known = !buffer || ggml_backend_buffer_is_host(buffer) || buffer->buft == ggml_backend_cpu_repack_buffer_type();
    if (!known || selfspec::is_off()) {
        return 0;
    }
    const int32_t most = selfspec::most_tokens(weights);
    return most > 0 ? most : fast ? 0 : selfspec::MAX_WIDTH;
}

#else

size_t selfspec_work_size(const ggml_tensor *, int) { return 0; }
bool   selfspec_is_narrow(int64_t) { return false; }
bool   selfspec_reads_columns(const ggml_tensor *) { return false; }
bool   selfspec_has_layout(const ggml_tensor *) { return false; }
void   selfspec_let_grow(bool) {}
size_t selfspec_buffer_size(const ggml_tensor * weights) { return ggml_nbytes(weights); }
int32_t selfspec_interleaved_size(int32_t) { return 0; }
int32_t selfspec_kernel_width(const ggml_tensor *, bool) { return 0; }

#endif

void * selfspec_function(const char * name) {
    static const std::pair<const char *, void *> functions[] = {
        {"selfspec_kernel_width",     (void *) selfspec_kernel_width},
        {"selfspec_let_grow",         (void *) selfspec_let_grow},
        {"selfspec_interleaved_size", (void *) selfspec_interleaved_size},
        {"selfspec_make_coarse",      (void *) selfspec::make_coarse},
    };
    const auto found = std::find_if(std::begin(functions), std::end(functions), [&](auto & each) { return strcmp(each.first, name) == 0; });
    return found == std::end(functions) ? nullptr : found->second;
}

ggml_cplan selfspec_plan(const ggml_cgraph * graph, int n_threads, ggml_threadpool * threadpool) {
    if (graph->uid == 0) {
        return ggml_graph_plan(graph, n_threads, threadpool);
    }
    thread_local selfspec::PerGraph<std::optional<ggml_cplan>> kept;
    auto & plan = kept.of(graph->uid, n_threads);
    if (!plan) {
        plan = ggml_graph_plan(graph, n_threads, threadpool);
    }
    plan->threadpool = threadpool;
    return *plan;
}

int64_t selfspec_rows_in_fours(int64_t n_rows) {
    return selfspec_is_narrow(n_rows) ? 0 : n_rows - n_rows%4;
}
