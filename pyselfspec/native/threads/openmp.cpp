// The functions that compilers call for ggml's OpenMP directives (parallel num_threads, single, barrier), as calls of a team:
// GCC's names begin with GOMP, Clang's with __kmpc. They are hidden, so that ggml cannot get another library's functions, and
// other libraries cannot get ours.
#include "include/omp.h"
#include "team.h"

#include <cstdarg>
#include <cstdlib>

#define EXPORT extern "C" __attribute__((visibility("hidden")))

int omp_get_num_threads() {
    return (int) selfspec_team_size();
}

int omp_get_thread_num() {
    return (int) selfspec_team_index();
}

#if defined(__clang__)

namespace {

// Clang hands over addresses of variables; this many are enough for ggml's parallel region.
constexpr int N_VARIABLES = 4;
using region = void (*)(int32_t * thread, int32_t * bound, void *, void *, void *, void *);

struct call {
    region work;
    void * variables[N_VARIABLES];
};

thread_local unsigned n_wanted = 1;

void enter(void * data) {
    call &  c = *(call *) data;
    int32_t thread = omp_get_thread_num();
    int32_t bound = thread;
    c.work(&thread, &bound, c.variables[0], c.variables[1], c.variables[2], c.variables[3]);
}

}  // namespace

EXPORT int32_t __kmpc_global_thread_num(void *) {
    return omp_get_thread_num();
}

EXPORT void __kmpc_push_num_threads(void *, int32_t, int32_t n_threads) {
    n_wanted = n_threads > 0 ? (unsigned) n_threads : 1;
}

EXPORT void __kmpc_fork_call(void *, int32_t n_variables, region work, ...) {
    if (n_variables > N_VARIABLES) {
        abort();  // another directive than ggml's
    }
    call c = { work, {} };
    va_list variables;
    va_start(variables, work);
    for (int32_t i = 0; i < n_variables; i++) {
        c.variables[i] = va_arg(variables, void *);
    }
    va_end(variables);
    selfspec_team_run(enter, &c, n_wanted);
    n_wanted = 1;
}

EXPORT void __kmpc_barrier(void *, int32_t) {
    selfspec_team_barrier();
}

EXPORT int32_t __kmpc_single(void *, int32_t) {
    return selfspec_team_first();
}

EXPORT void __kmpc_end_single(void *, int32_t) {}

#else

EXPORT void GOMP_parallel(void (*work)(void *), void * data, unsigned n_threads, unsigned) {
    selfspec_team_run(work, data, n_threads);
}

EXPORT void GOMP_barrier() {
    selfspec_team_barrier();
}

EXPORT bool GOMP_single_start() {
    return selfspec_team_first();
}

#endif
