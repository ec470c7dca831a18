"""Where drafted texts leave the plain ones, and whether each is what its own passes give.

    python tools/forks.py model.gguf

Where kernels round differently for several tokens than for one, a near-tie may fall the other way:
the text forks. Plain decoding then is no reference, but a replay is (``replay.py``): it makes the
same passes without drafting, and must give the same text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from pyselfspec import Context, LayerMask, Model, SamplingParams, Step
from pyselfspec.speculate.controllers.fixed import Fixed
from pyselfspec.speculate.drafters import layer_skip, off
from pyselfspec.util.machine import usable_cores
from records import Record, append, provenance
from replay import AsDrafted, Replay, run_steps
from speed import mask_for, tokens_of

N_CTX = 1024


@dataclass(frozen=True, slots=True)
class Texts:
    """One prompt continued three times: without drafts, with drafts, and what was drafted again."""

    plain: tuple[int, ...]
    drafted: tuple[int, ...]
    replayed: tuple[int, ...]
    n_accepted: int

    @property
    def fork(self) -> int | None:
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
    return run_steps(context, prompt, drafter, controller, sampling, n_tokens, ends=lambda _: False)


def continued(
    context: Context, mask: LayerMask, prompt: Sequence[int], sampling: SamplingParams, n: int
) -> Texts:
    """n tokens each way."""
    fixed = Fixed(p_min=0.0)
    runs = [run(context, prompt, off.Drafter(context, mask), fixed, sampling, n)]
    runs.append(run(context, prompt, layer_skip.Drafter(context, mask), fixed, sampling, n))
    runs.append(run(context, prompt, Replay(runs[1], context), AsDrafted(), sampling, n))
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
    """What became of every prompt. at: tokens before the fork; gap: see gap_at."""
    forks, n_replayed, n_accepted = [], 0, 0
    for i, prompt in enumerate(prompts):
        texts = continued(context, mask, prompt, SamplingParams(temperature=temp, seed=i), n)
        n_replayed += texts.replayed == texts.drafted
        n_accepted += texts.n_accepted
        if (at := texts.fork) is not None:
            gap = round(gap_at(context, prompt, texts, at), 4)
            forks.append({"text": i, "at": at, "gap": gap})
    return {
        "temp": temp,
        "n_tokens": n,
        "n_texts": len(prompts),
        "n_accepted": n_accepted,
        "n_as_replayed": n_replayed,
        "forks": forks,
    }


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.argument("model", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("-t", "--threads", type=int, default=usable_cores())
@click.option("--exit-layer", type=click.IntRange(min=1), help="Draft with the first blocks.")
@click.option("--tokens", type=click.IntRange(min=2), default=96, help="In each text.")
@click.option("--temp", type=click.FloatRange(min=0), default=0.0, help="Temperature.")
@click.option("--out", type=click.Path(path_type=Path), help="Append the result here.")
def main(
    model: Path, threads: int, exit_layer: int | None, tokens: int, temp: float, out: Path | None
) -> None:
    """Compare plain, drafted and replayed texts; fails when a replay differs."""
    with Model(model) as loaded, loaded.context(n_ctx=N_CTX, n_threads=threads) as context:
        mask = mask_for(loaded, exit_layer)
        found = compare(context, mask, tokens_of(loaded, None), temp, tokens)
    options = f" --tokens {tokens} --temp {temp:g}"
    append(provenance("forks", model, threads, options, program="forks.py") | found, out)
    n = found["n_texts"]
    places = ", ".join(f"after {f['at']} tokens (gap {f['gap']:g})" for f in found["forks"])
    click.echo(
        f"{model.name}: {n - len(found['forks'])} of {n} texts are the plain ones"
        + (f", forks {places}" if places else "")
        + f"; {found['n_as_replayed']} of {n} are what their passes give"
    )
    if found["n_as_replayed"] < n:
        raise click.ClickException("drafting has reached the text: a replay differs")


if __name__ == "__main__":
    main()
