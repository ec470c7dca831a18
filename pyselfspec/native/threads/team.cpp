// In place of an OpenMP runtime: a wheel would have to bring one, and with it settings that are read once per process, from
// the copy that another package loaded first.
#include "team.h"

#include "word.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

namespace {

// Some ten microseconds: as long as waking a thread takes. A thread that spins for longer stalls its whole team where another
// program wants the cores.
constexpr uint64_t N_SPINS = 1000;

const uint64_t n_spins = selfspec_team_spins(getenv("GOMP_SPINCOUNT"), getenv("OMP_WAIT_POLICY"));

const unsigned        n_cores = std::thread::hardware_concurrency();
std::atomic<unsigned> n_working {0};  // threads of all running teams

uint64_t spins_now() {
    constexpr uint64_t MANY = 100;  // where threads share cores, they should sleep soon
    return n_working.load(std::memory_order_relaxed) > n_cores ? std::min(n_spins, MANY) : n_spins;
}

constexpr size_t CACHE_LINE = 128;  // bytes, on the processors with the longest lines

struct helper {
    alignas(CACHE_LINE) selfspec_word started;
};

struct team {
    // the work at hand
    selfspec_work work = nullptr;
    void *        data = nullptr;
    unsigned      size = 1;
    bool          is_over = false;  // no more work: helpers return

    alignas(CACHE_LINE) std::atomic<uint32_t> n_arrived {0};
    alignas(CACHE_LINE) selfspec_word         passed;  // barriers
    alignas(CACHE_LINE) std::atomic<uint32_t> n_firsts {0};

    std::vector<std::unique_ptr<helper>> helpers;  // used by the thread that they belong to

    void barrier() {
        const unsigned n_members = size;  // the next run may change it as soon as this thread has arrived
        const uint32_t n_passed  = passed.get();
        if (n_arrived.fetch_add(1) + 1 < n_members) {
            passed.wait_while(n_passed, spins_now());
            return;
        }
        n_arrived.store(0);
        passed.advance();
    }
};

struct member {
    team *   of       = nullptr;
    unsigned index    = 0;
    uint32_t n_firsts = 0;  // places passed
};

thread_local member current;

void take_part(team & t, unsigned index) {
    const member before = current;
    current = { &t, index, 0 };
    t.work(t.data);
    t.barrier();
    current = before;
}

void help(std::shared_ptr<team> t, helper & self, unsigned index) {
    for (uint32_t n_started = 0;; n_started++) {
        self.started.wait_while(n_started, spins_now());
        if (t->is_over) {
            return;
        }
        take_part(*t, index);
    }
}

// The team of a thread. Its helpers end some time after the thread, which does not wait for them: at the end of a process or
// in a forked one they may not exist any more.
struct leader {
    std::shared_ptr<team> own = std::make_shared<team>();

    ~leader() {
        own->is_over = true;
        for (auto & helper : own->helpers) {
            helper->started.advance();
        }
    }

    // Makes helpers until there are this many, or the system gives no more. Returns how many of them there are.
    unsigned provide(unsigned n_helpers) {
        while (own->helpers.size() < n_helpers) {
            own->helpers.push_back(std::make_unique<helper>());
            try {
                std::thread(help, own, std::ref(*own->helpers.back()), (unsigned) own->helpers.size()).detach();
            } catch (const std::system_error &) {
                own->helpers.pop_back();
                return (unsigned) own->helpers.size();
            }
        }
        return n_helpers;
    }
};

thread_local leader leading;

}  // namespace

void selfspec_team_run(selfspec_work work, void * data, unsigned n_threads) {
    if (current.of) {  // in a function that a team runs: one thread, as is OpenMP's default
        const member before = current;
        current = {};
        work(data);
        current = before;
        return;
    }
    const unsigned n_helpers = n_threads > 1 ? leading.provide(n_threads - 1) : 0;
    team & t = *leading.own;
    t.work = work;
    t.data = data;
    t.size = n_helpers + 1;
    t.n_firsts.store(0);
    n_working += t.size;
    for (unsigned i = 0; i < n_helpers; i++) {
        t.helpers[i]->started.advance();
    }
    take_part(t, 0);
    n_working -= t.size;
}

unsigned selfspec_team_size() {
    return current.of ? current.of->size : 1;
}

unsigned selfspec_team_index() {
    return current.index;
}

void selfspec_team_barrier() {
    if (current.of) {
        current.of->barrier();
    }
}

bool selfspec_team_first() {
    if (!current.of) {
        return true;
    }
    uint32_t place = current.n_firsts++;
    return current.of->n_firsts.compare_exchange_strong(place, place + 1);
}

uint64_t selfspec_team_spins(const char * spin_count, const char * wait_policy) {
    constexpr const char * UNITS = "kmgt";
    if (spin_count && *spin_count) {
        if (strncmp(spin_count, "inf", 3) == 0) {
            return UINT64_MAX;
        }
        char * end = nullptr;
        uint64_t count = strtoull(spin_count, &end, 10);
        const char * unit = *end ? strchr(UNITS, *end | 0x20) : nullptr;
        for (; unit && unit >= UNITS; unit--) {
            count *= 1000;
        }
        if (end != spin_count) {
            return count;
        }
    }
    if (wait_policy && *wait_policy) {
        return (*wait_policy | 0x20) == 'p' ? 0 : UINT64_MAX;
    }
    return N_SPINS;
}
