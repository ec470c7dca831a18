// Attention of pyselfspec/native/kernels against sums in double precision, and against itself: a token alone, among others,
// with several threads, and without the cells that it does not see, which has to give the same bits.
// Prints what was wrong, if anything.
#include "simd.h"
#include "selfspec.h"

#include "attention.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

using namespace selfspec;

namespace {

std::mt19937 rng(1);
int          n_checked = 0, n_failed = 0;

float normal() { return std::normal_distribution<float>()(rng); }

struct Case {
    int64_t   n_heads, n_kv_heads, dk, dv, n_cells;
    ggml_type type;
    float     max_bias, softcap;
    bool      masked, sinks;
};

// Tokens, and cells of two texts in no order; a token sees the cells of its text up to its own position.
struct Data {
    std::vector<float> q, k, v, sinks;       // [token][head][dk], [cell][kv head][dk or dv]
    std::vector<std::vector<float>> mask;    // [token][cell]
};

Data random_data(const Case & c, int64_t n_tokens) {
    Data data;
    const auto fill = [](std::vector<float> & x, size_t n) {
        for (x.resize(n); n-- > 0;) { x[n] = _cvtsh_ss(_cvtss_sh(normal(), 0)); }
    };
    fill(data.q, n_tokens*c.n_heads*c.dk);
    fill(data.k, c.n_cells*c.n_kv_heads*c.dk);
    fill(data.v, c.n_cells*c.n_kv_heads*c.dv);
    fill(data.sinks, c.n_heads);
    std::vector<int> text(c.n_cells), pos(c.n_cells);
    int n_of[2] = {};
    for (int64_t i = 0; i < c.n_cells; i++) {
        text[i] = rng()%3 == 0;
        pos[i]  = n_of[text[i]]++;
    }
    for (int64_t t = 0; t < n_tokens; t++) {
        const int own = t%2, last = std::max(0, n_of[own] - 1 - (int) (rng()%4));
        data.mask.emplace_back(c.n_cells);
        for (int64_t i = 0; i < c.n_cells; i++) {
            const bool seen = !c.masked || (text[i] == own && pos[i] <= last);
            data.mask[t][i] = !seen ? -INFINITY : c.max_bias > 0 ? (float) (pos[i] - last) : 0;
        }
    }
    return data;
}

// What the kernel makes of some tokens and some cells: [token][head][dv].
std::vector<float> attended(const Case & c, const Data & data, const std::vector<int64_t> & tokens,
                            const std::vector<int64_t> & cells, int n_threads) {
    const int64_t n = (int64_t) tokens.size(), n_cells = (int64_t) cells.size();
    const size_t  size = c.type == GGML_TYPE_F16 ? 2 : 4;
    const auto put = [&](std::vector<char> & to, float x) {
        const ggml_fp16_t half = _cvtss_sh(x, 0);
        const char * from = size == 2 ? (const char *) &half : (const char *) &x;
        to.insert(to.end(), from, from + size);
    };
    std::vector<float> q, out(n*c.n_heads*c.dv, NAN), sinks = data.sinks;
    std::vector<char>  k, v;
    std::vector<ggml_fp16_t> mask;
    for (int64_t t : tokens) {
        q.insert(q.end(), data.q.begin() + t*c.n_heads*c.dk, data.q.begin() + (t + 1)*c.n_heads*c.dk);
        for (int64_t cell : cells) {
            mask.push_back(_cvtss_sh(data.mask[t][cell], 0));
        }
    }
    for (int64_t cell : cells) {
        for (int64_t i = 0; i < c.n_kv_heads*c.dk; i++) { put(k, data.k[cell*c.n_kv_heads*c.dk + i]); }
        for (int64_t i = 0; i < c.n_kv_heads*c.dv; i++) { put(v, data.v[cell*c.n_kv_heads*c.dv + i]); }
    }
    const auto tensor = [](ggml_type type, void * data, size_t size, int64_t n0, int64_t n1, int64_t n2, size_t nb1, size_t nb2) {
        ggml_tensor t = {};
        t.type = type;
        t.data = data;
        const int64_t ne[] = {n0, n1, n2, 1};
        const size_t  nb[] = {size, nb1, nb2, 0};
        memcpy(t.ne, ne, sizeof(ne));
        memcpy(t.nb, nb, sizeof(nb));
        return t;
    };
    ggml_tensor src[] = {
        tensor(GGML_TYPE_F32, q.data(), 4, c.dk, n, c.n_heads, 4*c.n_heads*c.dk, 4*c.dk),
        tensor(c.type, k.data(), size, c.dk, n_cells, c.n_kv_heads, size*c.n_kv_heads*c.dk, size*c.dk),
        tensor(c.type, v.data(), size, c.dv, n_cells, c.n_kv_heads, size*c.n_kv_heads*c.dv, size*c.dv),
        tensor(GGML_TYPE_F16, mask.data(), 2, n_cells, n, 1, 2*n_cells, 0),
        tensor(GGML_TYPE_F32, sinks.data(), 4, c.n_heads, 1, 1, 0, 0),
    };
    ggml_tensor op = tensor(GGML_TYPE_F32, out.data(), 4, c.dv, c.n_heads, n, 4*c.dv, 4*c.dv*c.n_heads);
    const float parameters[] = {1/std::sqrt((float) c.dk), c.max_bias, c.softcap};
    memcpy(op.op_params, parameters, sizeof(parameters));
    for (int i = 0; i < 5; i++) {
        op.src[i] = (i == 3 && !c.masked && c.max_bias == 0) || (i == 4 && !c.sinks) ? nullptr : &src[i];
    }
    const size_t work_size = attention_work_size(&op, n_threads);
    std::vector<char> work(work_size);
    for (int ith = 0; ith < n_threads; ith++) {
        ggml_compute_params params = {};
        params.ith   = ith;
        params.nth   = n_threads;
        params.wsize = work_size;
        params.wdata = work.data();
        attention(&params, &op);
    }
    return out;
}

std::vector<double> expected(const Case & c, const Data & data, int64_t token) {
    std::vector<double> out;
    for (int64_t head = 0; head < c.n_heads; head++) {
        const int64_t kv_head = head/(c.n_heads/c.n_kv_heads);
        double n_slopes = 1;
        while (2*n_slopes <= c.n_heads) { n_slopes *= 2; }
        const double slope = c.max_bias == 0    ? 1
                             : head < n_slopes ? std::pow(2, -c.max_bias/n_slopes*(head + 1))
                                               : std::pow(2, -c.max_bias/2/n_slopes*(2*(head - n_slopes) + 1));
        std::vector<double> weights(c.n_cells), of_head(c.dv);
        double total = c.sinks ? std::exp((double) data.sinks[head]) : 0;
        for (int64_t i = 0; i < c.n_cells; i++) {
            double dot = 0;
            for (int64_t j = 0; j < c.dk; j++) {
                dot += (double) data.q[(token*c.n_heads + head)*c.dk + j]*data.k[(i*c.n_kv_heads + kv_head)*c.dk + j];
            }
            dot /= std::sqrt((double) c.dk);
            dot = c.softcap == 0 ? dot : c.softcap*std::tanh(dot/c.softcap);
            weights[i] = std::exp(dot + slope*data.mask[token][i]);
            total += weights[i];
        }
        for (int64_t i = 0; i < c.n_cells; i++) {
            for (int64_t j = 0; weights[i] != 0 && j < c.dv; j++) {
                of_head[j] += weights[i]/total*data.v[(i*c.n_kv_heads + kv_head)*c.dv + j];
            }
        }
        out.insert(out.end(), of_head.begin(), of_head.end());
    }
    return out;
}

void fail(const Case & c, const char * what, int64_t n_tokens) {
    n_failed++;
    fprintf(stderr, "%s: %d tokens, %d of %d heads, %d and %d values, %d cells, %s, bias %g, softcap %g, masked %d, sinks %d\n",
            what, (int) n_tokens, (int) c.n_kv_heads, (int) c.n_heads, (int) c.dk, (int) c.dv, (int) c.n_cells,
            c.type == GGML_TYPE_F16 ? "f16" : "f32", c.max_bias, c.softcap, c.masked, c.sinks);
}

void check(const Case & c, int64_t n_tokens) {
    n_checked++;
    const Data data = random_data(c, n_tokens);
    std::vector<int64_t> tokens(n_tokens), cells(c.n_cells);
    for (int64_t t = 0; t < n_tokens; t++) { tokens[t] = t; }
    for (int64_t i = 0; i < c.n_cells; i++) { cells[i] = i; }
    const std::vector<float> all = attended(c, data, tokens, cells, 1);
    if (attended(c, data, tokens, cells, 5) != all) {
        fail(c, "other bits with five threads", n_tokens);
    }
    const int64_t size = c.n_heads*c.dv;
    for (int64_t t = 0; t < n_tokens; t++) {
        std::vector<int64_t> seen;
        for (int64_t i : cells) {
            if (data.mask[t][i] != -INFINITY) { seen.push_back(i); }
        }
        if (seen.empty()) {
            continue;
        }
        const std::vector<float> own(all.begin() + t*size, all.begin() + (t + 1)*size);
        if (attended(c, data, {t}, cells, 1) != own || attended(c, data, {t}, seen, 1) != own) {
            fail(c, "other bits alone", n_tokens);
        }
        const std::vector<double> want = expected(c, data, t);
        for (int64_t i = 0; i < size; i++) {
            if (!(std::fabs(own[i] - want[i]) < 1e-4)) {
                fail(c, "wrong", n_tokens);
                break;
            }
        }
    }
}

void check_vectors() {
    for (int round = 0; round < 100; round++) {
        vf v[VL];
        float x[VL];
        for (auto & each : v) {
            for (float & y : x) { y = rng()%5 == 0 ? 0 : normal(); }
            each = load_f(x);
        }
        float got[VL];
        store_f(got, sums(v));
        store_f(x, v[VL - 1]);
        float largest = x[0];
        const int n = (int) (rng()%VL);
        float first[VL];
        store_f(first, first_lanes(v[VL - 1], n, v[0]));
        for (int i = 0; i < VL; i++) {
            float other[VL];
            store_f(other, v[0]);
            largest = std::max(largest, x[i]);
            n_failed += got[i] != sum(v[i]) || (nonzero(v[VL - 1]) >> i & 1) != (x[i] != 0) || first[i] != (i < n ? x : other)[i];
        }
        n_failed += max_of(v[VL - 1]) != largest;
    }
}

}  // namespace

int main() {
    check_vectors();
    for (ggml_type type : {GGML_TYPE_F16, GGML_TYPE_F32}) {
        for (int64_t n_cells : {1, 3, 16, 33, 150}) {
            for (int64_t n_tokens : {1, 2, 3, 7}) {
                check({3, 1, 64, 64, n_cells, type, 0, 0, true, false}, n_tokens);
                check({4, 4, 24, 40, n_cells, type, 0, 0, true, true}, n_tokens);
                check({6, 2, 128, 128, n_cells, type, 0, 20, true, false}, n_tokens);
                check({6, 3, 80, 16, n_cells, type, 8, 0, true, false}, n_tokens);
                check({2, 1, 16, 64, n_cells, type, 0, 0, false, false}, n_tokens);
            }
        }
    }
    printf("%d cases, %d wrong\n", n_checked, n_failed);
    return n_failed > 0;
}
