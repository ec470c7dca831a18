"""Prints the times of passes over one to 32 tokens, with whatever build of llama.cpp it finds.

Run by ``widths`` as a program: _pass_times.py MODEL THREADS N_PAST CACHE_TYPE, with
LLAMA_CPP_LIB_PATH naming the libraries. So it knows nothing of pyselfspec.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 16, 24, 32)
PROMPT = "prompt"
N_PAST = 32  # tokens before those that are timed, by default
N_PROMPT = 512
N_REPEAT = 4  # the first of each width builds the graph


def measure(model: str, threads: int, n_past: int, cache_type: int) -> dict[str, float]:
    """Microseconds of the fastest pass, by width, and of a prompt.

    n_past: N_PROMPT or less, or a multiple of it: then the first tokens are repeated, without
    computing them again.
    """
    import pyselfspec  # noqa: F401  (its bindings are found where no others are installed)
    import llama_cpp.llama_cpp as llama  # isort: skip

    silent = llama.llama_log_callback(lambda *_: None)
    llama.llama_log_set(silent, None)
    llama.llama_backend_init()
    if let_grow := getattr(llama._lib, "selfspec_let_weights_grow", None):
        let_grow(True)  # as pyselfspec does where there is memory for it
    n_first = min(n_past, N_PROMPT)
    params = llama.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = n_past + 2 * N_PROMPT, N_PROMPT, N_PROMPT
    params.n_seq_max, params.kv_unified = n_past // n_first, True
    params.type_k = params.type_v = cache_type
    params.n_threads = params.n_threads_batch = threads
    handle = llama.llama_model_load_from_file(model.encode(), llama.llama_model_default_params())
    context = llama.llama_init_from_model(handle, params)
    memory = llama.llama_get_memory(context)
    batch = llama.llama_batch_init(N_PROMPT, 0, 1)

    def decode(n_tokens: int, at: int, all_logits: bool) -> float:
        batch.n_tokens = n_tokens
        for i in range(n_tokens):
            batch.token[i], batch.pos[i] = 300 + i, at + i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = all_logits or i + 1 == n_tokens
        start = time.perf_counter_ns()
        assert llama.llama_decode(context, batch) == 0
        llama.llama_get_logits_ith(context, n_tokens - 1)  # waits
        return (time.perf_counter_ns() - start) / 1000

    def fastest(n_tokens: int, at: int, n_runs: int) -> float:
        runs = []
        for _ in range(n_runs):
            llama.llama_memory_seq_rm(memory, 0, at, -1)
            runs.append(decode(n_tokens, at, all_logits=at > 0))
        return min(runs)

    prompt = fastest(N_PROMPT, 0, 2)
    llama.llama_memory_seq_rm(memory, 0, n_first, -1)
    size = llama.llama_state_seq_get_size(context, 0)
    state = (ctypes.c_uint8 * size)()
    llama.llama_state_seq_get_data(context, state, size, 0)
    for seq in range(1, n_past // n_first):
        assert llama.llama_state_seq_set_data(context, state, size, seq)
        llama.llama_memory_seq_cp(memory, seq, 0, -1, -1)
    times = {str(width): fastest(width, n_first, N_REPEAT) for width in WIDTHS}
    return times | {PROMPT: prompt}


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], *map(int, sys.argv[2:]))))
