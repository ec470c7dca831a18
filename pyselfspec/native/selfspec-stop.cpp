#include "selfspec-stop.h"

#include "llama.h"

#include <csignal>

static std::atomic<bool> interrupted { false };
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler writes it");

#if !defined(_WIN32)

static struct sigaction handler_before;

static void selfspec_on_interrupt(int signal, siginfo_t * info, void * context) {
    interrupted = true;
    if (handler_before.sa_flags & SA_SIGINFO) {
        handler_before.sa_sigaction(signal, info, context);
    } else {
        handler_before.sa_handler(signal);
    }
}

// Only before a handler: where SIGINT is ignored or ends the process, it stays so.
static void selfspec_catch_interrupts() {
    struct sigaction now = {};
    if (sigaction(SIGINT, nullptr, &now) != 0) {
        return;
    }
    const bool has_info = now.sa_flags & SA_SIGINFO;
    if (has_info ? now.sa_sigaction == selfspec_on_interrupt : now.sa_handler == SIG_DFL || now.sa_handler == SIG_IGN) {
        return;
    }
    handler_before = now;
    now.sa_sigaction = selfspec_on_interrupt;
    now.sa_flags    |= SA_SIGINFO;
    sigaction(SIGINT, &now, nullptr);
}

#else

static void selfspec_catch_interrupts() {}

#endif

selfspec_stop::selfspec_stop(llama_context & ctx, callback before, void * data_before) :
    ctx(ctx), before(before), data_before(data_before) {
    llama_set_abort_callback(&ctx, is_wanted, this);
}

selfspec_stop::~selfspec_stop() {
    llama_set_abort_callback(&ctx, before, data_before);
}

void selfspec_stop::heed_interrupts(bool heed) noexcept {
    heeds = heed;
    if (heed) {
        interrupted = false;
        selfspec_catch_interrupts();
    }
}

// Asked after every operation of a graph.
bool selfspec_stop::is_wanted(void * self) {
    const auto & stop = *static_cast<const selfspec_stop *>(self);
    return stop.stopped || (stop.heeds && interrupted) || (stop.before && stop.before(stop.data_before));
}
