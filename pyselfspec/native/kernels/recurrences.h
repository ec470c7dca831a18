// The recurrences of hybrid models.
#pragma once

#include "in_place.h"

#include <cstddef>
#include <cstdint>

struct ggml_compute_params;
struct ggml_tensor;

namespace selfspec {

// Whether an op is one that is computed here, with tensors in the layout that this takes.
bool takes_recurrence(const ggml_tensor * op);

// Computes this thread's share. Threads need not meet, and no work memory is used.
// row: of the cache, in which the state before it is, if that was not copied.
void recurrence(const ggml_compute_params * params, ggml_tensor * op, const InPlace & in_place, int32_t row);

// The states before a recurrence; the bytes of one; whether it is of one sequence, of which one state is kept.
const ggml_tensor * state_before(const ggml_tensor * op);
size_t state_bytes(const ggml_tensor * op);
bool has_one_state(const ggml_tensor * op);

}  // namespace selfspec
