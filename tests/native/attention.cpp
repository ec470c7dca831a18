// Attention of pyselfspec/native/kernels against sums in double precision over K and V as ggml unpacks them, and against
// itself: a token alone, and other numbers of threads. Every buffer ends where its contents end, for AddressSanitizer.
// Prints what was wrong, if anything.
#include "attention.h"
#include "product.h"

#include <array>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "ggml-cpu-impl.h"

using namespace selfspec;

// The backend's, which is not linked: all threads come, then all go on.
static struct {
    std::mutex              mutex;
    std::condition_variable changed;
    int                     n_threads = 1, n_waiting = 0, n_passed = 0;
} meeting;

extern "C" void ggml_barrier(struct ggml_threadpool *) {
    std::unique_lock<std::mutex> lock(meeting.mutex);
    const int passed = meeting.n_passed;
    if (++meeting.n_waiting == meeting.n_threads) {
        meeting.n_waiting = 0;
        meeting.n_passed++;
        meeting.changed.notify_all();
    }
    meeting.changed.wait(lock, [&] { return meeting.n_passed != passed; });
}

namespace {

std::mt19937 rng(1);
int          n_failed = 0;

struct Case {
    ggml_type type_k, type_v;
    int64_t   dk, dv, n_cells, n_heads, n_kv_heads, n_tokens;
    float     max_bias, softcap;
    bool      masked, sinks;
};

std::vector<float> random_floats(int64_t n, float scale = 1) {
    std::normal_distribution<float> normal(0, scale);
    std::vector<float> out(n);
    for (auto & x : out) {
        x = normal(rng);
    }
    return out;
}

ggml_tensor tensor(ggml_type type, void * data, std::array<int64_t, 4> ne) {
    ggml_tensor t = {};
    t.type = type;
    t.data = data;
    std::copy(ne.begin(), ne.end(), t.ne);
    t.nb[0] = ggml_type_size(type);
    t.nb[1] = ggml_row_size(type, ne[0]);
    t.nb[2] = t.nb[1]*ne[1];
    t.nb[3] = t.nb[2]*ne[2];
    return t;
}

// Rows of all heads side by side for each cell, as in a cache.
struct Stored {
    std::vector<char>  bytes;
    std::vector<float> floats;  // as ggml unpacks them
    ggml_tensor        t;

    Stored(ggml_type type, int64_t d, int64_t n_cells, int64_t n_heads) {
        floats = random_floats(d*n_cells*n_heads);
        const size_t row = ggml_row_size(type, d);
        bytes.resize(row*n_cells*n_heads);
        ggml_quantize_chunk(type, floats.data(), bytes.data(), 0, n_cells*n_heads, d, nullptr);
        if (type != GGML_TYPE_F32) {
            ggml_get_type_traits(type)->to_float(bytes.data(), floats.data(), d*n_cells*n_heads);
        }
        t = tensor(type, bytes.data(), {d, n_cells, n_heads, 1});
        t.nb[1] = row*n_heads;
        t.nb[2] = row;
        t.nb[3] = row*n_heads*n_cells;
    }
    const float * row(int64_t cell, int64_t head) const { return floats.data() + (cell*t.ne[2] + head)*t.ne[0]; }
};

struct Inputs {
    Case                     c;
    Stored                   k, v;
    std::vector<float>       q;     // [head][token][dk]
    std::vector<ggml_fp16_t> mask;  // [token][cell]
    std::vector<float>       sinks;
    int32_t                  unknown_hint = 0;

    explicit Inputs(const Case & c) :
        c(c), k(c.type_k, c.dk, c.n_cells, c.n_kv_heads), v(c.type_v, c.dv, c.n_cells, c.n_kv_heads),
        q(random_floats(c.dk*c.n_tokens*c.n_heads)), mask(c.n_tokens*c.n_cells), sinks(random_floats(c.n_heads)) {
        for (int64_t t = 0; t < c.n_tokens; t++) {
            for (int64_t i = 0; i < c.n_cells; i++) {
                // nobody sees cells 64 to 159, and the second token sees nothing; distances as with ALiBi
                const bool hidden = (i >= 64 && i < 160) || i > c.n_cells - c.n_tokens + t || rng()%5 == 0 || t == 1;
                mask[t*c.n_cells + i] = ggml_fp32_to_fp16(hidden ? -INFINITY : -(float) (i%7));
            }
        }
    }

