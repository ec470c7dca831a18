#include "graph/coarse_head.h"

#include "graph/weights.h"

#include "ggml-backend.h"
#include "ggml-cpp.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <utility>

struct selfspec_coarse_head::tensors : selfspec_coarse_tensors {
    ggml_context_ptr        ctx;
    ggml_backend_buffer_ptr buffers[3];
};

selfspec_coarse_head::selfspec_coarse_head(std::unique_ptr<tensors> own) : own(std::move(own)) {}
selfspec_coarse_head::~selfspec_coarse_head() = default;

static ggml_backend_buffer_ptr selfspec_give_memory(ggml_tensor * t, ggml_backend_buffer_type_t type) {
    ggml_backend_buffer_ptr buffer(type ? ggml_backend_buft_alloc_buffer(type, ggml_backend_buft_get_alloc_size(type, t)) : nullptr);
    if (buffer) {
        ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
        ggml_backend_tensor_alloc(buffer.get(), t, ggml_backend_buffer_get_base(buffer.get()));
    }
    return buffer;
}

selfspec_coarse_head_ptr selfspec_coarse_head::make(const ggml_tensor * weights, ggml_type type, const std::vector<float> & inputs) {
    const auto make_coarse = selfspec_make_coarse();
    // weights of a mapped file are in another buffer: there is little memory
    const bool is_known = weights->buffer && ggml_backend_buffer_get_type(weights->buffer) == ggml_backend_cpu_buffer_type() &&
        ggml_is_matrix(weights) && ggml_is_contiguous(weights) && weights->ne[0]%32 == 0 && ggml_get_type_traits(weights->type)->to_float;
    if (!is_known || !make_coarse) {
        return nullptr;
    }
    auto own = std::make_unique<tensors>();
    const int64_t n_embd = weights->ne[0], n_tokens = weights->ne[1];
    own->ctx.reset(ggml_init({ 3*ggml_tensor_overhead(), nullptr, true }));
    own->rows       = ggml_new_tensor_2d(own->ctx.get(), type, n_embd + N_DIRECTIONS, n_tokens);
    own->errors     = ggml_new_tensor_1d(own->ctx.get(), GGML_TYPE_F32, n_tokens + (n_tokens + SELFSPEC_RUN - 1)/SELFSPEC_RUN);
    own->directions = ggml_new_tensor_2d(own->ctx.get(), GGML_TYPE_F32, n_embd, N_DIRECTIONS);
    const bool interleaves = selfspec_interleaved_size_of_type(type) > 0 && n_tokens%8 == 0;
    own->buffers[0] = selfspec_give_memory(own->rows, interleaves ? selfspec_interleaved_buffer() : ggml_backend_cpu_buffer_type());
    own->buffers[1] = selfspec_give_memory(own->errors, ggml_backend_cpu_buffer_type());
    own->buffers[2] = selfspec_give_memory(own->directions, ggml_backend_cpu_buffer_type());
    const auto has_kernel = [](const ggml_tensor * t) { return selfspec_width_of_weights()(t, true) > 0; };
    if (!own->buffers[0] || !own->buffers[1] || !own->buffers[2] || !has_kernel(own->rows) || !has_kernel(weights)) {
        return nullptr;
    }
    std::copy_n(inputs.data(), ggml_nelements(own->directions), (float *) own->directions->data);
    try {
        make_coarse(weights, *own);
    } catch (const std::bad_alloc &) {
        return nullptr;
    }
    return selfspec_coarse_head_ptr(new selfspec_coarse_head(std::move(own)));
}

selfspec_coarse_head_ptr selfspec_coarse_head::of(
        const ggml_tensor * weights, ggml_type type, const std::vector<float> & inputs) {
    static std::mutex mutex;
    static std::map<std::pair<const ggml_tensor *, ggml_type>, std::weak_ptr<const selfspec_coarse_head>> made;

    const std::lock_guard<std::mutex> lock(mutex);
    auto & known = made[{ weights, type }];
    auto   found = known.lock();
    if (!found) {
        known = found = make(weights, type, inputs);
    }
    return found;
}

void selfspec_coarse_head::add_to(ggml_tensor * product, int32_t n_best) const {
    product->src[SELFSPEC_ERRORS]     = own->errors;
    product->src[SELFSPEC_COARSE]     = own->rows;
    product->src[SELFSPEC_DIRECTIONS] = own->directions;
    product->op_params[SELFSPEC_N_BEST] = n_best;
}

selfspec_coarse_head_ptr selfspec_coarse_choice::of_pass(int32_t n) {
    struct kind {
        ggml_type type;
        int32_t   most; // outputs of a pass: for more, products with F16 take no longer
    };
    constexpr kind  KINDS[]    = { { GGML_TYPE_Q4_0, SELFSPEC_EXACT_WIDTH }, { GGML_TYPE_Q8_0, 3 } };
    constexpr float MOST_BYTES = 0.6f;    // of the head's
    constexpr float MOST_ROWS  = 0.1f;    // of the head's, read besides for one output
    constexpr float MOST_SHARE = 0.0625f; // the same for all outputs of a pass together, if they are several
    constexpr int   N_TRIED    = 16;      // rows after which a copy is judged
    constexpr int   N_BEFORE   = 256;     // outputs before a copy is made: it saves in so many what making it takes

    n_before = std::min(n_before + n, N_BEFORE);
    if (!head || inputs.size() < n_inputs() || n_before < N_BEFORE) {
        return nullptr;
    }
    const bool is_judged = n_rows >= N_TRIED;
    if (is_judged && share > MOST_ROWS) {
        copy = nullptr;
    }
    while (!copy && finer < std::size(KINDS)) {
        const kind next = KINDS[finer++];
        if ((float) ggml_row_size(next.type, head->ne[0]) <= MOST_BYTES*(float) head->nb[1]) {
            copy   = selfspec_coarse_head::of(head, next.type, inputs);
            most   = next.most;
            n_rows = 0;
        }
    }
    return n > most || (n > 1 && is_judged && share*(float) n > MOST_SHARE) ? nullptr : copy;
}

void selfspec_coarse_choice::add(const float * logits, int32_t n) {
    constexpr int LATEST = 16;
    const float found = (float) std::count_if(logits, logits + n, [](float x) { return x != -INFINITY; })/(float) n;
    if (found == 1) { // no copy is so coarse: something follows the head's product
        *this = selfspec_coarse_choice(nullptr);
        return;
    }
    n_rows++;
    share += (found - share)/(float) std::min(n_rows, LATEST);
}
