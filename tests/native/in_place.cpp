// Which copies of a state in_place.cpp leaves out of graphs, a line for each graph.
#include "in_place.h"

#include "ggml-cpp.h"
#include "ggml-impl.h"

#include <cstdio>
#include <functional>

using namespace selfspec;

namespace {

constexpr int64_t SIZE = 32, N_HEADS = 2, N_ROWS = 40, ALL = SIZE*SIZE*N_HEADS;

// The graph of a gated delta net, and what a case does to it.
struct Net {
    ggml_context * ctx;
    ggml_cgraph  * graph = ggml_new_graph(ctx);
    ggml_tensor  * cache = floats(ALL, N_ROWS);
    ggml_tensor  * rows = nullptr, * op = nullptr;

    ggml_tensor * floats(int64_t a, int64_t b = 1, int64_t c = 1, int64_t d = 1) { return ggml_new_tensor_4d(ctx, GGML_TYPE_F32, a, b, c, d); }
    ggml_tensor * row(int64_t i) { return ggml_view_1d(ctx, cache, ALL, i*cache->nb[1]); }
    ggml_tensor * state_after(int64_t n_seqs = 1) {
        return ggml_view_1d(ctx, op, n_seqs*ALL, ggml_nbytes(op) - n_seqs*ALL*sizeof(float));
    }
    void add(ggml_tensor * node) { ggml_build_forward_expand(graph, node); }

    void make_rows(int64_t n_seqs) {
        rows = ggml_get_rows(ctx, cache, ggml_new_tensor_1d(ctx, GGML_TYPE_I32, n_seqs));
        add(rows);
    }
    void make_op(int64_t n_seqs, int64_t n_kept = 1) {
        const auto of_heads = [&](int64_t n) { return floats(n, N_HEADS, 1, n_seqs); };
        ggml_tensor * state = ggml_reshape_4d(ctx, rows, SIZE, SIZE, N_HEADS, n_seqs);
        op = ggml_gated_delta_net(ctx, of_heads(SIZE), of_heads(SIZE), of_heads(SIZE), of_heads(1), of_heads(1), state, n_kept);
        add(op);
    }
    void store(int64_t n_seqs = 1) {
        add(ggml_cpy(ctx, state_after(n_seqs), ggml_view_1d(ctx, cache, n_seqs*ALL, cache->nb[1])));
    }
};

void show(const char * name, const std::function<void(Net &)> & make) {
    ggml_context_ptr ctx(ggml_init({1 << 20, nullptr, false}));
    Net net = {ctx.get()};
    make(net);
    int n_left_out = 0, has_gathered = 0, has_stored = 0;
    for (int i = 0; i < ggml_graph_n_nodes(net.graph); i++) {
        const InPlace found = in_place(net.graph, i);
        n_left_out   += is_left_out(net.graph, i);
        has_gathered += found.gathered == net.rows;
        has_stored   += found.stored != nullptr;
    }
    printf("%s: %d %d %d\n", name, has_gathered, has_stored, n_left_out);
}

}  // namespace

int main() {
    show("plain", [](Net & net) { net.make_rows(1); net.make_op(1); net.store(); });
    show("two sequences", [](Net & net) { net.make_rows(2); net.make_op(2); net.store(2); });
    show("one of two sequences is stored", [](Net & net) { net.make_rows(2); net.make_op(2); net.store(); });
    show("33 sequences", [](Net & net) { net.make_rows(33); net.make_op(33); net.store(33); });
    show("two states kept", [](Net & net) { net.make_rows(1); net.make_op(1, 2); net.store(); });
    show("not stored", [](Net & net) { net.make_rows(1); net.make_op(1); });
    show("the copy is read", [](Net & net) {
        net.make_rows(1); net.make_op(1); net.store();
        net.add(ggml_sqr(net.ctx, net.rows));
    });
    show("the cache is written in between", [](Net & net) {
        net.make_rows(1);
        net.add(ggml_cpy(net.ctx, net.floats(ALL), net.row(0)));
        net.make_op(1); net.store();
    });
    show("the new state is read", [](Net & net) {
        net.make_rows(1); net.make_op(1); net.store();
        net.add(ggml_sqr(net.ctx, net.state_after()));
    });
    show("results are read", [](Net & net) {
        net.make_rows(1); net.make_op(1);
        net.add(ggml_sqr(net.ctx, ggml_view_1d(net.ctx, net.op, SIZE*N_HEADS, 0)));
        net.store();
    });
    show("the cache is read before it is stored", [](Net & net) {
        net.make_rows(1); net.make_op(1);
        net.add(ggml_sqr(net.ctx, net.row(1)));
        net.store();
    });
    show("an output", [](Net & net) { net.make_rows(1); net.make_op(1); ggml_set_output(net.op); net.store(); });
}
