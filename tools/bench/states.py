"""Costs of replay, snapshots and checkpoints of recurrent states, and the speed of drafts."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import click
import numpy as np

from pyselfspec import GREEDY, Completion, Context, Model
from pyselfspec.runtime.ffi import calls
from pyselfspec.runtime.opening import replays_states
from tools.records import Record, provenance, rounded

from ._options import keep, model_argument, progress, run_options
from ._table import Table

WIDTHS = (1, 2, 4, 8, 16)
N_PROMPT = 48
N_CTX = 1024
N_SNAPSHOTS = 7
N_BATCH = 512


def microseconds(run: Callable[[], object]) -> float:
    start = time.perf_counter_ns()
    run()
    return (time.perf_counter_ns() - start) / 1000


def prompt_of(model: Model) -> list[int]:
    rng = np.random.default_rng(0)
    return [int(token) for token in rng.integers(3, model.n_vocab, N_PROMPT)]


def time_pass(context: Context, tokens: list[int]) -> float:
    """Microseconds of a pass after the text, which is then as it was."""
    us = microseconds(lambda: context.decode(tokens))
    context.sequence().rollback(N_PROMPT)
    return us


def time_removal(context: Context, tokens: list[int]) -> float:
    """Microseconds to remove the last half of a pass's tokens."""
    context.decode(tokens)
    us = microseconds(lambda: context.sequence().rollback(N_PROMPT + len(tokens) // 2))
    context.sequence().rollback(N_PROMPT)
    return us


def time_state(context: Context) -> tuple[float, float]:
    """Microseconds to save a checkpoint of the text's state, and to go back to it."""
    session = context.session
    state = calls.save_state(session, 0)
    save_us = microseconds(lambda: calls.save_state(session, 0))
    return save_us, microseconds(lambda: calls.load_state(session, 0, state, N_PROMPT))


def tokens_per_second(context: Context, draft: str | None, n: int) -> tuple[float, list[int]]:
    context.sequence().drop()
    text = Completion(
        context, prompt_of(context.model), n_predict=n, sampling=GREEDY, draft=draft, profile=False
    )
    for _ in text:
        pass
    return text.stats.tokens_per_second or 0.0, text.tokens


def measure_passes(model: Model, threads: int, n_rounds: int) -> Record:
    """Times of passes with neither snapshots nor replay, with snapshots, and as by default."""
    states: list[tuple[float, float]] = []
    removals: list[float] = []
    options = {"n_ctx": N_CTX, "n_threads": threads, "n_seq_max": 1, "n_batch": N_BATCH}
    with ExitStack() as stack:
        contexts = {
            "neither": stack.enter_context(model.context(**options, n_snapshots=0)),
            "snapshots": stack.enter_context(model.context(**options, n_snapshots=N_SNAPSHOTS)),
            "default": stack.enter_context(model.context(**options)),
        }
        times: dict[str, dict[int, list[float]]] = {k: {w: [] for w in WIDTHS} for k in contexts}
        for context in contexts.values():
            context.decode(prompt_of(model), outputs="none")
            context.sequence().save_checkpoint()
        for i in progress(range(n_rounds + 1), "passes"):
            for w in WIDTHS:
                for kind, context in contexts.items():
                    us = time_pass(context, prompt_of(model)[:w])
                    if i:  # the first builds the graph
                        times[kind][w].append(us)
            states.append(time_state(contexts["neither"]))
            removals.append(time_removal(contexts["default"], prompt_of(model)[:4]))
        save_us, load_us = zip(*states, strict=True)
        return {
            "replays": replays_states(model, 1, N_BATCH),
            "n_snapshots": contexts["snapshots"].abilities.max_rollback,
            "removal_us": rounded(removals),
            "state_bytes": model.state_bytes,
            "save_us": rounded(save_us),
            "load_us": rounded(load_us),
            "pass_us": {k: {str(w): rounded(us) for w, us in t.items()} for k, t in times.items()},
        }


def measure_texts(model: Model, threads: int, n_tokens: int, n_rounds: int) -> Record:
    """Tokens per second of a text without drafts and with them, alternating."""
    speeds: dict[str, list[float]] = {"plain": [], "auto": []}
    texts = set()
    with model.context(n_ctx=N_CTX, n_threads=threads, n_seq_max=1) as context:
        for i in progress(range(n_rounds + 1), "texts"):
            for kind, draft in (("plain", None), ("auto", "auto")):
                speed, tokens = tokens_per_second(context, draft, n_tokens)
                texts.add(tuple(tokens))
                if i:
                    speeds[kind].append(speed)
    return {"tokens_per_second": speeds, "same_text": len(texts) == 1}


@click.command()
@model_argument
@run_options
@click.option("--rounds", type=click.IntRange(min=3), default=7)
@click.option("--tokens", type=click.IntRange(min=16), default=128)
def command(model: Path, threads: int, out: Path | None, rounds: int, tokens: int) -> None:
    """Costs of replay, snapshots and checkpoints, and the speed of drafts with them."""
    with Model(model) as opened:
        record = measure_passes(opened, threads, rounds)
        record |= measure_texts(opened, threads, tokens, rounds)
    keep(provenance("states", model, threads) | record, TABLES[0], out)


#
# figures
#


def cells(record: Record) -> list[list[str]]:
    median = statistics.median
    neither = record["pass_us"]["neither"]

    def over(kind: str) -> list[str]:
        """Passes of this kind over those with neither."""
        times = record["pass_us"][kind]
        return [f"{median(times[str(w)]) / median(neither[str(w)]):.3f}" for w in (1, 4, 8)]

    speeds = record["tokens_per_second"]
    return [
        [
            record["model"],
            record["machine"],
            str(record["threads"]),
            f"{record['state_bytes'] / 1e6:.2f}",
            f"{median(record['save_us']) / 1000:.2f}, {median(record['load_us']) / 1000:.2f}",
            f"{median(neither['1']) / 1000:.2f}",
            ", ".join(over("snapshots")) if record["n_snapshots"] else "none",
            "replay" if record["replays"] else "snapshots",
            ", ".join(over("default")),
            f"{median(record['removal_us']) / 1000:.2f}",
            f"{median(speeds['auto']) / median(speeds['plain']):.3f}",
            "yes" if record["same_text"] else "NO",
        ]
    ]


TABLES = (
    Table(
        "states",
        (
            "model",
            "machine",
            "threads",
            "MB of a state",
            "ms to save, load",
            "ms of a pass",
            f"with {N_SNAPSHOTS} snapshots: 1, 4, 8 tokens",
            "default",
            "with it: 1, 4, 8 tokens",
            "ms to remove 2 of 4",
            "text with drafts over plain",
            "same text",
        ),
        "<<>>>><<>>><",
        cells,
    ),
)
