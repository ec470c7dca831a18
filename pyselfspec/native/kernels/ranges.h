// Which nodes of a graph write and read the same memory.
#pragma once

#include "ggml.h"

#include <algorithm>
#include <iterator>

namespace selfspec {

struct Range {
    const char * begin;
    const char * end;

    explicit Range(const ggml_tensor * t) : begin((const char *) t->data), end(begin + ggml_nbytes(t)) {}

    bool overlaps(Range other) const { return begin < other.end && other.begin < end; }
};

inline bool reads(const ggml_tensor * op, Range memory) {
    return std::any_of(op->src, std::end(op->src), [&](const ggml_tensor * t) { return t && t->data && Range(t).overlaps(memory); });
}

// Whether the order of two nodes matters.
inline bool conflict(const ggml_tensor * a, const ggml_tensor * b) {
    const Range of_a(a), of_b(b);
    return of_a.overlaps(of_b) || reads(a, of_b) || reads(b, of_a);
}

}  // namespace selfspec
