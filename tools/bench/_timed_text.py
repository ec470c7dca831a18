"""Prints the microseconds per token of a text that ends after so many tokens or seconds.

Run by ``neighbour`` as a program: _timed_text.py MODEL THREADS N_TOKENS SECONDS WAY. ``stock`` is
plain decoding with whatever build of llama.cpp LLAMA_CPP_LIB_PATH names, without pyselfspec;
another way is the name of a drafter, or ``plain``. The text follows token 1.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

STOCK, PLAIN = "stock", "plain"
N_CTX = 1024


def of_package(model: str, threads: int, draft: str | None) -> Iterator[int]:
    """How many tokens there are, after every piece."""
    from pyselfspec import GREEDY, Completion, Model

    class Endless(Model):
        """A model whose texts do not end, as stock's."""

        def is_eog(self, token: int) -> bool:
            return False

    with Endless(model) as loaded, loaded.context(n_ctx=N_CTX, n_threads=threads) as context:
        completion = Completion(context, [1], n_predict=N_CTX, draft=draft, sampling=GREEDY)
        for _ in completion:
            yield len(completion.tokens)


def of_stock(model: str, threads: int) -> Iterator[int]:
    import pyselfspec  # noqa: F401  (its bindings are found where no others are installed)
    import llama_cpp.llama_cpp as llama  # isort: skip

    silent = llama.llama_log_callback(lambda *_: None)
    llama.llama_log_set(silent, None)
    llama.llama_backend_init()
    params = llama.llama_context_default_params()
    params.n_ctx, params.n_threads, params.n_threads_batch = N_CTX, threads, threads
    handle = llama.llama_model_load_from_file(model.encode(), llama.llama_model_default_params())
    context = llama.llama_init_from_model(handle, params)
    sampler = llama.llama_sampler_init_greedy()
    token = (llama.llama_token * 1)(1)
    for n in range(1, N_CTX):
        assert llama.llama_decode(context, llama.llama_batch_get_one(token, 1)) == 0
        token[0] = llama.llama_sampler_sample(sampler, context, -1)
        yield n


def us_per_token(counts: Iterator[int], n_tokens: int, seconds: float) -> float:
    """Return the microseconds per token after the first piece, which includes reading the prompt
    and building graphs."""
    first, n, elapsed = next(counts), 0, 0.0
    start = time.perf_counter()
    while n < n_tokens and elapsed < seconds:
        n = next(counts) - first
        elapsed = time.perf_counter() - start
    return elapsed * 1e6 / n


if __name__ == "__main__":
    model, threads, n_tokens, seconds, way = sys.argv[1:]
    counts = (
        of_stock(model, int(threads))
        if way == STOCK
        else of_package(model, int(threads), None if way == PLAIN else way)
    )
    print(us_per_token(counts, int(n_tokens), float(seconds)))
