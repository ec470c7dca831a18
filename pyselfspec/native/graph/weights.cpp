#include "graph/weights.h"

#include <cstring>

namespace {

// Looked up by name, since the backend may be one of several libraries, loaded for the processor at hand.
template <typename F> F of_cpu_backend(const char * name) {
    const ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    const ggml_backend_reg_t reg = cpu ? ggml_backend_dev_backend_reg(cpu) : nullptr;
    return reg ? (F) ggml_backend_reg_get_proc_address(reg, name) : nullptr;
}

}  // namespace

selfspec_width_function selfspec_width_of_weights() { return of_cpu_backend<selfspec_width_function>("selfspec_kernel_width"); }

selfspec_make_coarse_function selfspec_make_coarse() { return of_cpu_backend<selfspec_make_coarse_function>("selfspec_make_coarse"); }

ggml_backend_buffer_type_t selfspec_interleaved_buffer() {
    const auto types_of = of_cpu_backend<ggml_backend_dev_get_extra_bufts_t>("ggml_backend_dev_get_extra_bufts");
    auto * types = types_of ? types_of(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU)) : nullptr;
    while (types && *types && strcmp(ggml_backend_buft_name(*types), "CPU_REPACK") != 0) {
        types++;
    }
    return types ? *types : nullptr;
}

void selfspec_let_weights_of_thread_grow(bool may) {
    if (const auto let_grow = of_cpu_backend<void (*)(bool)>("selfspec_let_grow")) {
        let_grow(may);
    }
}

int32_t selfspec_interleaved_size_of_type(int32_t type) {
    const auto size = of_cpu_backend<int32_t (*)(int32_t)>("selfspec_interleaved_size");
    return size ? size(type) : 0;
}
