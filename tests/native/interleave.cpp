// Copies rows in shares. Ends with 0 if every row was copied once, whole groups of rows together, and a failure was told.
#include "selfspec-kernels.h"

#include "ggml.h"

#include <atomic>
#include <cstring>
#include <vector>

static constexpr size_t FROM = 100, TO = 300;  // bytes of a row

int64_t ggml_nrows(const ggml_tensor * t) { return t->ne[1]*t->ne[2]*t->ne[3]; }
size_t  selfspec_buffer_size(const ggml_tensor * t) { return ggml_nrows(t)*TO; }

static std::atomic<int64_t> n_copied, n_odd;

static int copy(ggml_tensor * t, const void * data, size_t size) {
    const int64_t n = ggml_nrows(t);
    if (size != n*FROM) {
        return -1;
    }
    for (int64_t i = 0; i < n; i++) {
        memcpy((char *) t->data + i*TO, (const char *) data + i*FROM, FROM);
    }
    n_copied += n;
    n_odd += n%16 != 0;
    return 0;
}

int main() {
    for (int64_t n_rows : {1, 8, 24, 10000, 30008}) {
        for (int64_t n_matrices : {1, 3}) {
            const int64_t     n = n_rows*n_matrices;
            std::vector<char> from(n*FROM), to(n*TO), expected(n*TO);
            for (size_t i = 0; i < from.size(); i++) {
                from[i] = (char) (i*2654435761 >> 24);
                expected[i/FROM*TO + i%FROM] = from[i];
            }
            ggml_tensor t = {};
            t.data  = to.data();
            t.ne[0] = FROM, t.ne[1] = n_rows, t.ne[2] = n_matrices, t.ne[3] = 1;
            n_copied = n_odd = 0;
            const int status = selfspec_interleave_in_shares(&t, from.data(), from.size(), copy);
            if (status != 0 || to != expected || n_copied != n || n_odd != (n%16 != 0)) {
                return 1;
            }
            if (selfspec_interleave_in_shares(&t, from.data(), from.size(), [](ggml_tensor *, const void *, size_t) { return -1; }) == 0) {
                return 2;
            }
        }
    }
    return 0;
}
