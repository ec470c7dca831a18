// The two functions of OpenMP that ggml calls, see openmp.cpp.
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

__attribute__((visibility("hidden"))) int omp_get_num_threads(void);
__attribute__((visibility("hidden"))) int omp_get_thread_num(void);

#ifdef __cplusplus
}
#endif
