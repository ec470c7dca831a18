// llama.cpp's log: silent, or on stderr without messages for debugging, and the first error of each thread. The callback is
// not in Python: there, a Ctrl-C during the callback would be lost, and threads not created by Python would need its lock.

#include "abi/selfspec.h"

#include "llama.h"

#include <atomic>
#include <cstdio>
#include <cstring>
#include <string>

static std::atomic<bool>        selfspec_log_shown { false };
static thread_local std::string selfspec_first_error;
static thread_local bool        selfspec_is_debug = false;  // the thread's last message, which others may continue

static void selfspec_on_log(ggml_log_level level, const char * text, void *) {
    const bool says_something = text[strspn(text, " \n")] != '\0';
    if (level == GGML_LOG_LEVEL_ERROR && says_something && selfspec_first_error.empty()) {
        try {
            selfspec_first_error = text;
        } catch (...) {
            // no memory for the message
        }
    }
    if (level != GGML_LOG_LEVEL_CONT) {
        selfspec_is_debug = level == GGML_LOG_LEVEL_DEBUG;
    }
    if (selfspec_log_shown && !selfspec_is_debug) {
        fputs(text, stderr);
    }
}

void selfspec_log_take(void) {
    llama_log_set(selfspec_on_log, nullptr);
}

void selfspec_log_show(bool shown) {
    selfspec_log_shown = shown;
}

const char * selfspec_log_error(void) {
    return selfspec_first_error.c_str();
}

void selfspec_log_forget(void) {
    selfspec_first_error.clear();
}
