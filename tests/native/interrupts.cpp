// Handlers of SIGINT that a library may install beside Python's.
#include <atomic>
#include <csignal>

static struct sigaction before;
static std::atomic<int> n_calls { 0 };

// Calls the handler that was there before, whichever that is.
static void chained(int signal, siginfo_t * info, void * context) {
    if (++n_calls < 100) {
        before.sa_sigaction(signal, info, context);
    }
}

static void set(void (*handler)(int, siginfo_t *, void *), struct sigaction * old) {
    struct sigaction action = {};
    action.sa_sigaction = handler;
    action.sa_flags     = SA_SIGINFO;
    sigaction(SIGINT, &action, old);
}

extern "C" void chain() { set(chained, &before); }
extern "C" int  n_chained() { return n_calls; }
extern "C" void set_default_with_info() { set((void (*)(int, siginfo_t *, void *)) SIG_DFL, nullptr); }