    float mask_of(int64_t token, int64_t cell) const {
        return c.masked ? ggml_fp16_to_fp32(mask[token*c.n_cells + cell]) : 0;
    }
};

float slope(const Case & c, int64_t head) {
    const int64_t n = int64_t(1) << (int) std::floor(std::log2((double) c.n_heads));
    return c.max_bias <= 0 ? 1 : head < n ? std::pow(2, -c.max_bias/n*(head + 1)) : std::pow(2, -c.max_bias/2/n*(2*(head - n) + 1));
}

float scale_of(const Case & c) { return 1/std::sqrt((float) c.dk); }

// Of tokens [first, first + n): rows [token][head][dv]. n_asked: threads that work memory is for.
std::vector<float> computed(const Inputs & in, int64_t first, int64_t n, int n_threads, int n_asked) {
    const Case & c = in.c;
    std::vector<float> out(n*c.n_heads*c.dv, NAN);
    ggml_tensor q = tensor(GGML_TYPE_F32, (void *) (in.q.data() + first*c.dk), {c.dk, n, c.n_heads, 1});
    q.nb[2] = c.n_tokens*c.dk*sizeof(float);
    q.nb[3] = q.nb[2]*c.n_heads;
    ggml_tensor k = in.k.t, v = in.v.t;
    ggml_tensor mask  = tensor(GGML_TYPE_F16, (void *) (in.mask.data() + first*c.n_cells), {c.n_cells, n, 1, 1});
    ggml_tensor sinks = tensor(GGML_TYPE_F32, (void *) in.sinks.data(), {c.n_heads, 1, 1, 1});
    ggml_tensor op    = tensor(GGML_TYPE_F32, out.data(), {c.dv, c.n_heads, n, 1});
    op.op = GGML_OP_FLASH_ATTN_EXT;
    const float parameters[] = {scale_of(c), c.max_bias, c.softcap};
    memcpy(op.op_params, parameters, sizeof(parameters));
    op.op_params[4] = in.unknown_hint;
    op.src[0] = &q;
    op.src[1] = &k;
    op.src[2] = &v;
    op.src[3] = c.masked ? &mask : nullptr;
    op.src[4] = c.sinks ? &sinks : nullptr;
    if (!takes_attention(&op)) {
        return {};
    }
    const size_t size = attention_work_size(&op, n_asked);
    const std::unique_ptr<char[]> work(new char[size]);
    memset(work.get(), 0xff, size);  // not numbers
    meeting.n_threads = n_threads;
    std::vector<std::thread> threads;
    for (int i = 0; i < n_threads; i++) {
        threads.emplace_back([&, i] {
            ggml_compute_params params = {};
            params.ith   = i;
            params.nth   = n_threads;
            params.wsize = size;
            params.wdata = work.get();
            attention(&params, &op);
        });
    }
    for (auto & thread : threads) {
        thread.join();
    }
    return out;
}

std::vector<float> computed(const Inputs & in, int64_t first, int64_t n, int n_threads) {
    return computed(in, first, n, n_threads, n_threads);
}

std::vector<double> expected(const Inputs & in, int64_t token, int64_t head) {
    const Case & c = in.c;
    const int64_t kv_head = head/(c.n_heads/c.n_kv_heads);
    const float * q = in.q.data() + (head*c.n_tokens + token)*c.dk;
    std::vector<double> out(c.dv);
    double total = c.sinks ? std::exp((double) in.sinks[head]) : 0;
    for (int64_t cell = 0; cell < c.n_cells; cell++) {
        double dot = 0;
        for (int64_t i = 0; i < c.dk; i++) {
            dot += (double) q[i]*in.k.row(cell, kv_head)[i];
        }
        dot *= scale_of(c);
        const double score  = c.softcap == 0 ? dot : c.softcap*std::tanh(dot/c.softcap);
        const double weight = std::exp(score + (double) slope(c, head)*in.mask_of(token, cell));
        total += weight;
        for (int64_t i = 0; i < c.dv; i++) {
            out[i] += weight*in.v.row(cell, kv_head)[i];
        }
    }
    for (double & x : out) {
        x = total == 0 ? 0 : x/total;
    }
    return out;
}

void check(const Case & c) {
    const auto fail = [&](const char * what, int64_t token, int n_threads) {
        printf("K %s, V %s, heads of %d and %d, %d cells, %d threads, token %d: %s\n", ggml_type_name(c.type_k),
            ggml_type_name(c.type_v), (int) c.dk, (int) c.dv, (int) c.n_cells, n_threads, (int) token, what);
        n_failed++;
    };
    const Inputs in(c);
    const int64_t row = c.n_heads*c.dv;
    const auto all = computed(in, 0, c.n_tokens, 1);
    if (all.empty()) {
        return fail("is not taken", 0, 1);
    }
    for (int64_t t = 0; t < c.n_tokens; t++) {
        for (int64_t h = 0; h < c.n_heads; h++) {
            const auto want = expected(in, t, h);
            for (int64_t i = 0; i < c.dv; i++) {
                if (!(std::fabs(all[t*row + h*c.dv + i] - want[i]) < 2e-5)) {
                    return fail("not attention", t, 1);
                }
            }
        }
        for (int n_threads : {1, 3, 16}) {
            if (memcmp(computed(in, t, 1, n_threads).data(), all.data() + t*row, row*sizeof(float)) != 0) {
                return fail("other bits alone", t, n_threads);
            }
        }
    }
    for (int n_threads : {2, 5, 16}) {
        if (computed(in, 0, c.n_tokens, n_threads) != all) {
            return fail("other bits with more threads", 0, n_threads);
        }
        if (computed(in, 0, c.n_tokens, n_threads/2, n_threads) != all) {
            return fail("other bits with fewer threads than were asked for", 0, n_threads/2);
        }
    }
}

// Queries that are not numbers have no results that are, unless they see nothing; and nothing beyond the cells is read,
// for AddressSanitizer. So it is with a cell of K, for those that see it.
void check_not_numbers(int64_t n_tokens) {
    Inputs in({GGML_TYPE_F16, GGML_TYPE_F16, 64, 64, 40, 6, 2, n_tokens, 0, 0, true, false});
    const auto all_are_nan = [&](const std::vector<float> & out, int64_t token) {
        const auto begin = out.begin() + token*in.c.n_heads*in.c.dv;
        return std::all_of(begin, begin + in.c.n_heads*in.c.dv, [](float x) { return std::isnan(x); });
    };
    const ggml_fp16_t none = 0x7e00;
    const auto k_before = in.k.bytes;
    for (int64_t t = 0; t < in.c.n_tokens; t++) {
        // all but one see cell t alone, whose K is no number
        for (int64_t i = 0; i < in.c.n_cells; i++) {
            in.mask[t*in.c.n_cells + i] = ggml_fp32_to_fp16(i == t && t != 1 ? 0 : -INFINITY);
        }
        for (int64_t head = 0; head < in.c.n_kv_heads && t != 3; head++) {
            memcpy(in.k.bytes.data() + t*in.k.t.nb[1] + head*in.k.t.nb[2], &none, sizeof(none));
        }
    }
    const auto of_k = computed(in, 0, in.c.n_tokens, 2);
    in.k.bytes = k_before;
    in.k.t.data = in.k.bytes.data();
    std::fill(in.q.begin(), in.q.end(), NAN);
    const auto of_q = computed(in, 0, in.c.n_tokens, 2);
    for (int64_t t = 0; t < in.c.n_tokens; t++) {
        n_failed += all_are_nan(of_q, t) != (t != 1);
        n_failed += all_are_nan(of_k, t) != (t != 1 && t != 3);
    }
}

// Many heads over one head of K and V and a long text take no more work memory for 32 tokens than for some.
void check_work_memory() {
    ggml_tensor q  = tensor(GGML_TYPE_F32, nullptr, {64, 32, 128, 1});
    ggml_tensor k  = tensor(GGML_TYPE_F16, nullptr, {64, 131072, 1, 1});
    ggml_tensor op = tensor(GGML_TYPE_F32, nullptr, {64, 128, 32, 1});
    op.src[0] = &q;
    op.src[1] = op.src[2] = &k;
    n_failed += attention_work_size(&op, 2) > 128 << 20;
}

// What nothing is computed for is left to upstream: no rows, or a hint that may mean something else.
void check_what_is_left_alone() {
    Inputs in({GGML_TYPE_F16, GGML_TYPE_F16, 64, 64, 40, 6, 2, 5, 0, 0, true, false});
    n_failed += !computed(in, 0, 0, 1).empty();
    in.unknown_hint = 1;
    n_failed += !computed(in, 0, in.c.n_tokens, 1).empty();
}

// A cell whose values are not numbers changes nothing for tokens that do not see it, whether rows are multiplied as they are,
// for few queries, or converted first.
void check_others_are_left_alone(int64_t n_heads, int64_t n_tokens) {
    Inputs in({GGML_TYPE_F16, GGML_TYPE_F16, 64, 64, 40, n_heads, 2, n_tokens, 0, 0, true, false});
    constexpr int64_t BAD = 3;
    for (int64_t t = 0; t < in.c.n_tokens; t++) {
        in.mask[t*in.c.n_cells + BAD] = ggml_fp32_to_fp16(t == 0 ? 0 : -INFINITY);
    }
    const auto before = computed(in, 0, in.c.n_tokens, 1);
    const size_t row = in.v.t.nb[1];
    for (size_t i = 0; i < row; i += sizeof(ggml_fp16_t)) {
        const ggml_fp16_t none = 0x7e00;
        memcpy(in.v.bytes.data() + BAD*row + i, &none, sizeof(none));
    }
    const auto after = computed(in, 0, in.c.n_tokens, 1);
    const int64_t of_token = in.c.n_heads*in.c.dv;
    n_failed += !std::isnan(after[0]);
    n_failed += memcmp(before.data() + of_token, after.data() + of_token, (in.c.n_tokens - 1)*of_token*sizeof(float)) != 0;
}

void check_sums() {
    vf v[VL];
    for (vf & each : v) {
        each = load_f(random_floats(VL).data());
    }
    float got[VL];
    store_f(got, sums(v));
    for (int i = 0; i < VL; i++) {
        n_failed += got[i] != sum(v[i]);
    }
}

}  // namespace

