// A number that one thread changes and others wait for: they look for a while, and then they sleep. For Linux only, as threads/
// is.
#pragma once

#include <atomic>
#include <cstdint>

#include <climits>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

class selfspec_word {
public:
    uint32_t get() const {
        return value.load(std::memory_order_acquire);
    }

    // Only one thread at a time may call this.
    void advance() {
        value.fetch_add(1);
        if (n_asleep.load() > 0) {
            syscall(SYS_futex, &value, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
        }
    }

    // Waits while the number is this one.
    void wait_while(uint32_t old, uint64_t n_spins) {
        for (uint64_t i = 0; i < n_spins; i++) {
            if (get() != old) {
                return;
            }
            relax();
        }
        n_asleep.fetch_add(1);
        while (value.load() == old) {
            syscall(SYS_futex, &value, FUTEX_WAIT_PRIVATE, old, nullptr, nullptr, 0);
        }
        n_asleep.fetch_sub(1);
    }

private:
    static void relax() {
#if defined(__x86_64__)
        _mm_pause();
#elif defined(__aarch64__) && defined(__GNUC__)
        __asm__ volatile("yield");
#endif
    }

    std::atomic<uint32_t> value    {0};
    std::atomic<uint32_t> n_asleep {0};  // changed before the last look, so advance() misses no thread
};
