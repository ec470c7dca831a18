// The plainest possible loop over llama.cpp's C interface: the yardstick of tools/bench.py overhead.
// plain_loop MODEL N_TOKENS N_THREADS: greedy tokens from token 1, prints microseconds per token after a warm-up.

#include "llama.h"

#include <stdio.h>
#include <stdlib.h>

static void quiet(enum ggml_log_level level, const char * text, void * data) {
    (void) level, (void) text, (void) data;
}

int main(int argc, char ** argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: plain_loop MODEL N_TOKENS N_THREADS\n");
        return 2;
    }
    const int n_tokens = atoi(argv[2]);

    llama_log_set(quiet, NULL);
    llama_backend_init();

    struct llama_model * model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model) {
        return 1;
    }
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx           = 1024;
    params.n_threads       = atoi(argv[3]);
    params.n_threads_batch = atoi(argv[3]);

    struct llama_context * ctx     = llama_init_from_model(model, params);
    struct llama_sampler * sampler = llama_sampler_init_greedy();

    llama_token token = 1;
    int64_t     start = 0;
    const int   n_warm_up = 8;

    for (int i = 0; i < n_warm_up + n_tokens; ++i) {
        if (i == n_warm_up) {
            start = ggml_time_us();
        }
        if (llama_decode(ctx, llama_batch_get_one(&token, 1)) != 0) {
            return 1;
        }
        token = llama_sampler_sample(sampler, ctx, -1);
    }
    printf("%.3f\n", (double) (ggml_time_us() - start)/n_tokens);

    llama_sampler_free(sampler);
    llama_free(ctx);
    llama_model_free(model);
    return 0;
}