int main() {
    check_sums();
    check_not_numbers(5);
    check_not_numbers(7);
    check_work_memory();
    check_what_is_left_alone();
    check_others_are_left_alone(4, 3);
    check_others_are_left_alone(6, 5);
    const std::pair<ggml_type, ggml_type> types[] = {
        {GGML_TYPE_F16, GGML_TYPE_F16}, {GGML_TYPE_F32, GGML_TYPE_F32}, {GGML_TYPE_BF16, GGML_TYPE_BF16},
        {GGML_TYPE_Q8_0, GGML_TYPE_Q8_0}, {GGML_TYPE_Q4_0, GGML_TYPE_Q4_0}, {GGML_TYPE_Q5_1, GGML_TYPE_IQ4_NL},
        {GGML_TYPE_Q8_0, GGML_TYPE_F16},
    };
    int n = 0;
    for (const auto & [type_k, type_v] : types) {
        for (const int64_t n_cells : {1, 40, 257}) {
            n += 3;
            check({type_k, type_v, 64, 64, n_cells, 6, 2, 5, 0, 0, true, false});
            check({type_k, type_v, 32, 96, n_cells, 3, 3, 2, 8, 0, true, true});
            check({type_k, type_v, 128, 32, n_cells, 4, 1, 3, 0, 2, false, false});
        }
    }
    n += 2;
    check({GGML_TYPE_F16, GGML_TYPE_F16, 40, 50, 257, 6, 2, 3, 8, 0, true, true});
    check({GGML_TYPE_F32, GGML_TYPE_F32, 7, 3, 100, 2, 2, 3, 0, 0, true, false});
    check({GGML_TYPE_F16, GGML_TYPE_F16, 64, 64, 9000, 8, 4, 5, 0, 0, true, false});  // more than is computed at once
    n++;
    // prompts: more tokens than are computed at once, and what is left of them
    for (const int64_t n_tokens : {33, 70}) {
        n += 3;
        check({GGML_TYPE_F32, GGML_TYPE_F32, 7, 3, 100, 2, 2, n_tokens, 0, 0, true, false});
        check({GGML_TYPE_F16, GGML_TYPE_F16, 64, 64, 257, 6, 2, n_tokens, 0, 0, true, false});
        check({GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, 32, 96, 100, 3, 3, n_tokens, 8, 2, true, true});
    }
    printf("%d kinds of attention, %d wrong\n", n, n_failed);
    return n_failed > 0;
}
