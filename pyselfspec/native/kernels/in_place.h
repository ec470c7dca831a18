// Recurrences whose states are read and written in the cache, without the copies that a graph makes of them.
#pragma once

struct ggml_cgraph;
struct ggml_tensor;

namespace selfspec {

// What a recurrence does in place of other nodes.
struct InPlace {
    const ggml_tensor * gathered;  // copies the states before it out of the cache; NULL if that is computed
    const ggml_tensor * stored;    // copies the states after it back; NULL if both are computed
};

// Returns what node i of a graph does in place of others, if it is a recurrence. Allocates nothing, so all threads find the same.
InPlace in_place(const ggml_cgraph * graph, int i);

// Whether a recurrence does what node i copies.
bool is_left_out(const ggml_cgraph * graph, int i);

}  // namespace selfspec
