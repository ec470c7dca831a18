// A graph copies the states of sequences out of the cache (GET_ROWS), makes others from them, and copies these back (CPY). With states of
// 1 MB in most blocks, as Qwen3.5 has them, these copies were a third of what a pass over one token reads and writes. Here a recurrence
// reads a row of the cache and writes another one, or the same, and they are left out where nothing else reads them.
#include "in_place.h"

#include "product.h"

#if defined(SELFSPEC_KERNELS)

#include "ranges.h"
#include "recurrences.h"
#include "selfspec-kernels.h"

#include "ggml-impl.h"

#include <algorithm>
#include <iterator>

namespace selfspec {

namespace {

const ggml_tensor * root_of(const ggml_tensor * t) { return t->view_src ? t->view_src : t; }

bool is_computed(const ggml_tensor * node) {
    return !ggml_op_is_empty(node->op) && !ggml_is_empty(node) && (node->flags & GGML_TENSOR_FLAG_COMPUTE);
}

// Whether something reads a node after the graph.
bool is_output(const ggml_tensor * node) { return node->flags & GGML_TENSOR_FLAG_OUTPUT; }

// Whether f holds for one of the nodes [begin, end) that are computed.
template <typename F> bool any_node(const ggml_cgraph * graph, int begin, int end, F f) {
    return std::any_of(graph->nodes + begin, graph->nodes + end, [&](const ggml_tensor * node) { return is_computed(node) && f(node); });
}

// Returns the first node from `begin` on for which f holds; the number of nodes if there is none.
template <typename F> int find_node(const ggml_cgraph * graph, int begin, F f) {
    return (int) (std::find_if(graph->nodes + begin, graph->nodes + graph->n_nodes, f) - graph->nodes);
}

// The states after a recurrence, behind its results.
Range state_after(const ggml_tensor * op) {
    Range all(op);
    all.begin = all.end - state_bytes(op);
    return all;
}

// Whether a node copies the states after a recurrence as they are.
bool stores(const ggml_tensor * node, const ggml_tensor * op) {
    const ggml_tensor * from = node->src[0];
    return node->op == GGML_OP_CPY && root_of(from) == op && node->type == GGML_TYPE_F32 && ggml_is_contiguous(node) &&
           ggml_is_contiguous(from) && from->data == state_after(op).begin && ggml_nbytes(from) == state_bytes(op) && is_computed(node);
}

// Whether a node reads these bytes of another one.
bool reads_of(const ggml_tensor * node, const ggml_tensor * other, Range bytes) {
    return std::any_of(node->src, std::end(node->src), [&](const ggml_tensor * source) {
        return source && root_of(source) == other && Range(source).overlaps(bytes);
    });
}

// Returns the node that copied the states before recurrence i, if what it copied is still there and nothing else reads it; else NULL.
const ggml_tensor * gathered_for(const ggml_cgraph * graph, int i) {
    const ggml_tensor * op = graph->nodes[i], * state = state_before(op), * rows = root_of(state);
    if (rows->op != GGML_OP_GET_ROWS || is_output(rows) || ggml_nelements(rows->src[1]) != n_sequences(op) ||
        n_sequences(op) > SELFSPEC_MOST_STATES || rows->src[0]->type != GGML_TYPE_F32 || state->data != rows->data) {
        return nullptr;
    }
    const int  copied  = find_node(graph, 0, [&](const ggml_tensor * node) { return node == rows; });
    const auto changes = [&](const ggml_tensor * node) {  // or would be another copy that is left out
        return Range(node).overlaps(Range(rows->src[0])) || node->op == GGML_OP_GET_ROWS;
    };
    const auto shares  = [&](const ggml_tensor * node) { return node != op && reads_of(node, rows, Range(rows)); };
    return copied > i || any_node(graph, copied + 1, i, changes) || any_node(graph, copied, graph->n_nodes, shares) ? nullptr : rows;
}

}  // namespace

InPlace in_place(const ggml_cgraph * graph, int i) {
    const ggml_tensor * op = graph->nodes[i];
    if (!takes_recurrence(op) || !keeps_one_state(op) || is_output(op)) {
        return {};
    }
    const int n = graph->n_nodes, last = find_node(graph, i + 1, [&](const ggml_tensor * node) { return stores(node, op); });
    if (last == n) {
        return {};
    }
    const ggml_tensor * stored = graph->nodes[last];
    const auto differs = [&](const ggml_tensor * node) { return conflict(node, stored); };
    const auto shares  = [&](const ggml_tensor * node) { return node != stored && reads_of(node, op, state_after(op)); };
    if (any_node(graph, i + 1, last, differs) || any_node(graph, i + 1, n, shares)) {
        return {};
    }
    return {gathered_for(graph, i), stored};
}

bool is_left_out(const ggml_cgraph * graph, int i) {
    const ggml_tensor * node = graph->nodes[i];
    if (node->op != GGML_OP_GET_ROWS && node->op != GGML_OP_CPY) {
        return false;
    }
    const auto copies_for = [&](const ggml_tensor * op) {
        return takes_recurrence(op) && (node->op == GGML_OP_CPY ? root_of(node->src[0]) == op : root_of(state_before(op)) == node);
    };
    const int at = find_node(graph, 0, copies_for);
    const InPlace found = at < graph->n_nodes ? in_place(graph, at) : InPlace{};
    return node == found.gathered || node == found.stored;
}

}  // namespace selfspec
#endif
