#include "graph/width.h"

#include "ggml-backend.h"

selfspec_width_function selfspec_width_of_weights() {
    // looked up by name, since the backend may be one of several libraries, loaded for the processor at hand
    const ggml_backend_dev_t cpu = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    const ggml_backend_reg_t reg = cpu ? ggml_backend_dev_backend_reg(cpu) : nullptr;
    return reg ? (selfspec_width_function) ggml_backend_reg_get_proc_address(reg, "selfspec_kernel_width") : nullptr;
}
