// Where the threads that compute a graph wait for each other: a node waits only for results that it needs, and small nodes are
// computed by the first thread alone. Upstream's threads meet after every node, and in products once more.
#include "meetings.h"

#include "dispatch.h"
#include "product.h"

#if defined(SELFSPEC_KERNELS)

#include "attention.h"
#include "in_place.h"
#include "likeliest.h"
#include "per_graph.h"
#include "products.h"
#include "ranges.h"
#include "recurrences.h"
#include "windows.h"

#include "ggml-cpu-impl.h"
#include "ggml-impl.h"

#include <algorithm>
#include <iterator>
#include <new>
#include <vector>

namespace selfspec {

namespace {

// How threads compute a node.
enum Way : uint8_t {
    BY_FIRST, // the first one alone
    SHARED,   // each a part, without meeting; the work memory is not used
    PRODUCT,  // ours; they meet after its activations are prepared, unless these are ready
    STAGED,   // ours; they meet inside, and use the work memory
    OTHER,    // in any way
    LEFT_OUT, // not at all; each looks at the indices of the rows that would be copied
};

// One thread computes this many results in less time than several take to meet.
constexpr int64_t FEW = 4096;

// For RoPE's angles, in place of the work memory. Larger heads do not exist.
constexpr size_t SCRATCH = 8192;

bool is_float(const ggml_tensor * t) { return !t || t->type == GGML_TYPE_F32; }

// Operations on rows that need no work memory, besides RoPE, which needs a little.
bool is_simple(const ggml_tensor * op) {
    switch (op->op) {
        case GGML_OP_ADD:
        case GGML_OP_SUB:
        case GGML_OP_MUL:
        case GGML_OP_DIV:
        case GGML_OP_SCALE:
        case GGML_OP_NORM:
        case GGML_OP_RMS_NORM:
        case GGML_OP_L2_NORM:
        case GGML_OP_CPY:
        case GGML_OP_CONT:
        case GGML_OP_UNARY:
        case GGML_OP_GLU:  return is_float(op) && is_float(op->src[0]) && is_float(op->src[1]);
        case GGML_OP_ROPE: return is_float(op) && op->ne[0]*sizeof(float) + 1024 <= SCRATCH;
        case GGML_OP_SET_ROWS: return is_float(op->src[0]);
        default:           return false;
    }
}

// The number of values that it computes.
int64_t size_of(const ggml_tensor * op) { return ggml_nelements(op->op == GGML_OP_SET_ROWS ? op->src[0] : op); }
int64_t rows_of(const ggml_tensor * op) { return ggml_nrows(op->op == GGML_OP_SET_ROWS ? op->src[0] : op); }

Way way_of(const ggml_tensor * op) {
    if (op->op == GGML_OP_MUL_MAT && takes_product(op)) {
        return PRODUCT;
    }
    if (takes_likeliest(op) || (op->op == GGML_OP_MUL_MAT_ID && takes_product(op)) ||
        (op->op == GGML_OP_FLASH_ATTN_EXT && takes_attention(op))) {
        return STAGED;
    }
    if (takes_recurrence(op) || takes_window(op)) {
        return SHARED;
    }
    if (!is_simple(op)) {
        return OTHER;
    }
    const bool is_copy = op->op == GGML_OP_CPY || op->op == GGML_OP_CONT;  // of which threads share bytes
    if ((rows_of(op) == 1 && !is_copy) || size_of(op) <= FEW) {
        return BY_FIRST;  // upstream's threads share rows, so a single row has one thread anyway
    }
    // upstream computes a norm and the product after it together; RoPE would need the work memory
    return op->op == GGML_OP_RMS_NORM || op->op == GGML_OP_ROPE ? OTHER : SHARED;
}

bool uses_work(Way way) { return way == PRODUCT || way == STAGED || way == OTHER; }

template <typename F> bool any_unsettled(const selfspec_meetings & of, F is) {
    for (int i = 0; i < of.n; i++) {
        if (is(of.nodes[i], (Way) of.ways[i])) {
            return true;
        }
    }
    return false;
}

// Whether the work memory has the activations of this product from an earlier one.
bool has_inputs(const selfspec_meetings & of, const ggml_tensor * op) {
    const ggml_tensor * last = of.prepared;
    return last && of.n_sharing < MAX_SHARING && last->src[1]->data == op->src[1]->data &&
           ggml_are_same_shape(last->src[1], op->src[1]) && ggml_are_same_stride(last->src[1], op->src[1]) && same_inputs(last, op);
}

bool must_meet(const selfspec_meetings & of, const ggml_tensor * op, Way way, bool is_ready) {
    if (of.n == SELFSPEC_MOST_UNSETTLED) {
        return true;
    }
    return any_unsettled(of, [&](const ggml_tensor * other, Way others) {
        if (way == OTHER || others == OTHER) {
            return true;
        }
        switch (way) {
            case BY_FIRST: return others != BY_FIRST && conflict(op, other);
            case SHARED:   return conflict(op, other);
            case STAGED:   return uses_work(others) || reads(op, Range(other));
            default:       break;
        }
        if (is_ready) {
            return conflict(op, other);
        }
        const bool is_small = ggml_nelements(op->src[1]) <= FEW;
        return uses_work(others) || (!(is_small && others == BY_FIRST) && Range(op->src[1]).overlaps(Range(other)));
    });
}

// The state after a node, whose threads may not have finished.
void note(selfspec_meetings & of, const ggml_tensor * op, Way way) {
    if (way == STAGED || (way == PRODUCT && of.inputs != (int) Inputs::ready)) {
        of.n = 0;  // they have met inside
    }
    of.nodes[of.n]  = op;
    of.ways[of.n++] = way;
    if (way == PRODUCT && of.inputs != (int) Inputs::ready) {
        of.prepared  = op;
        of.n_sharing = 0;
    } else if (way == STAGED || way == OTHER) {
        of.prepared = nullptr;
    }
    if (way == PRODUCT) {
        of.n_sharing++;
    }
    if (of.prepared && Range(of.prepared->src[1]).overlaps(Range(op))) {
        of.prepared = nullptr;
    }
}

struct Decision {
    bool    meets;
    Way     way;
    uint8_t inputs;
    int     n_sharing;
    InPlace in_place;
};

// For the nodes of a graph in the order in which they are computed. To decide anew in every pass took 0.1 ms of 4.2 (SmolLM2).
struct Decisions {
    std::vector<Decision> of_nodes;
    bool                  is_complete = false;
};

// Decides on a node after those before it.
Decision decide(selfspec_meetings & of, const ggml_compute_params * params, const ggml_tensor * op) {
    constexpr uint8_t UNREADY = (uint8_t) Inputs::unready;
    if (params->use_ref || is_off()) {
        return {true, OTHER, UNREADY, 0, {}};
    }
    while (of.graph->nodes[of.place] != op) {
        of.place++;
    }
    const InPlace found = in_place(of.graph, of.place);
    const bool is_left  = is_left_out(of.graph, of.place);
    if (is_left && op->op == GGML_OP_CPY) {
        return {false, LEFT_OUT, UNREADY, 0, {}};
    }
    if (params->nth == 1) {
        return {true, is_left ? LEFT_OUT : OTHER, UNREADY, 0, found};
    }
    const Way  way      = is_left ? SHARED : found.stored ? OTHER : way_of(op);
    const bool is_ready = way == PRODUCT && has_inputs(of, op);
    const bool meets    = must_meet(of, op, way, is_ready);
    if (meets) {
        of.n = 0;
    }
    const bool with_first = way == PRODUCT && any_unsettled(of, [&](const ggml_tensor * other, Way) {
        return Range(op->src[1]).overlaps(Range(other));
    });
    of.inputs = (uint8_t) (is_ready ? Inputs::ready : with_first ? Inputs::only_with_first : Inputs::unready);
    note(of, op, way);
    return {meets, is_left ? LEFT_OUT : way, of.inputs, of.n_sharing, found};
}

}  // namespace

}  // namespace selfspec

