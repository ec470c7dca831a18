// Prints the bytes per second that threads read together from memory, the best of several runs.
//
// Usage: _read_speed THREADS
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include <sys/mman.h>

namespace {

constexpr size_t BYTES = 512 << 20, HUGE_PAGE = 2 << 20, AHEAD = 4096, LINE = 64;
constexpr int    N_RUNS = 6;

// Sums every word of a share, so that no line is left out; several sums, so that none waits for another.
uint64_t sum(const char * begin, const char * end) {
    uint64_t sums[8] = {};
    for (const char * p = begin; p < end; p += LINE) {
        __builtin_prefetch(p + AHEAD, 0, 2);
        const auto * words = (const uint64_t *) p;
        for (int i = 0; i < 8; i++) {
            sums[i] += words[i];
        }
    }
    uint64_t all = 0;
    for (uint64_t each : sums) {
        all += each;
    }
    return all;
}

double bytes_per_second(const char * data, int n_threads, volatile uint64_t * sink) {
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::thread> threads;
    for (int i = 0; i < n_threads; i++) {
        threads.emplace_back([=] {
            const size_t share = BYTES/n_threads/LINE*LINE;
            sink[8*i] = sum(data + share*i, data + share*(i + 1));
        });
    }
    for (std::thread & thread : threads) {
        thread.join();
    }
    return BYTES/std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

int main(int argc, char ** argv) {
    const int n_threads = argc == 2 ? atoi(argv[1]) : 0;
    if (n_threads < 1) {
        return 2;
    }
    const std::unique_ptr<char, void (*)(void *)> data((char *) aligned_alloc(HUGE_PAGE, BYTES), free);
    const std::unique_ptr<uint64_t[]> sink(new uint64_t[8*n_threads]);
    if (!data) {
        return 1;
    }
    madvise(data.get(), BYTES, MADV_HUGEPAGE);
    memset(data.get(), 1, BYTES);
    double best = 0;
    for (int i = 0; i < N_RUNS; i++) {
        best = std::max(best, bytes_per_second(data.get(), n_threads, sink.get()));
    }
    printf("%.0f\n", best);
}
