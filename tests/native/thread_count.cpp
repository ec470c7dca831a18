// The number of threads on machines that are known: how long a pass takes with so many threads, and how much of it is idle.
#include "threads/thread_count.h"

#include <cstdio>
#include <cstdlib>
#include <functional>

#define CHECK(condition)                                                     \
    if (!(condition)) {                                                      \
        fprintf(stderr, "line %d: %s is not so\n", __LINE__, #condition);    \
        exit(1);                                                             \
    }

struct pass {
    double seconds;
    double idle;
};

struct machine {
    selfspec_thread_count count;
    double                now = 100;
    int                   n   = 0;  // threads of the last pass

    // Returns the passes per second.
    double run(double seconds, int n_asked, const std::function<pass(int)> & takes) {
        const double begun = now;
        int n_passes = 0;
        for (; now < begun + seconds; n_passes++) {
            n = count.choose(now, n_asked, (uint64_t) n_asked);
            CHECK(n >= 1 && n <= n_asked);
            const pass p = takes(n);
            now += p.seconds;
            count.took(now, p.seconds, p.idle);
        }
        return n_passes/(now - begun);
    }
};

static pass quiet(int n) {
    return { 0.004/n + 0.0005, 0.0001 };
}

// Another program keeps one of eight cores busy, or one of two.
static pass beside_one(int n_cores, int n) {
    const pass alone = quiet(n);
    return n < n_cores ? alone : pass { alone.seconds + 0.009, 0.009 };
}

static pass beside_one_of_two(int n)   { return beside_one(2, n); }
static pass beside_one_of_eight(int n) { return beside_one(8, n); }

// Programs want all cores: even one thread waits for its turn.
static pass crowded(int n) {
    return { 0.012*n*n, 0.008*n*n };
}

// A host that takes cores away at random, from many threads or few.
static pass stolen(int n) {
    const pass alone = quiet(n);
    return { 1.4*alone.seconds, 0.4*alone.seconds };
}

static void keeps_all_threads_where_fewer_are_no_gain() {
    machine m;
    m.run(2, 2, [&](int n) { CHECK(n == 2); return quiet(n); });
    CHECK(m.run(10, 2, stolen) > 0.97/stolen(2).seconds);
    CHECK(m.run(10, 16, stolen) > 0.97/stolen(16).seconds);
}

// The pages of a file come from disk while the first passes run.
static void is_not_misled_by_slow_first_passes() {
    machine m;
    int n_passes = 0;
    m.run(3, 2, [&](int n) {
        const pass warm = quiet(n);
        return n_passes++ < 2 ? pass {0.2, 0.15} : warm;
    });
    CHECK(m.n == 2 && n_passes > 2.5/quiet(2).seconds);
}

static void takes_fewer_beside_a_program() {
    machine m;
    CHECK(m.run(5, 2, beside_one_of_two) > 0.95/quiet(1).seconds);
    m.run(2, 2, quiet);
    CHECK(m.n == 2);

    machine rested;
    rested.run(5, 2, beside_one_of_two);
    CHECK(rested.n == 1);
    rested.now += 3;
    CHECK(rested.count.choose(rested.now, 2, 0) == 2);  // a prompt after a rest

    machine eight;
    CHECK(eight.run(5, 8, beside_one_of_eight) > 0.95/quiet(7).seconds);

    machine full;
    CHECK(full.run(10, 2, crowded) > 0.9/crowded(1).seconds);
    full.run(10, 2, quiet);
    CHECK(full.n == 2);
}

// Prompts and other passes that were not seen before tell nothing of one another.
static void compares_passes_of_one_kind() {
    selfspec_thread_count count;
    double now = 100;
    for (uint64_t i = 0; i < 1000; i++) {
        const double seconds = i % 2 ? 0.003 : 0.6;
        count.choose(now, 2, i % 2);
        now += seconds;
        count.took(now, seconds, 0.3*seconds);
    }
    int n_fewer = 0;
    for (uint64_t i = 0; i < 1000; i++) {
        n_fewer += count.choose(now, 2, 2 + i) == 1;
        now += 0.003;
        count.took(now, 0.003, 0.001);
    }
    CHECK(n_fewer < 50);
}

int main() {
    keeps_all_threads_where_fewer_are_no_gain();
    is_not_misled_by_slow_first_passes();
    takes_fewer_beside_a_program();
    compares_passes_of_one_kind();
    selfspec_thread_count one;
    CHECK(one.choose(0, 1, 0) == 1);
    puts("as expected");
    return 0;
}
