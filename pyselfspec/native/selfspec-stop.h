// Ends a pass before it is finished: on request of any thread and, where the session heeds it, on SIGINT.

#pragma once

#include <atomic>

struct llama_context;

class selfspec_stop {
public:
    using callback = bool (*)(void * data);

    // Takes the place of the abort callback that the context has, which goes on being asked.
    selfspec_stop(llama_context & ctx, callback before, void * data_before);
    ~selfspec_stop();

    selfspec_stop(const selfspec_stop &) = delete;
    selfspec_stop & operator=(const selfspec_stop &) = delete;

    // From any thread. Each call with true needs one with false.
    void set(bool stopped) noexcept { n_stops += stopped ? 1 : -1; }

    // From now on, SIGINT ends passes of this session, or does not. Whatever handles the signal is still called, also where
    // it was installed since the last time.
    void heed_interrupts(bool heed) noexcept;

    // Lives as long as a pass of the session. SIGINT ends nothing else: a caller of llama_decode() on the same context would
    // not know what to do about it.
    class pass {
    public:
        explicit pass(selfspec_stop & stop) noexcept : stop(stop) { stop.in_pass = true; }
        ~pass() { stop.in_pass = false; }

        pass(const pass &) = delete;
        pass & operator=(const pass &) = delete;

    private:
        selfspec_stop & stop;
    };

private:
    static bool is_wanted(void * self);

    llama_context   & ctx;
    const callback    before;
    void * const      data_before;
    std::atomic<int>  n_stops { 0 };
    std::atomic<bool> in_pass { false };
    std::atomic<bool> heeds { false };
};
