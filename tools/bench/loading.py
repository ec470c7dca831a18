"""Times of loading a model and of its passes, with weights copied into memory or mapped."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import click
import numpy as np

from pyselfspec import Context, Model
from pyselfspec.runtime.loading import COPY, MAP
from tools.records import Record, provenance, rounded

from ._options import keep, model_argument, progress, run_options
from ._table import Table

WIDTHS = (1, 4, 8)
LOADS = (MAP, COPY)
N_PROMPT = 32
N_REPEAT = 20  # passes of each width in a round


def pass_us(context: Context, width: int) -> float:
    """Microseconds of a pass after the text, which is then as it was."""
    start = time.perf_counter_ns()
    context.decode(list(range(300, 300 + width)))
    us = (time.perf_counter_ns() - start) / 1000
    context.sequence().rollback(N_PROMPT)
    return us


def measure(path: Path, threads: int, n_rounds: int) -> Record:
    """Times of loading and of passes, in turn."""
    loading: dict[str, list[float]] = {load: [] for load in LOADS}
    times: dict[str, dict[str, list[float]]] = {
        each: {str(w): [] for w in WIDTHS} for each in LOADS
    }
    prompt = np.random.default_rng(0).integers(300, 600, N_PROMPT).tolist()
    for _ in progress(range(n_rounds), "loading"):
        with ExitStack() as stack:
            contexts = {}
            for load in LOADS:
                start = time.perf_counter_ns()
                model = stack.enter_context(Model(path, n_gpu_layers=0, load=load))
                loading[load].append((time.perf_counter_ns() - start) / 1000)
                contexts[load] = model.context(n_ctx=512, n_threads=threads, n_seq_max=1)
                contexts[load].decode(prompt, outputs="none")
            for width in WIDTHS:
                found: dict[str, list[float]] = {load: [] for load in LOADS}
                for i in range(N_REPEAT + 1):
                    for load, context in contexts.items():
                        us = pass_us(context, width)
                        if i:  # the first builds the graph
                            found[load].append(us)
                for load in LOADS:
                    times[load][str(width)].append(median(found[load]))
    return {
        "load_us": {load: rounded(us) for load, us in loading.items()},
        "pass_us": {k: {w: rounded(us) for w, us in of.items()} for k, of in times.items()},
    }


@click.command()
@model_argument
@run_options
@click.option("--rounds", type=click.IntRange(min=1), default=5)
def command(model: Path, threads: int, out: Path | None, rounds: int) -> None:
    """Copied weights against a mapped file."""
    record = provenance("loading", model, threads) | measure(model, threads, rounds)
    keep(record, TABLES[0], out)


def cells(record: Record) -> list[list[str]]:
    load_ms = {load: median(us) / 1000 for load, us in record["load_us"].items()}
    passes = record["pass_us"]
    ratios = [median(passes[MAP][str(w)]) / median(passes[COPY][str(w)]) for w in WIDTHS]
    return [
        [
            record["model"],
            str(record["threads"]),
            *(f"{load_ms[load]:.0f}" for load in LOADS),
            *(f"{ratio:.2f}" for ratio in ratios),
        ]
    ]


TABLES = (
    Table(
        "loading",
        (
            "model",
            "threads",
            "ms to map",
            "ms to copy",
            *(f"{w} token{'s' * (w > 1)}, mapped / copied" for w in WIDTHS),
        ),
        "<>>>>>>",
        cells,
    ),
)
