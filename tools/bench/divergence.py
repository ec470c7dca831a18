"""Find where drafted texts diverge from plain ones, and whether each is what its own passes give.

Where kernels round differently for several tokens than for one, a near-tie may fall the other way:
the texts diverge. Plain decoding then is no reference, but a replay is (``tools/replay.py``): it
makes the same passes without drafting, and must give the same text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from pyselfspec import Context, LayerMask, Model, SamplingParams, Step
from pyselfspec.speculate.controllers.fixed import Fixed
from pyselfspec.speculate.drafters import layer_skip
from tools.records import Record, provenance
from tools.replay import AsDrafted, Replay, run_steps

from ._modes import N_CTX, mask_for, tokens_of
from ._options import exit_option, keep, model_argument, run_options
from ._table import Table


@dataclass(frozen=True, slots=True)
class Texts:
    """One prompt continued three times: without drafts, with drafts, and what was drafted again."""

    plain: tuple[int, ...]
    drafted: tuple[int, ...]
    replayed: tuple[int, ...]
    n_accepted: int

    @property
    def diverges_at(self) -> int | None:
        """The first token that differs, counted from the prompt; None where none does."""
        pairs = zip(self.plain, self.drafted, strict=True)
        return next((i for i, (one, other) in enumerate(pairs) if one != other), None)


def run(
    context: Context,
    prompt: Sequence[int],
    drafter: Any,
    controller: Any,
    sampling: SamplingParams,
    n_tokens: int,
) -> list[Step]:
    """The steps of a text that nothing ends."""
    return run_steps(
        context, prompt, drafter, controller, sampling, n_tokens, consume=lambda _: False
    )


def continued(
    context: Context, mask: LayerMask, prompt: Sequence[int], sampling: SamplingParams, n: int
) -> Texts:
    """n tokens each way."""
    fixed = Fixed(p_min=0.0)
    runs = [run(context, prompt, None, fixed, sampling, n)]
    runs.append(
        run(context, prompt, layer_skip.LayerSkipDrafter(context, mask), fixed, sampling, n)
    )
    runs.append(run(context, prompt, Replay(runs[1]), AsDrafted(), sampling, n))
    plain, drafted, replayed = (tuple(t for step in steps for t in step.tokens) for steps in runs)
    return Texts(plain, drafted, replayed, sum(step.n_accepted for step in runs[1]))


def gap_at(context: Context, prompt: Sequence[int], texts: Texts, at: int) -> float:
    """How much likelier the plain text's token was than the drafted one's, as a difference of
    logits, in passes over single tokens from the prompt on."""
    context.sequence().drop()
    context.prefill(prompt[:-1])
    for token in (*prompt[-1:], *texts.plain[:at]):
        logits = context.decode([token]).logits[0]
    return float(logits[texts.plain[at]] - logits[texts.drafted[at]])


def compare(
    context: Context, mask: LayerMask, prompts: Sequence[Sequence[int]], temp: float, n: int
) -> Record:
    """Replay every prompt; return the divergences.

    at: tokens before they diverge; gap: see gap_at.
    """
    diverged, n_replayed, n_accepted = [], 0, 0
    for i, prompt in enumerate(prompts):
        texts = continued(context, mask, prompt, SamplingParams(temperature=temp, seed=i), n)
        n_replayed += texts.replayed == texts.drafted
        n_accepted += texts.n_accepted
        if (at := texts.diverges_at) is not None:
            gap = round(gap_at(context, prompt, texts, at), 4)
            diverged.append({"text": i, "at": at, "gap": gap})
    return {
        "temp": temp,
        "n_tokens": n,
        "n_texts": len(prompts),
        "n_accepted": n_accepted,
        "n_as_replayed": n_replayed,
        "diverged": diverged,
    }


@click.command()
@model_argument
@run_options
@exit_option
@click.option("--tokens", type=click.IntRange(min=2), default=96, help="In each text.")
@click.option("--temp", type=click.FloatRange(min=0), default=0.0, help="Temperature.")
def command(
    model: Path, threads: int, out: Path | None, exit_layer: int | None, tokens: int, temp: float
) -> None:
    """Compare plain, drafted and replayed texts; fails when a replay differs."""
    with Model(model) as loaded, loaded.context(n_ctx=N_CTX, n_threads=threads) as context:
        mask = mask_for(loaded, exit_layer)
        found = compare(context, mask, tokens_of(loaded, None), temp, tokens)
    given = f" --tokens {tokens} --temp {temp:g}"
    given += "" if exit_layer is None else f" --exit-layer {exit_layer}"
    keep(provenance("divergence", model, threads, given) | found, TABLES[0], out)
    if found["n_as_replayed"] < found["n_texts"]:
        raise click.ClickException("drafting has reached the text: a replay differs")


def cells(record: Record) -> list[list[str]]:
    n, diverged = record["n_texts"], record["diverged"]
    places = [f"after {each['at']} tokens (gap {each['gap']:g})" for each in diverged]
    return [
        [
            record["model"],
            f"{record['temp']:g}",
            f"{n - len(diverged)} of {n}",
            f"{record['n_as_replayed']} of {n}",
            ", ".join(places) or "-",
        ]
    ]


TABLES = (
    Table(
        "divergence",
        (
            "model",
            "temperature",
            "texts as plain",
            "texts as replayed",
            "where they leave the plain ones",
        ),
        "<>>><",
        cells,
    ),
)
