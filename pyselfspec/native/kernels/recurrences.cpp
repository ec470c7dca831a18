// The recurrences of hybrid models: gated delta nets (https://arxiv.org/abs/2412.06464) and the scans of Mamba
// (https://arxiv.org/abs/2312.00752) and Mamba-2 (https://arxiv.org/abs/2405.21060).
//
// The state of a head is a matrix. Each of its rows has a recurrence of its own: it decays, a multiple of the token's key is added, and
// the result is its product with the token's query. So threads share rows, and a few rows go through several tokens while they are in
// the nearest cache. Upstream goes through the matrix of a head five times for each token. A row's operations are in the same order
// for any number of tokens, and on any thread.
#include "product.h"

#if defined(SELFSPEC_KERNELS)

#include "recurrences.h"

#include "ggml-cpu-impl.h"
#include "ggml-impl.h"
#include "vec.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace selfspec {

namespace {

constexpr int64_t MOST_VALUES = 256;  // of a row
constexpr int     AT_ONCE     = 4;    // rows whose sums are in registers, VL of them being a tile
constexpr int     TOKENS      = 8;    // for which a tile stays in the nearest cache

float softplus(float x) { return x > 20 ? x : std::log(1 + std::exp(x)); }

// What a state takes in: a value for each row, head, token and sequence.
const ggml_tensor * values_of(const ggml_tensor * op) { return op->src[op->op == GGML_OP_SSM_SCAN ? 1 : 2]; }

// The states before and after an op: matrices of rows of n values, one for each head and sequence. A thread computes the same tiles of
// all of them, so that no other reads what it writes.
class States {
public:
    int64_t n, n_rows, n_heads, n_tokens, n_seqs, n_kept;
    int64_t first, last;  // tiles of this thread

    States(const ggml_compute_params * params, const ggml_tensor * op, const InPlace & in_place, const int32_t * rows) {
        const ggml_tensor * state = state_before(op), * values = values_of(op);
        n            = state->ne[0];
        n_rows       = values->ne[0];
        n_heads      = values->ne[1];
        n_tokens     = values->ne[2];
        n_seqs       = values->ne[3];
        n_kept       = ggml_get_op_params_i32(op, 0);
        before       = (const char *) state->data;
        bytes_before = state->nb[3];
        ids          = op->op == GGML_OP_SSM_SCAN ? (const int32_t *) op->src[6]->data : nullptr;
        out          = (float *) op->data;
        after        = out + ggml_nelements(values);
        if (in_place.stored) {
            after = (float *) in_place.stored->data;
        }
        if (const ggml_tensor * copied = in_place.gathered) {
            before       = (const char *) copied->src[0]->data;
            bytes_before = copied->src[0]->nb[1];
            ids          = rows;
        }
        const int64_t n_tiles = n_rows*n_heads/VL;
        first = n_tiles*params->ith/params->nth;
        last  = n_tiles*(params->ith + 1)/params->nth;
        if (overlap()) {
            save();
        }
    }
    float * kept(int64_t seq, int64_t i) const { return after + (i*n_seqs + seq)*size(); }
    float * results(int64_t seq, int64_t token) const { return out + (seq*n_tokens + token)*n_heads*n_rows; }

    // A tile of the state before.
    const float * in(int64_t seq, int64_t tile) const {
        return saved.empty() ? cached(seq) + tile*VL*n : saved.data() + ((last - first)*seq + tile - first)*VL*n;
    }

private:
    int64_t size() const { return n*n_rows*n_heads; }
    const float * cached(int64_t seq) const { return (const float *) (before + bytes_before*(ids ? ids[seq] : seq)); }

    // Whether a state after is where the state before of another sequence is.
    bool overlap() const {
        for (int64_t seq = 0; seq < n_seqs; seq++) {
            const int64_t place = cached(seq) - after;
            if (place != seq*size() && place > -size() && place < n_seqs*size()) {
                return true;
            }
        }
        return false;
    }

    void save() {
        for (int64_t seq = 0; seq < n_seqs; seq++) {
            saved.insert(saved.end(), cached(seq) + first*VL*n, cached(seq) + last*VL*n);
        }
    }

