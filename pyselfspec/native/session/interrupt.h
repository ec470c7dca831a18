// Stops a pass before it is finished: on request of any thread and, if the session heeds it, on SIGINT.

#pragma once

#include <atomic>

struct llama_context;

class selfspec_interrupt {
public:
    using callback = bool (*)(void * data);

    // Replaces the abort callback of the context; the former one, `before`, is still called.
    selfspec_interrupt(llama_context & ctx, callback before, void * data_before);
    ~selfspec_interrupt();

    selfspec_interrupt(const selfspec_interrupt &) = delete;
    selfspec_interrupt & operator=(const selfspec_interrupt &) = delete;

    // From any thread. Each call with true needs one with false.
    void set(bool stopped) noexcept { n_stops += stopped ? 1 : -1; }

    // Sets whether SIGINT stops passes of this session. The handler that is installed for the signal is still called, also
    // if it was installed after the last call of this function.
    void heed_interrupts(bool heed) noexcept;

    // Exists during a pass of the session. SIGINT stops nothing else: a caller of llama_decode() on the same context would
    // not expect it.
    class pass {
    public:
        explicit pass(selfspec_interrupt & stop) noexcept : stop(stop) { stop.in_pass = true; }
        ~pass() { stop.in_pass = false; }

        pass(const pass &) = delete;
        pass & operator=(const pass &) = delete;

    private:
        selfspec_interrupt & stop;
    };

    // Exists during a removal, which nothing stops: it takes milliseconds, and its sequence would be lost.
    class removal {
    public:
        explicit removal(selfspec_interrupt & stop) noexcept : stop(stop) { stop.in_removal = true; }
        ~removal() { stop.in_removal = false; }

        removal(const removal &) = delete;
        removal & operator=(const removal &) = delete;

    private:
        selfspec_interrupt & stop;
    };

private:
    static bool is_wanted(void * self);

    llama_context   & ctx;
    const callback    before;
    void * const      data_before;
    std::atomic<int>  n_stops { 0 };
    std::atomic<bool> in_pass { false };
    std::atomic<bool> in_removal { false };
    std::atomic<bool> heeds { false };
};
