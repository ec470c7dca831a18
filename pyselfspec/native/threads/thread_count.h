// How many threads compute the passes of a context: as many as asked for, or fewer while other programs want the cores. The
// threads of a pass meet hundreds of times, so one that waits for its core stalls all the others: two threads on two cores
// beside one busy program take five times as long as one.
#pragma once

#include <cstdint>
#include <unordered_map>

// Times are in seconds. Nothing is tried while the threads are not kept waiting.
class selfspec_thread_count {
public:
    // Returns how many of n_asked threads compute the next pass. `kind` is the same for passes that take about equally long.
    // After a rest it begins anew: who knows what else runs now.
    int choose(double now, int n_asked, uint64_t kind);

    // How long that pass took, ending at `now`, and for how much of it the calling thread was idle: asleep, or without a core.
    void took(double now, double seconds, double idle);

private:
    struct Trial {
        int    step     = 0;  // 1: a thread fewer; -1: one more; 0: none at present
        int    n_passes = 0;
        double expected = 0;  // what its passes take with the present number of threads
        double spent    = 0;
    };

    struct Usual {
        double seconds;
        int    n_passes;
    };

    bool learn(double seconds, double idle);
    void begin_trial();
    void go_on(double now, double seconds);

    double   last    = 0;  // when the last pass ended
    int      n_asked = 1;
    int      n_fewer = 0;
    uint64_t kind    = 0;

    std::unordered_map<uint64_t, Usual> usual;  // what a pass takes at present, by kind
    double recent      = 0;                     // of the passes of the last tenth of a second: what they took
    double recent_idle = 0;

    Trial  trial;
    int    failed   = 0;  // the step of the last trial, if that brought nothing
    double next_try = 0;
};
