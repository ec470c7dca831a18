// A library to load before others, which lets large allocations fail: by new, as ggml makes its work buffers, and by
// posix_memalign, as it makes the buffers of tensors. Without small ones ggml ends the process.
#include <dlfcn.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <new>

static std::atomic<bool>   fails { false };
static std::atomic<size_t> n_failed { 0 };
static constexpr size_t    LARGE = 1 << 12;

extern "C" void   no_memory(bool now) { fails = now; }
extern "C" size_t n_without_memory() { return n_failed; }

static bool refused(size_t n_bytes) {
    const bool is_refused = fails && n_bytes >= LARGE;
    n_failed += is_refused;
    return is_refused;
}

extern "C" int posix_memalign(void ** p, size_t alignment, size_t n_bytes) {
    using function = int (*)(void **, size_t, size_t);
    static const auto next = (function) dlsym(RTLD_NEXT, "posix_memalign");
    return refused(n_bytes) ? ENOMEM : next(p, alignment, n_bytes);
}

void * operator new[](size_t n_bytes, const std::nothrow_t &) noexcept {
    return refused(n_bytes) ? nullptr : malloc(n_bytes);
}

void * operator new[](size_t n_bytes) {
    if (void * p = operator new[](n_bytes, std::nothrow)) {
        return p;
    }
    throw std::bad_alloc();
}

void operator delete[](void * p) noexcept { free(p); }
void operator delete[](void * p, size_t) noexcept { free(p); }
