// Making a coarse copy of an output head's weights.
//
// Activations have two thirds of their length in few directions, those of other tokens. So the copy also has the parts of the rows' errors
// along such directions, and the bound is for the parts across them: it is smaller by a quarter, and the rows within it are three times
// fewer.
#include "coarse.h"

#if defined(SELFSPEC_KERNELS)

#include "interleave.h"

#include "ggml-backend.h"

#include <functional>
#include <numeric>
#include <vector>

namespace selfspec {

float dot(const float * x, const float * y, int64_t k) {
    vf sums[32/VL];
    std::fill(std::begin(sums), std::end(sums), zero());
    for (int64_t i = 0; i < k; i += 32) {
        each<32/VL>([&](auto j) { sums[j] = fma(load_f(x + i + VL*j), load_f(y + i + VL*j), sums[j]); });
    }
    return std::accumulate(std::begin(sums), std::end(sums), 0.0f, [](float total, vf each) { return total + sum(each); });
}

double length(const float * x, int64_t k) { return std::sqrt(dot(x, x, k)); }

namespace {

// Makes vectors of k values orthogonal and of length one (Gram and Schmidt; twice, since the first result is rounded). One that those
// before it span becomes zero: what rounding leaves of it is not orthogonal to them.
void make_orthonormal(float * vectors, int64_t n, int64_t k) {
    constexpr double LEAST = 1e-3;  // of the length before
    for (int64_t i = 0; i < 2*n; i++) {
        float * const x = vectors + i/2*k;
        const double before = length(x, k);
        for (float * y = vectors; y < x; y += k) {
            const float part = dot(x, y, k);
            std::transform(x, x + k, y, x, [=](float of_x, float of_y) { return of_x - part*of_y; });
        }
        const double left = length(x, k);
        std::for_each(x, x + k, [=](float & each) { each = left > LEAST*before ? (float) (each/left) : 0; });
    }
}

// Rounds rows of a head's weights, and writes bounds of their errors.
class Rounding {
public:
    Rounding(const ggml_tensor * weights, const CoarseTensors & to) :
        weights(weights), to(to), k(weights->ne[0]), n_directions(to.directions->ne[1]), row(k), errors(GROUP*k), along(GROUP*n_directions),
        copy(std::max(k, n_directions)) {}

    // Rows [first, last); rounded receives them.
    void round(int64_t first, int64_t last, char * rounded) {
        for (int64_t i = first; i < last; i += GROUP) {
            round_group(i, std::min(GROUP, last - i), rounded + (i - first)*to.rows->nb[1]);
        }
    }

private:
    static constexpr int64_t GROUP = 8;  // rows that are multiplied together, so that their sums do not wait for each other

    void round_group(int64_t first, int64_t n, char * rounded) {
        const auto floats_of = ggml_get_type_traits(weights->type)->to_float;
        double bounds[GROUP], of_copies[GROUP];
        for (int64_t i = 0; i < n; i++) {
            floats_of((const char *) weights->data + (first + i)*weights->nb[1], row.data(), k);
            write(row.data(), k, rounded + i*to.rows->nb[1]);
            bounds[i]    = 2*OF_REST*(double) (k + 8)*0x1p-24*length(row.data(), k);  // both products round sums of floats
            of_copies[i] = length(copy.data(), k);
            std::transform(row.begin(), row.end(), copy.begin(), errors.begin() + i*k, std::minus<float>());
        }
        for (int64_t j = 0; j < n_directions; j++) {
            const float * const direction = (const float *) to.directions->data + j*k;
            vf sums[GROUP];
            std::fill(std::begin(sums), std::end(sums), zero());
            for (int64_t l = 0; l < k; l += VL) {
                each<GROUP>([&](auto i) { sums[i] = fma(load_f(errors.data() + i*k + l), load_f(direction + l), sums[i]); });
            }
            for (int64_t i = 0; i < n; i++) {
                along[i*n_directions + j] = sum(sums[i]);
            }
        }
        for (int64_t i = 0; i < n; i++) {
            float * const here = along.data() + i*n_directions;
            write(here, n_directions, rounded + i*to.rows->nb[1] + ggml_row_size(to.rows->type, k));
            const double error = length(errors.data() + i*k, k), of_copy = length(copy.data(), n_directions);
            const double across = std::sqrt(std::max(error*error - dot(here, here, n_directions), 1e-6*error*error));
            std::transform(here, here + n_directions, copy.begin(), here, std::minus<float>());
            bounds[i] += together(across, OF_ROUNDING*std::max(error, of_copy), OF_DIFFERENCE*of_copies[i], OF_REST*length(here, n_directions));
            ((float *) to.errors->data)[first + i] = (float) (1.0001*bounds[i]);
        }
    }

    // Writes rounded values, and puts what they are into `copy`.
    void write(const float * x, int64_t n, char * rounded) {
        ggml_quantize_chunk(to.rows->type, x, rounded, 0, 1, n, nullptr);
        ggml_get_type_traits(to.rows->type)->to_float(rounded, copy.data(), n);
    }

    const ggml_tensor *   weights;
    const CoarseTensors & to;
    const int64_t         k, n_directions;
    std::vector<float>    row, errors, along, copy;
};

}  // namespace

void make_coarse(const ggml_tensor * weights, const CoarseTensors & to) {
    const int64_t n_rows = weights->ne[1];
    float * const errors = (float *) to.errors->data;
    make_orthonormal((float *) to.directions->data, to.directions->ne[1], to.directions->ne[0]);
    in_shares(n_rows, 32*SELFSPEC_RUN, [&](int64_t begin, int64_t end) {
        std::vector<char> rounded((end - begin)*to.rows->nb[1]);
        Rounding(weights, to).round(begin, end, rounded.data());
        each_run(begin, end, [&](int64_t run, int64_t first, int64_t last) {
            float & most = errors[n_rows + run] = 0;
            for (int64_t i = first; i < last; i++) {
                most = errors[i] <= most ? most : errors[i] > most ? errors[i] : INFINITY;
            }
        });
        ggml_tensor share = *to.rows;
        share.data  = (char *) to.rows->data + begin*to.rows->nb[1];
        share.ne[1] = end - begin;
        ggml_backend_tensor_set(&share, rounded.data(), 0, ggml_nbytes(&share));  // interleaves them
    });
}

}  // namespace selfspec

#else

namespace selfspec {
void make_coarse(const ggml_tensor *, const CoarseTensors &) {}
}

#endif
