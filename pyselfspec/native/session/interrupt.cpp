#include "session/interrupt.h"

#include "llama.h"

#include <csignal>

static std::atomic<bool> interrupted { false };
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler writes it");

#if !defined(_WIN32)

using selfspec_handler = void (*)(int signal, siginfo_t * info, void * context);

static struct sigaction first_handler; // set once, before ours was ever installed
static struct sigaction handler_before;
static std::atomic<int> n_inside { 0 };

static void selfspec_call(const struct sigaction & handler, int signal, siginfo_t * info, void * context) {
    if (handler.sa_flags & SA_SIGINFO) {
        handler.sa_sigaction(signal, info, context);
    } else {
        handler.sa_handler(signal);
    }
}

// A handler that was installed over ours may call ours, which then calls the first handler. The flag is set last: a pass must
// not end before the language's handler has recorded the signal.
static void selfspec_on_interrupt(int signal, siginfo_t * info, void * context) {
    const int n_outside = n_inside++;
    if (n_outside == 0) {
        selfspec_call(handler_before, signal, info, context);
    } else if (n_outside == 1) {
        selfspec_call(first_handler, signal, info, context);
    }
    interrupted = true;
    n_inside--;
}

// False where SIGINT is ignored or ends the process.
static bool selfspec_is_handled(const struct sigaction & action) {
    if (action.sa_flags & SA_SIGINFO) {
        return action.sa_sigaction != (selfspec_handler) SIG_DFL && action.sa_sigaction != (selfspec_handler) SIG_IGN;
    }
    return action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN;
}

static void selfspec_catch_interrupts() {
    struct sigaction now = {};
    if (sigaction(SIGINT, nullptr, &now) != 0 || !selfspec_is_handled(now)) {
        return;
    }
    if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == selfspec_on_interrupt) {
        return;
    }
    if (!selfspec_is_handled(first_handler)) {
        first_handler = now;
    }
    handler_before = now;
    now.sa_sigaction = selfspec_on_interrupt;
    now.sa_flags    |= SA_SIGINFO;
    sigaction(SIGINT, &now, nullptr);
}

#else

static void selfspec_catch_interrupts() {}

#endif

selfspec_interrupt::selfspec_interrupt(llama_context & ctx, callback before, void * data_before) :
    ctx(ctx), before(before), data_before(data_before) {
    llama_set_abort_callback(&ctx, is_wanted, this);
}

selfspec_interrupt::~selfspec_interrupt() {
    llama_set_abort_callback(&ctx, before, data_before);
}

void selfspec_interrupt::heed_interrupts(bool heed) noexcept {
    heeds = heed;
    if (heed) {
        interrupted = false;
        selfspec_catch_interrupts();
    }
}

// Called after every operation of a graph.
bool selfspec_interrupt::is_wanted(void * self) {
    const auto & stop = *static_cast<const selfspec_interrupt *>(self);
    if (stop.in_removal) {
        return false;
    }
    return stop.n_stops > 0 || (stop.in_pass && stop.heeds && interrupted) || (stop.before && stop.before(stop.data_before));
}
