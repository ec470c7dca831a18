// ggml's OpenMP directives, compiled by this machine's compiler and run by our threads.
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

static void rounds(int n_threads, int * sum, int * n_single) {
    #pragma omp parallel num_threads(n_threads)
    {
        #pragma omp single
        {
            *n_single += 1;
            if (omp_get_num_threads() != n_threads) {
                abort();
            }
        }
        for (int i = 0; i < n_threads; i++) {  // one after the other
            if (omp_get_thread_num() == i) {
                *sum += 1 << i;
            }
            #pragma omp barrier
        }
    }
}

int main(void) {
    for (int run = 0; run < 100; run++) {
        int sum = 0;
        int n_single = 0;
        const int n_threads = 1 + run % 4;
        rounds(n_threads, &sum, &n_single);
        if (sum != (1 << n_threads) - 1 || n_single != 1) {
            fprintf(stderr, "%d threads: sum %d, %d single\n", n_threads, sum, n_single);
            return 1;
        }
    }
    puts("as expected");
    return 0;
}
