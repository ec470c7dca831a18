#include "graph/selfspec-hooks.h"

#include "ggml.h"

#include <chrono>
#include <ctime>

namespace {

double now_seconds() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Processor time of the calling thread. Where no clock tells it, threads never seem to be kept waiting.
double busy_seconds() {
#if defined(CLOCK_THREAD_CPUTIME_ID)
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double) time.tv_sec + 1e-9*(double) time.tv_nsec;
#else
    return now_seconds();
#endif
}

// Passes with equally many nodes have the same blocks and, by the columns of their first product, the same tokens.
uint64_t kind_of(ggml_cgraph * graph, int n_threads) {
    const int n_nodes = ggml_graph_n_nodes(graph);
    int i = 0;
    while (i < n_nodes && ggml_graph_node(graph, i)->op != GGML_OP_MUL_MAT) {
        i++;
    }
    const uint64_t n_columns = i < n_nodes ? ggml_graph_node(graph, i)->ne[1] : 0;
    return (uint64_t) n_threads << 48 ^ (uint64_t) n_nodes << 24 ^ n_columns;
}

}  // namespace

selfspec_timed_graph::selfspec_timed_graph(selfspec_thread_count & count, ggml_cgraph * graph, int & n_threads) :
    count(count), can_change(n_threads > 1) {
    if (can_change) {
        begun = now_seconds();
        n_threads = count.choose(begun, n_threads, kind_of(graph, n_threads));
        begun_busy = busy_seconds();
    }
}

selfspec_timed_graph::~selfspec_timed_graph() {
    if (can_change) {
        const double now = now_seconds();
        const double seconds = now - begun;
        count.took(now, seconds, seconds - (busy_seconds() - begun_busy));
    }
}