selfspec_meetings selfspec_begin(const ggml_cgraph * graph, const ggml_compute_params * params) {
    using namespace selfspec;
    selfspec_meetings of = {};
    of.graph = graph;
    if (graph->uid == 0 || graph->n_nodes == 0 || params->use_ref || is_off()) {
        return of;
    }
    thread_local PerGraph<Decisions> kept;
    Decisions & decisions = kept.of(graph->uid, params->nth);
    if (!decisions.is_complete) {
        decisions.of_nodes.clear();
        try {
            decisions.of_nodes.reserve(graph->n_nodes);
        } catch (const std::bad_alloc &) {
            return of;
        }
    }
    of.decisions = &decisions;
    return of;
}

bool selfspec_meets(selfspec_meetings * of, const ggml_compute_params * params, const ggml_tensor * op) {
    using namespace selfspec;
    Decisions * const decisions = (Decisions *) of->decisions;
    const bool     is_known = decisions && decisions->is_complete;
    const Decision decision = is_known ? decisions->of_nodes[of->n_decided++] : decide(*of, params, op);
    of->way       = decision.way;
    of->inputs    = decision.inputs;
    of->n_sharing = decision.n_sharing;
    of->gathered  = decision.in_place.gathered;
    of->stored    = decision.in_place.stored;
    if (of->way == LEFT_OUT && op->op == GGML_OP_GET_ROWS) {
        std::copy_n((const int32_t *) op->src[1]->data, ggml_nelements(op->src[1]), of->rows);  // later their memory may have other contents
    }
    if (decisions && !is_known) {
        decisions->of_nodes.push_back(decision);
        decisions->is_complete = of->place == of->graph->n_nodes - 1;  // never if that one is computed with another: then each pass decides
    }
    return decision.meets;
}

bool selfspec_compute(const selfspec_meetings * of, ggml_compute_params * params, ggml_tensor * op, selfspec_forward forward) {
    using namespace selfspec;
    if (of->way == LEFT_OUT) {
        return true;
    }
    if (of->way != BY_FIRST) {
        return compute(*of, params, op);
    }
    if (params->ith == 0) {
        alignas(64) char scratch[SCRATCH];
        ggml_compute_params alone = *params;
        alone.nth   = 1;
        alone.wdata = scratch;
        alone.wsize = sizeof(scratch);
        forward(&alone, op);
    }
    return true;
}

#else

selfspec_meetings selfspec_begin(const ggml_cgraph *, const ggml_compute_params *) { return {}; }
bool selfspec_meets(selfspec_meetings *, const ggml_compute_params *, const ggml_tensor *) { return true; }

bool selfspec_compute(const selfspec_meetings *, ggml_compute_params *, ggml_tensor *, selfspec_forward) { return false; }

#endif
