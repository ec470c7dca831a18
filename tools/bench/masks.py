"""Measure the cost of masked passes, and compare it with the weight bytes that they read."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import click

from pyselfspec import Context, KVSequence, LayerMask, Model
from tools.records import Record, provenance, rounded

from ._options import keep, model_argument, progress, run_options
from ._table import Table


def masks_to_time(n_layer: int) -> dict[str, LayerMask]:
    """Exits, and masks that thin out the inside."""
    inside = range(1, n_layer - 1)
    return {
        "full": LayerMask.full(n_layer),
        "exit after 1/4": LayerMask.early_exit(n_layer, n_layer // 4),
        "exit after 1/2": LayerMask.early_exit(n_layer, n_layer // 2),
        "alternate blocks": LayerMask.alternate(n_layer),
        "no attention inside": LayerMask.skipping(n_layer, attn=inside),
        "no feed-forward inside": LayerMask.skipping(n_layer, ffn=inside),
    }


def time_pass(context: Context, seq: KVSequence, mask: LayerMask, pos: int) -> float:
    """Microseconds of a one-token pass with its arg-max."""
    start = time.perf_counter_ns()
    context.decode([1], seq=seq, pos=pos, mask=mask, head=context.best_head)
    context.argmax(0)
    return (time.perf_counter_ns() - start) / 1000


def time_mask(context: Context, mask: LayerMask, n_tokens: int) -> float:
    """Median microseconds of a one-token pass; the first, which builds the graph, is left out."""
    seq = context.sequence()
    n_past = seq.n_past
    times = [time_pass(context, seq, mask, n_past + i) for i in range(n_tokens + 1)]
    seq.rollback(n_past)
    return statistics.median(times[1:])


@click.command()
@model_argument
@run_options
@click.option("--rounds", type=click.IntRange(min=3), default=9)
@click.option("--tokens", type=click.IntRange(min=1), default=6)
def command(model: Path, threads: int, out: Path | None, rounds: int, tokens: int) -> None:
    """Cost of masked one-token passes against the share of weight bytes that they read."""
    with Model(model) as loaded:
        context = loaded.context(n_ctx=1024, n_threads=threads)
        context.prefill([1] * 32)
        named = masks_to_time(loaded.n_layer)
        times: dict[str, list[float]] = {name: [] for name in named}
        for _ in progress(range(rounds), "rounds"):
            for name, mask in named.items():
                times[name].append(time_mask(context, mask, tokens))
        bytes_read = {
            name: loaded.file.weight_bytes(mask.skip_attn, mask.skip_ffn)
            for name, mask in named.items()
        }
    record = {
        "mask_us": {name: rounded(us) for name, us in times.items()},
        "mask_bytes": bytes_read,
    }
    keep(provenance("masks", model, threads) | record, TABLES[0], out)


#
# figures
#


def over_full(record: Record) -> Iterator[tuple[str, float, float]]:
    """Each mask with its cost and its weight bytes, both over those of a full pass."""
    full_us = statistics.median(record["mask_us"]["full"])
    full_bytes = record["mask_bytes"]["full"]
    for name, us in record["mask_us"].items():
        if name != "full":
            yield name, statistics.median(us) / full_us, record["mask_bytes"][name] / full_bytes


def cells(record: Record) -> list[list[str]]:
    return [
        [record["model"], name, f"{cost:.3f}", f"{share:.3f}"]
        for name, cost, share in over_full(record)
    ]


TABLES = (
    Table(
        "masks",
        ("model", "mask", "cost over a full pass", "share of weight bytes"),
        "<<>>",
        cells,
    ),
)
