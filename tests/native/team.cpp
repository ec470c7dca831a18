// Teams of threads against sums that are known: every thread takes part once, barriers keep rounds apart, one thread is first.
#include "team.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#define CHECK(condition)                                                     \
    if (!(condition)) {                                                      \
        fprintf(stderr, "line %d: %s is not so\n", __LINE__, #condition);    \
        exit(1);                                                             \
    }

static constexpr int N_ROUNDS = 50;

struct work {
    unsigned              size;
    std::vector<unsigned> reached;           // rounds, by thread; written by that thread alone
    std::atomic<unsigned> n_first {0};
    std::atomic<unsigned> seen {0};          // a bit per thread
};

static void rounds(void * data) {
    work & w = *(work *) data;
    const unsigned index = selfspec_team_index();
    CHECK(selfspec_team_size() == w.size);
    CHECK(index < w.size);
    w.seen |= 1u << index;
    for (unsigned round = 1; round <= N_ROUNDS; round++) {
        w.reached[index] = round;
        w.n_first += selfspec_team_first();
        selfspec_team_barrier();
        for (unsigned other : w.reached) {
            CHECK(other == round);
        }
        selfspec_team_barrier();
    }
}

static void many(int n_runs) {
    for (int run = 0; run < n_runs; run++) {
        work w;
        w.size = 1 + run % 5;  // a team grows, and some of its threads rest
        w.reached.resize(w.size);
        selfspec_team_run(rounds, &w, w.size);
        CHECK(w.seen == (1u << w.size) - 1);
        CHECK(w.n_first == N_ROUNDS);
    }
}

static void alone(void *) {
    CHECK(selfspec_team_size() == 1 && selfspec_team_index() == 0);
    selfspec_team_barrier();
}

static void nested(void *) {
    const unsigned index = selfspec_team_index();
    selfspec_team_run(alone, nullptr, 2);
    CHECK(selfspec_team_size() == 3 && selfspec_team_index() == index);
}

int main() {
    CHECK(selfspec_team_size() == 1 && selfspec_team_index() == 0 && selfspec_team_first());
    selfspec_team_barrier();  // no other thread to wait for
    many(20);

    std::vector<std::thread> leaders;  // each has helpers of its own, which end after it
    for (int i = 0; i < 4; i++) {
        leaders.emplace_back(many, 10);
    }
    for (auto & leader : leaders) {
        leader.join();
    }
    selfspec_team_run(nested, nullptr, 3);

    CHECK(selfspec_team_spins("20k", "passive") == 20000);
    CHECK(selfspec_team_spins("3M", nullptr) == 3000000);
    CHECK(selfspec_team_spins("0", "active") == 0);
    CHECK(selfspec_team_spins("infinite", nullptr) == UINT64_MAX);
    CHECK(selfspec_team_spins("nonsense", "PASSIVE") == 0);
    CHECK(selfspec_team_spins(nullptr, "active") == UINT64_MAX);
    CHECK(selfspec_team_spins(nullptr, "") == selfspec_team_spins("", nullptr));
    CHECK(selfspec_team_spins(nullptr, nullptr) == 1000);
    puts("as expected");
}
