// What ends a pass before it is finished: a flag that any thread may set and, where the session heeds it, SIGINT.

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

    // From any thread.
    void set(bool stopped) noexcept { this->stopped = stopped; }

    // From now on, SIGINT ends passes of this session, or does not. Whatever handles the signal is still called, also where
    // it was installed since the last time.
    void heed_interrupts(bool heed) noexcept;

private:
    static bool is_wanted(void * self);

    llama_context   & ctx;
    const callback    before;
    void * const      data_before;
    std::atomic<bool> stopped { false };
    std::atomic<bool> heeds { false };
};