    const char *       before;  // bytes_before apart
    size_t             bytes_before;
    const int32_t *    ids;     // of the states before, by sequence; none if they are in order
    float *            out;     // results by sequence, token, head and row
    float *            after;   // n_kept states of all sequences, the last one first
    std::vector<float> saved;   // this thread's tiles of the states before, by sequence; none if they stay
};

// A token of a head: row = decays*row + d*key and result = scale*(row*query), where d is strength*(value - past*row) for a delta net, and
// strength*value for a scan.
struct Step {
    const float * key;
    const float * query;
    const float * values;  // by row
    float         strength;
    float         scale;
    float         decays[MOST_VALUES];
    float         past[MOST_VALUES];  // decays*key
};

// Multiplies the rows of a tile by a vector: the sum of row i is in lane i.
vf times(const float * rows, int64_t n, const float * vector) {
    vf totals[VL];
    for (int first = 0; first < VL; first += AT_ONCE) {
        vf found[AT_ONCE];
        each<AT_ONCE>([&](auto r) { found[r] = zero(); });
        for (int64_t i = 0; i < n; i += VL) {
            const vf x = load_f(vector + i);
            each<AT_ONCE>([&](auto r) { found[r] = fma(load_f(rows + (first + r)*n + i), x, found[r]); });
        }
        each<AT_ONCE>([&](auto r) { totals[first + r] = found[r]; });
    }
    return sums(totals);
}

// Advances a tile, which may stay where it is, by a token. Returns the rows' products with the query.
vf advance(const float * from, float * to, int64_t n, const Step & step, vf added) {
    float d[VL];
    store_f(d, added);
    vf totals[VL];
    for (int first = 0; first < VL; first += AT_ONCE) {
        vf found[AT_ONCE], factor[AT_ONCE];
        each<AT_ONCE>([&](auto r) { found[r] = zero(); factor[r] = repeat_f(d[first + r]); });
        for (int64_t i = 0; i < n; i += VL) {
            const vf decay = load_f(step.decays + i), key = load_f(step.key + i), query = load_f(step.query + i);
            each<AT_ONCE>([&](auto r) {
                const int64_t place = (first + r)*n + i;
                const vf      x     = fma(load_f(from + place), decay, mul(factor[r], key));
                store_f(to + place, x);
                found[r] = fma(x, query, found[r]);
            });
        }
        each<AT_ONCE>([&](auto r) { totals[first + r] = found[r]; });
    }
    return sums(totals);
}

// Takes a tile of a sequence through tokens [first, last). step(token, from, to): does one.
template <typename F> void through_tokens(const States & states, int64_t seq, int64_t tile, int64_t first, int64_t last, F step) {
    const int64_t place = tile*VL*states.n;
    float * const to    = states.kept(seq, 0) + place;
    for (int64_t token = first; token < last; token++) {
        step(token, token == 0 ? states.in(seq, tile) : to, to);
        if (const int64_t i = states.n_tokens - 1 - token; i > 0 && i < states.n_kept) {
            std::copy_n(to, VL*states.n, states.kept(seq, i) + place);
        }
    }
}

// For heads whose rows have the same steps. prepare(step, seq, head, token): writes a step.
template <bool IS_DELTA, typename F> void heads(const States & states, F prepare) {
    const int64_t n = states.n, of_head = states.n_rows/VL;
    Step steps[TOKENS];
    for (int64_t seq = 0; seq < states.n_seqs; seq++) {
        for (int64_t first = states.first; first < states.last;) {
            const int64_t head = first/of_head, end = std::min(states.last, (head + 1)*of_head);
            for (int64_t token = 0; token < states.n_tokens; token += TOKENS) {
                const int64_t last = std::min(states.n_tokens, token + TOKENS);
                for (int64_t t = token; t < last; t++) {
                    prepare(steps[t - token], seq, head, t);
                }
                for (int64_t tile = first; tile < end; tile++) {
                    const int64_t row = tile*VL, in_head = row - head*states.n_rows;
                    through_tokens(states, seq, tile, token, last, [&](int64_t t, const float * from, float * to) {
                        const Step & step  = steps[t - token];
                        const vf     value = load_f(step.values + in_head), strength = repeat_f(step.strength);
                        const vf     added = mul(IS_DELTA ? sub(value, times(from, n, step.past)) : value, strength);
                        store_f(states.results(seq, t) + row, mul(advance(from, to, n, step, added), repeat_f(step.scale)));
                    });
                }
            }
            first = end;
        }
    }
}

void delta_net(const States & states, const ggml_tensor * op) {
    const ggml_tensor * q = op->src[0], * k = op->src[1], * v = op->src[2], * g = op->src[3], * beta = op->src[4];
    const int64_t n = states.n, n_seqs = states.n_seqs;
    const float scale = 1/std::sqrt((float) n);
    heads<true>(states, [&](Step & step, int64_t seq, int64_t head, int64_t token) {
        step.query    = float_row(q, head%q->ne[1], token, seq/(n_seqs/q->ne[3]));
        step.key      = float_row(k, head%k->ne[1], token, seq/(n_seqs/k->ne[3]));
        step.values   = float_row(v, head, token, seq);
        step.strength = *float_row(beta, head, token, seq);
        step.scale    = scale;
        const float * const decays = float_row(g, head, token, seq);
        const vf decay = ggml_v_expf(repeat_f(decays[0]));
        for (int64_t i = 0; i < n; i += VL) {
            const vf x = g->ne[0] == 1 ? decay : ggml_v_expf(load_f(decays + i));
            store_f(step.decays + i, x);
            store_f(step.past + i, mul(x, load_f(step.key + i)));
        }
    });
}

// The states of Mamba-2: all values of a head decay alike.
void scan_heads(const States & states, const ggml_tensor * op) {
    const ggml_tensor * x = op->src[1], * dt = op->src[2], * a = op->src[3], * b = op->src[4], * c = op->src[5];
    const int64_t of_group = states.n_heads/b->ne[1];
    heads<false>(states, [&](Step & step, int64_t seq, int64_t head, int64_t token) {
        const float time = softplus(float_row(dt, token, seq)[head]);
        step.key      = float_row(b, head/of_group, token, seq);
        step.query    = float_row(c, head/of_group, token, seq);
        step.values   = float_row(x, head, token, seq);
        step.strength = time;
        step.scale    = 1;
        std::fill_n(step.decays, states.n, std::exp(time*float_row(a, head)[0]));
    });
}

// The states of Mamba: a row for each channel, whose values decay differently.
void scan_channels(const States & states, const ggml_tensor * op) {
    const ggml_tensor * x = op->src[1], * dt = op->src[2], * a = op->src[3], * b = op->src[4], * c = op->src[5];
    const int64_t n = states.n;
    for (int64_t seq = 0; seq < states.n_seqs; seq++) {
        for (int64_t tile = states.first; tile < states.last; tile++) {
            const int64_t channel = tile*VL;
            through_tokens(states, seq, tile, 0, states.n_tokens, [&](int64_t token, const float * from, float * to) {
                const float * const values = float_row(x, channel, token, seq);
                const float * const times  = float_row(dt, token, seq) + channel;
                const float * const key    = float_row(b, 0, token, seq);
                const float * const query  = float_row(c, 0, token, seq);
                vf totals[VL];
                for (int r = 0; r < VL; r++) {
                    const float         time = softplus(times[r]);
                    const float * const rate = float_row(a, channel + r);
                    totals[r] = zero();
                    for (int64_t i = 0; i < n; i += VL) {
                        const vf decay = ggml_v_expf(mul(repeat_f(time), load_f(rate + i)));
                        const vf value = fma(load_f(from + r*n + i), decay, mul(repeat_f(time*values[r]), load_f(key + i)));
                        store_f(to + r*n + i, value);
                        totals[r] = fma(value, load_f(query + i), totals[r]);
                    }
                }
                store_f(states.results(seq, token) + channel, sums(totals));
            });
        }
    }
}

bool are_float_rows(const ggml_tensor * op, int n_src) {
    return std::all_of(op->src, op->src + n_src, [](const ggml_tensor * t) { return t->type == GGML_TYPE_F32 && t->nb[0] == sizeof(float); });
}

// Whether the states of a sequence are whole tiles side by side.
bool is_whole(const ggml_tensor * states) {
    const int64_t n = states->ne[0], n_rows = states->ne[1]*states->ne[2];
    return n%VL == 0 && n <= MOST_VALUES && n_rows%VL == 0 && states->nb[1] == n*sizeof(float) &&
           states->nb[2] == states->ne[1]*states->nb[1];
}

}  // namespace

