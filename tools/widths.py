"""Times of passes over one to sixteen tokens, with two builds of llama.cpp in turn.

A build is measured in a process of its own that knows nothing of pyselfspec: this file run as a
program, with LLAMA_CPP_LIB_PATH naming the libraries.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

WIDTHS = (1, 2, 3, 4, 5, 6, 8, 16)
N_PAST = 32  # tokens before those that are timed
N_PROMPT = 512
N_REPEAT = 4  # the first of each width builds the graph

Times = dict[str, list[int]]  # microseconds by width, and under "prompt"


def alternate(
    model: Path, builds: dict[str, Path], threads: int, n_rounds: int
) -> dict[str, Times]:
    """The fastest pass of each width in each round, by the names of the builds."""
    times: dict[str, Times] = {name: {} for name in builds}
    for _ in range(n_rounds):
        for name, libraries in builds.items():
            for width, us in _in_own_process(model, libraries, threads).items():
                times[name].setdefault(width, []).append(round(us))
    return times


def _in_own_process(model: Path, libraries: Path, threads: int) -> dict[str, float]:
    command = [sys.executable, __file__, str(model), str(threads)]
    env = os.environ | {"LLAMA_CPP_LIB_PATH": str(libraries)}
    run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=env)
    times: dict[str, float] = json.loads(run.stdout)
    return times


def table_rows(record: dict[str, Any]) -> Iterator[str]:
    """Every time as a multiple of stock's width 1; the prompt of stock's prompt."""
    system = record.get("system", "")
    avx2 = "AVX2 = 1" in system and "AVX512 = 1" not in system
    stock = {width: min(us) for width, us in record["us"]["stock"].items()}
    for name, times in record["us"].items():
        best = {width: min(us) for width, us in times.items()}
        ratios = [best[str(width)] / stock["1"] for width in WIDTHS]
        ratios.append(best["prompt"] / stock["prompt"])
        build = f"{name}, AVX2" if avx2 else name
        cells = [record["model"], build, f"{best['1'] / 1000:.1f}", *(f"{r:.2f}" for r in ratios)]
        yield f"| {' | '.join(cells)} |"


TABLE_HEAD = (
    f"| model | build | ms | {' | '.join(f't({width})' for width in WIDTHS)} | prompt |",
    "|---|---|---:|" + "---:|" * (len(WIDTHS) + 1),
)


def _measure(model: str, threads: int) -> dict[str, float]:
    import llama_cpp.llama_cpp as llama

    silent = llama.llama_log_callback(lambda *_: None)
    llama.llama_log_set(silent, None)
    llama.llama_backend_init()
    params = llama.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = 1024, N_PROMPT, N_PROMPT
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

    fastest(N_PAST, 0, 1)
    times = {str(width): fastest(width, N_PAST, N_REPEAT) for width in WIDTHS}
    return times | {"prompt": fastest(N_PROMPT, 0, 2)}


if __name__ == "__main__":
    print(json.dumps(_measure(sys.argv[1], int(sys.argv[2]))))
