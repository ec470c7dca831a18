"""Draft steps in turn with checks, each of which could cost a new graph, and draft steps alone."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import click

from pyselfspec import Context, LayerMask, Model
from pyselfspec.runtime.passes import Hidden
from tools.records import Record, provenance, rounded

from ._options import keep, model_argument, progress, run_options
from ._table import Table


def draft_steps(context: Context, mask: LayerMask, n_steps: int, check: bool) -> list[float]:
    """Times of the steps of a draft in the text's own sequence; then, if so, its check."""
    seq, first = context.sequence(), mask.first_skipped
    n_past = seq.n_past
    times, states = [], []
    for i in range(n_steps):
        start = time.perf_counter_ns()
        done = context.decode(
            [1], seq=seq, pos=n_past + i, mask=mask, hidden_at=first, head=context.best_head
        )
        context.argmax(0)
        times.append((time.perf_counter_ns() - start) / 1000)
        states.append(done.hidden)
    if check:
        rest = LayerMask.enter_at(mask.n_layer, first)
        hidden = Hidden.joined([state for state in states if state is not None])
        context.decode([1] * n_steps, seq=seq, pos=n_past, mask=rest, hidden=hidden, in_place=True)
        context.argmax(0)  # waits for the device
    seq.rollback(n_past)
    return times


@click.command()
@model_argument
@run_options
@click.option("--rounds", type=click.IntRange(min=5), default=15)
@click.option("--draft-max", type=click.IntRange(min=1), default=4)
def command(model: Path, threads: int, out: Path | None, rounds: int, draft_max: int) -> None:
    """Draft steps in turn with checks against the same steps repeated alone."""
    in_turn: list[list[float]] = []
    alone: list[list[float]] = []
    with Model(model) as loaded, loaded.context(n_ctx=1024, n_threads=threads) as context:
        context.prefill([1] * 32)
        mask = LayerMask.early_exit(loaded.n_layer, max(1, loaded.n_layer // 4))
        for _ in progress(range(rounds), "rounds"):
            for times, check in ((in_turn, True), (alone, False)):
                draft_steps(context, mask, draft_max, check)  # after the other kind
                times += [draft_steps(context, mask, draft_max, check) for _ in range(3)]
    record = {
        "draft_max": draft_max,
        "in_turn_us": [rounded(times) for times in in_turn],
        "alone_us": [rounded(times) for times in alone],
    }
    keep(provenance("switch", model, threads) | record, TABLES[0], out)


#
# figures
#


def medians(record: Record) -> tuple[float, float, float]:
    """Microseconds of a draft step in turn with checks, of one alone, and of the first after a
    check. The medians are of means over a draft."""
    in_turn, alone = record["in_turn_us"], record["alone_us"]
    return (
        statistics.median(map(statistics.mean, in_turn)),
        statistics.median(map(statistics.mean, alone)),
        statistics.median(times[0] for times in in_turn),
    )


def cells(record: Record) -> list[list[str]]:
    in_turn, alone, first = medians(record)
    return [
        [
            record["model"],
            f"{in_turn / 1000:.3f}",
            f"{alone / 1000:.3f}",
            f"{in_turn / alone:.3f}",
            f"{first / alone:.3f}",
        ]
    ]


TABLES = (
    Table(
        "switch",
        (
            "model",
            "draft step between verification passes, ms",
            "alone, ms",
            "ratio",
            "first step after a pass, over alone",
        ),
        "<>>>>",
        cells,
    ),
)
