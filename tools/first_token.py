"""Measures the time to the first token of a long prompt whose last tokens changed, with the others
in its slot, in RAM or on disk; beside that of adding as many tokens to a prompt.

    python tools/first_token.py MODEL [--threads N] [--rounds N]

Prints a table of medians in seconds with the tokens that were evaluated. The cases alternate, so
that other programs on the machine disturb them alike.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

N_PROMPT, N_CHANGED = 4000, 200
N_CTX = 4352  # room for one of the prompts


@contextmanager
def serving(model: str, folder: str, n_threads: int) -> Iterator[str]:
    """Yield the address of a server with one slot, which holds one such prompt."""
    command = [sys.executable, "-m", "pyselfspec", "serve", model, "--json", "--port", "0"]
    command += ["-np", "1", "-c", str(N_CTX), "-t", str(n_threads), "--cache-dir", folder]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            yield urlsplit(json.loads(process.stdout.readline())["url"]).netloc
        finally:
            process.terminate()


def ask(address: str, prompt: Sequence[int]) -> tuple[float, int]:
    """Return the seconds to the first token of a greedy answer, and the tokens evaluated."""
    body: dict[str, Any] = {"prompt": list(prompt), "max_tokens": 1, "temperature": 0}
    connection = HTTPConnection(address)
    start = time.perf_counter()
    connection.request(
        "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
    )
    found = json.loads(connection.getresponse().read())
    seconds = time.perf_counter() - start
    used = found["usage"]["pyselfspec"]
    return seconds, used["n_prompt"] - used["n_prompt_reused"]


def tokens(rng: random.Random, n: int) -> list[int]:
    """Return ids of ordinary tokens."""
    return [rng.randrange(300, 4000) for _ in range(n)]


def measure(model: str, n_threads: int, n_rounds: int) -> dict[str, list[tuple[float, int]]]:
    """Return seconds and evaluated tokens of each case, by round."""
    rng = random.Random(0)
    found: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for _ in range(n_rounds):
        start, end = tokens(rng, N_PROMPT - N_CHANGED), [tokens(rng, N_CHANGED) for _ in range(4)]
        with tempfile.TemporaryDirectory() as folder:
            with serving(model, folder, n_threads) as address:
                ask(address, tokens(rng, 40))
                found["3,800 tokens, new"].append(ask(address, start))
                found["200 tokens more"].append(ask(address, start + end[0]))
                found["another end, in its slot"].append(ask(address, start + end[1]))
                ask(address, tokens(rng, N_PROMPT))  # takes the cells of the first
                found["another end, from RAM"].append(ask(address, start + end[2]))
            with serving(model, folder, n_threads) as address:
                ask(address, tokens(rng, 40))
                found["another end, from disk"].append(ask(address, start + end[3]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    print("| prompt | evaluated tokens | seconds, median | least | most |\n|---|---|---|---|---|")
    for name, rows in measure(options.model, options.threads, options.rounds).items():
        seconds = [each for each, _ in rows]
        n = statistics.median(n for _, n in rows)
        print(
            f"| {name} | {n:.0f} | {statistics.median(seconds):.2f} | {min(seconds):.2f} |"
            f" {max(seconds):.2f} |"
        )


if __name__ == "__main__":
    main()
