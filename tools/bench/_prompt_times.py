"""Prints how long a prompt takes for each type of K and V, with whatever llama.cpp it finds.

Run by ``prompts`` as a program: _prompt_times.py MODEL THREADS N_TOKENS CACHE_TYPE..., with
LLAMA_CPP_LIB_PATH naming the libraries. So it knows nothing of pyselfspec.
"""

from __future__ import annotations

import json
import sys
import time

PIECE = 512  # tokens of a pass


def measure(path: str, threads: int, n_tokens: int, *cache_types: int) -> dict[str, float]:
    """Microseconds of a prompt, by the number of the cache type."""
    import pyselfspec  # noqa: F401  (its bindings are found where no others are installed)
    import llama_cpp.llama_cpp as llama  # isort: skip

    silent = llama.llama_log_callback(lambda *_: None)
    llama.llama_log_set(silent, None)
    llama.llama_backend_init()
    if let_grow := getattr(llama._lib, "selfspec_let_weights_grow", None):
        let_grow(True)  # as pyselfspec does where there is memory for it
    model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
    batch = llama.llama_batch_init(PIECE, 0, 1)

    def of_type(cache_type: int) -> float:
        params = llama.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = n_tokens, PIECE, PIECE
        params.type_k = params.type_v = cache_type
        params.n_threads = params.n_threads_batch = threads
        context = llama.llama_init_from_model(model, params)
        try:
            read(context, min(PIECE, n_tokens))  # the first pass of a process takes longer
            return read(context, n_tokens)
        finally:
            llama.llama_free(context)

    def read(context: object, n: int) -> float:
        llama.llama_memory_clear(llama.llama_get_memory(context), False)
        start = time.perf_counter_ns()
        for at in range(0, n, PIECE):
            batch.n_tokens = min(PIECE, n - at)
            for i in range(batch.n_tokens):
                batch.token[i], batch.pos[i] = 300 + (at + i) % PIECE, at + i
                batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
                batch.logits[i] = at + i + 1 == n
            assert llama.llama_decode(context, batch) == 0
        llama.llama_get_logits_ith(context, -1)  # waits
        return (time.perf_counter_ns() - start) / 1000

    return {str(cache_type): of_type(cache_type) for cache_type in cache_types}


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], *map(int, sys.argv[2:]))))
