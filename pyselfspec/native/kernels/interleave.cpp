// Interleaves the rows of weights when a model is loaded, on all cores. One core copies 0.5 to 1 GB a second, less than a disk reads.
#include "selfspec-kernels.h"

#include "ggml.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <system_error>
#include <thread>
#include <vector>

namespace {

constexpr int64_t GROUP = 16;       // the most rows that upstream interleaves
constexpr int64_t SHARE = 1 << 20;  // bytes, so that a share takes a millisecond, twenty times as long as starting a thread

}  // namespace

int selfspec_interleave_in_shares(ggml_tensor * t, const void * data, size_t size, selfspec_interleave_rows interleave) {
    const int64_t n_rows = ggml_nrows(t);
    const size_t  to     = selfspec_buffer_size(t)/n_rows, from = size/n_rows;
    const int64_t share  = std::max<int64_t>(SHARE/(GROUP*from), 1)*GROUP;

    std::atomic<int64_t> next{0};
    std::atomic<bool>    failed{false};
    const auto work = [&] {
        for (int64_t row; (row = next.fetch_add(share)) < n_rows;) {
            const int64_t n    = std::min(share, n_rows - row);
            ggml_tensor   rows = *t;
            rows.data  = (char *) t->data + row*to;
            rows.ne[1] = n;
            rows.ne[2] = rows.ne[3] = 1;
            if (interleave(&rows, (const char *) data + row*from, n*from) != 0) {
                failed = true;
            }
        }
    };

    std::vector<std::future<void>> others;
    try {
        const int64_t n_others = std::min<int64_t>(std::thread::hardware_concurrency(), (n_rows + share - 1)/share) - 1;
        for (int64_t i = 0; i < n_others; i++) {
            others.push_back(std::async(std::launch::async, work));
        }
    } catch (const std::system_error &) {
        // no more threads: those that started do the rest
    }
    work();
    others.clear();  // waits for them
    return failed ? -1 : 0;
}
