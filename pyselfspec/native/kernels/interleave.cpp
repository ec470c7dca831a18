// Interleaves the rows of weights when a model is loaded, on all cores. One core copies 0.5 to 1 GB a second, less than a disk reads.
#include "interleave.h"

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

void selfspec::in_shares(int64_t n, int64_t share, const std::function<void(int64_t first, int64_t last)> & f) {
    std::atomic<int64_t> next{0};
    const auto work = [&] {
        for (int64_t first; (first = next.fetch_add(share)) < n;) {
            f(first, std::min(first + share, n));
        }
    };
    std::vector<std::future<void>> others;
    try {
        const int64_t n_others = std::min<int64_t>(std::thread::hardware_concurrency(), (n + share - 1)/share) - 1;
        for (int64_t i = 0; i < n_others; i++) {
            others.push_back(std::async(std::launch::async, work));
        }
    } catch (const std::system_error &) {
        // no more threads: those that started do the rest
    }
    work();
    for (auto & each : others) {
        each.get();  // waits for it
    }
}

int selfspec_interleave_in_shares(ggml_tensor * t, const void * data, size_t size, selfspec_interleave_rows interleave) {
    const int64_t n_rows = ggml_nrows(t);
    const size_t  to     = selfspec_buffer_size(t)/n_rows, from = size/n_rows;
    std::atomic<bool> failed{false};
    selfspec::in_shares(n_rows, std::max<int64_t>(SHARE/(GROUP*from), 1)*GROUP, [&](int64_t first, int64_t last) {
        ggml_tensor rows = *t;
        rows.data  = (char *) t->data + first*to;
        rows.ne[1] = last - first;
        rows.ne[2] = rows.ne[3] = 1;
        if (interleave(&rows, (const char *) data + first*from, (last - first)*from) != 0) {
            failed = true;
        }
    });
    return failed ? -1 : 0;
}
