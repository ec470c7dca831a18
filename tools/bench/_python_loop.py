"""Prints the microseconds per token of plain decoding through the package, after a warm-up.

Run by ``overhead`` as a program: _python_loop.py MODEL N_TOKENS THREADS, like plain_loop.c.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from pyselfspec import GREEDY, Completion, Model

N_WARM_UP = 8  # tokens, as in plain_loop.c


def python_loop(model: Path, n_tokens: int, threads: int) -> float:
    with Model(model) as loaded, loaded.context(n_ctx=1024, n_threads=threads) as context:
        completion = Completion(
            context, [1], n_predict=N_WARM_UP + n_tokens, draft=None, sampling=GREEDY
        )
        pieces = iter(completion)
        for _ in range(N_WARM_UP):
            next(pieces)
        start = time.perf_counter_ns()
        for _ in range(n_tokens):
            next(pieces)
        return (time.perf_counter_ns() - start) / 1000 / n_tokens


if __name__ == "__main__":
    print(python_loop(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
