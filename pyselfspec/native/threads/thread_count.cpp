#include "threads/thread_count.h"

#include <algorithm>

namespace {

constexpr double RECENT    = 0.1;   // seconds that the share of idle time looks back
constexpr double STALLED   = 0.15;  // share of idle time from which a thread fewer is tried; undisturbed passes have 0.01 to 0.05
constexpr double TRIAL     = 0.05;  // seconds of work that tell two numbers of threads apart
constexpr int    N_FEWEST  = 3;     // passes of a trial
constexpr int    N_MOST    = 16;
constexpr double PATIENCE  = 0.01;  // seconds that a trial may lose
constexpr double GAIN      = 0.9;   // of its time a thread fewer must take: the asked number is better for wide passes
constexpr double NO_LOSS   = 1.02;  // of its time a thread more may take
constexpr double LOSS      = 0.02;  // share of all time that trials may lose: a pass with a thread more can take twenty times as long
constexpr double PAUSE     = 0.3;   // seconds between two trials, at least
constexpr double REST      = 2;     // seconds without a pass, between two texts
constexpr double RATE      = 0.125; // weight of a new time
constexpr int    N_FIRST   = 4;     // passes of a kind, the fastest of which counts
constexpr size_t N_KINDS   = 256;

}  // namespace

int selfspec_thread_count::choose(double now, int n_asked, uint64_t kind) {
    if (now - last > REST) {
        *this = {};
    }
    this->n_asked = n_asked;
    this->kind = kind;
    return std::max(1, n_asked - n_fewer - trial.step);
}

void selfspec_thread_count::took(double now, double seconds, double idle) {
    last = now;
    if (trial.step != 0) {
        go_on(now, seconds);
        return;
    }
    if (learn(seconds, idle) && now >= next_try) {
        begin_trial();
    }
}

// Returns whether passes of this kind are known. The first ones may be slow for other reasons, such as pages of a file.
bool selfspec_thread_count::learn(double seconds, double idle) {
    if (usual.size() >= N_KINDS && !usual.count(kind)) {
        usual.clear();
    }
    Usual & known = usual.try_emplace(kind, Usual {seconds, 0}).first->second;
    known.n_passes++;
    known.seconds = known.n_passes <= N_FIRST ? std::min(known.seconds, seconds) : known.seconds + RATE*(seconds - known.seconds);
    const double kept = RECENT/(RECENT + seconds);
    recent      = kept*recent + seconds;
    recent_idle = kept*recent_idle + idle;
    return known.n_passes > N_FIRST;
}

void selfspec_thread_count::begin_trial() {
    const bool stalled = recent > RECENT/2 && recent_idle > STALLED*recent;
    const bool can_add = n_fewer > 0;
    if (stalled && n_asked - n_fewer > 1 && !(failed == 1 && can_add)) {
        trial.step = 1;
    } else if (can_add) {
        trial.step = -1;
    }
}

void selfspec_thread_count::go_on(double now, double seconds) {
    const auto known = usual.find(kind);
    if (known != usual.end()) {
        trial.expected += known->second.seconds;
        trial.spent    += seconds;
    }
    trial.n_passes++;
    const double allowed = trial.expected*(trial.step == 1 ? GAIN : NO_LOSS);
    const bool is_bad = trial.spent > allowed + PATIENCE;
    const bool is_over = trial.n_passes >= N_MOST || (trial.expected >= TRIAL && trial.n_passes >= N_FEWEST);
    if (!is_bad && !is_over) {
        return;
    }
    if (trial.spent < allowed) {
        for (auto & [kind, known] : usual) {
            known.seconds *= trial.spent/trial.expected;
        }
        n_fewer += trial.step;
        failed = 0;
    } else {
        failed = trial.step;
    }
    next_try = now + std::max(PAUSE, (trial.spent - trial.expected)/LOSS);
    recent = recent_idle = 0;
    trial = {};
}