bool takes_recurrence(const ggml_tensor * op) {
    switch (op->op) {
        case GGML_OP_GATED_DELTA_NET:
            return are_float_rows(op, 6) && is_whole(op->src[5]) && op->src[5]->ne[1]%VL == 0;
        case GGML_OP_SSM_SCAN: {
            const bool has_channels = op->src[3]->ne[0] != 1;
            return are_float_rows(op, 6) && is_whole(op->src[0]) &&
                   (has_channels ? op->src[0]->ne[1] == 1 && op->src[1]->nb[1] == sizeof(float) && op->src[4]->ne[1] == 1 :
                                   op->src[0]->ne[1]%VL == 0);
        }
        default:
            return false;
    }
}

const ggml_tensor * state_before(const ggml_tensor * op) { return op->src[op->op == GGML_OP_SSM_SCAN ? 0 : 5]; }

int64_t n_sequences(const ggml_tensor * op) { return values_of(op)->ne[3]; }

size_t state_bytes(const ggml_tensor * op) {
    const ggml_tensor * t = state_before(op);
    return t->ne[0]*t->ne[1]*t->ne[2]*n_sequences(op)*sizeof(float);
}

bool keeps_one_state(const ggml_tensor * op) { return ggml_get_op_params_i32(op, 0) == 1; }

void recurrence(const ggml_compute_params * params, ggml_tensor * op, const InPlace & in_place, const int32_t * rows) {
    const States states(params, op, in_place, rows);
    if (op->op == GGML_OP_GATED_DELTA_NET) {
        delta_net(states, op);
    } else if (op->src[3]->ne[0] == 1) {
        scan_heads(states, op);
    } else {
        scan_channels(states, op);
    }
}

}  // namespace selfspec
#endif
