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
// rows: of the cache, in which the states before it are, by sequence, if these were not copied.
void recurrence(const ggml_compute_params * params, ggml_tensor * op, const InPlace & in_place, const int32_t * rows);

// The states before a recurrence; how many sequences have one, and their bytes; whether one state is kept of each.
const ggml_tensor * state_before(const ggml_tensor * op);
int64_t n_sequences(const ggml_tensor * op);
size_t state_bytes(const ggml_tensor * op);
bool keeps_one_state(const ggml_tensor * op);

}  // namespace selfspec
