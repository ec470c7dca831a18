"""Measure what scans save: prefix reuse in time, early abort in blocks evaluated."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import click

from pyselfspec import Context, LayerMask, Model
from pyselfspec.masks.score import Score
from pyselfspec.masks.space import Space, Unit
from pyselfspec.selection import chunks, strategies
from pyselfspec.selection.objectives import CACHE_BYTES, Setting
from pyselfspec.selection.objectives.perplexity import Objective as Perplexity
from pyselfspec.selection.rounds import AbortRatio, Confident, GiveUp, Never, Round
from pyselfspec.selection.runner import run
from pyselfspec.selection.scorer import Scorer
from pyselfspec.selection.strategies import Prune
from tools.records import Record, provenance

from ._options import keep, model_argument, run_options
from ._table import Table

SHARE = 0.45  # of the sublayers, skipped at the end of the greedy search

# name: prune, give up, bytes for reuse
SEARCHES: dict[str, tuple[Prune, GiveUp, int]] = {
    "as the pull request, unpruned": (Prune(share=0), Never(), 0),
    "as the pull request, prune 2, abort ratio 30": (Prune(count=2), AbortRatio(), 0),
    "ours": (Prune(), Confident(), CACHE_BYTES),
}


def texts_of(model: Model, n_ctx: int, n_chunks: int) -> list[tuple[int, ...]]:
    tokens = model.tokenize(chunks.sample_text(), parse_special=False)
    return chunks.cut(tokens, n_ctx, model.start_token)[:n_chunks]


def context_of(model: Model, n_ctx: int, threads: int) -> Context:
    return model.context(n_ctx=n_ctx, n_batch=n_ctx, n_threads=threads)


def reuse(path: Path, threads: int, n_ctx: int, rounds: int) -> Record:
    """Run one scan of one chunk with and without prefix reuse, in turn."""
    times: dict[str, list[int]] = {"reused_us": [], "anew_us": []}
    with Model(path) as model, context_of(model, n_ctx, threads) as context:
        texts = texts_of(model, n_ctx, 1)
        space = Space.of(context.mask_support, Unit.BOTH)
        request = Round(space.full, space.units, best_only=False)
        for _ in range(rounds):
            found = {}
            for name, cache_bytes in (("reused_us", CACHE_BYTES), ("anew_us", 0)):
                objective = Perplexity(Setting(context, texts, cache_bytes=cache_bytes))
                next(objective.scores(0, space.full, [space.full]))  # both need the full model
                start = time.perf_counter_ns()
                found[name] = Scorer(objective).score(request)
                times[name].append((time.perf_counter_ns() - start) // 1000)
            if found["reused_us"] != found["anew_us"]:
                raise AssertionError("reuse changed the scores")
    return {"n_ctx": n_ctx, "n_masks": len(space.units), "n_layer": space.n_layer, **times}


def greedy(path: Path, threads: int, n_ctx: int, n_chunks: int) -> Record:
    """Blocks evaluated by greedy searches at equal settings, and the perplexity they end with: on
    the text of the search, and on as many chunks after it."""
    arms: dict[str, Record] = {}
    with Model(path) as model, context_of(model, n_ctx, threads) as context:
        texts = texts_of(model, n_ctx, 2 * n_chunks)
        further = Perplexity(Setting(context, texts[n_chunks:]))
        space = Space.of(context.mask_support, Unit.BOTH)
        for name, (prune, give_up, cache_bytes) in SEARCHES.items():
            setting = Setting(context, texts[:n_chunks], cache_bytes=cache_bytes)
            objective = Perplexity(setting)
            greedy = strategies.load("greedy", prune=prune)(strategies.Setting(space, SHARE))
            last = run(greedy, Scorer(objective, give_up=give_up))[-1].chosen[0]
            arms[name] = {
                "n_block_tokens": objective.n_sublayers // 2,
                "mask": last.mask.to_dict(),
                "perplexity": last.score.perplexity,
                "further_perplexity": score_of(further, last.mask).perplexity,
                "full_perplexity": score_of(objective, space.full).perplexity,
            }
    return {"n_ctx": n_ctx, "n_chunks": n_chunks, "share": SHARE, "arms": arms}


def score_of(objective: Perplexity, mask: LayerMask) -> Score:
    """Over all chunks."""
    return Scorer(objective).one(mask).score


@click.command()
@model_argument
@run_options
@click.option("-c", "--ctx-size", "n_ctx", default=512)
@click.option("--rounds", type=click.IntRange(min=1), default=3)
@click.option("--chunks", "n_chunks", type=click.IntRange(min=1), default=15)
@click.option("--only", type=click.Choice(["reuse", "greedy"]), help="[default: both]")
def command(
    model: Path,
    threads: int,
    out: Path | None,
    n_ctx: int,
    rounds: int,
    n_chunks: int,
    only: str | None,
) -> None:
    """Scans with and without prefix reuse in time; greedy searches in blocks evaluated."""
    of_reuse, of_greedy = TABLES
    if only != "greedy":
        record = reuse(model, threads, n_ctx, rounds)
        given = f" -c {n_ctx} --rounds {rounds} --only reuse"
        keep(
            provenance("scan reuse", model, threads, given, command="scan") | record, of_reuse, out
        )
    if only != "reuse":
        record = greedy(model, threads, n_ctx, n_chunks)
        given = f" -c {n_ctx} --chunks {n_chunks} --only greedy"
        head = provenance("scan greedy", model, threads, given, command="scan")
        keep(head | record, of_greedy, out)


#
# figures
#


def reuse_cells(record: Record) -> list[list[str]]:
    reused, anew = (statistics.median(record[key]) for key in ("reused_us", "anew_us"))
    return [
        [
            record["model"],
            str(record["n_layer"]),
            str(record["n_masks"]),
            f"{reused / 1e6:.1f}",
            f"{anew / 1e6:.1f}",
            f"{anew / reused:.2f}",
        ]
    ]


def share_skipped(mask: Record) -> float:
    """Skipped parts over all."""
    skipped = len(mask["skip_attn"]) + len(mask["skip_ffn"])
    return float(skipped / (2 * mask["n_layer"]))


def greedy_cells(record: Record) -> list[list[str]]:
    arms = record["arms"]
    most = next(iter(arms.values()))["n_block_tokens"]
    return [
        [
            record["model"],
            name,
            f"{arm['n_block_tokens'] / 1e6:.1f}",
            f"{most / arm['n_block_tokens']:.1f}",
            f"{share_skipped(arm['mask']):.0%}",
            f"{arm['full_perplexity']:.1f}",
            f"{arm['perplexity']:.1f}",
            f"{arm['further_perplexity']:.1f}",
        ]
        for name, arm in arms.items()
    ]


TABLES = (
    Table(
        "scan reuse",
        ("model", "blocks", "masks", "seconds with reuse", "without", "ratio"),
        "<>>>>>",
        reuse_cells,
    ),
    Table(
        "scan greedy",
        (
            "model",
            "search",
            "block tokens, millions",
            "times fewer",
            "skipped",
            "perplexity, full",
            "masked",
            "masked, further text",
        ),
        "<<>>>>>>",
        greedy_cells,
    ),
)
