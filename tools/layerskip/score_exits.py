"""Measure each exit of a model as a drafter; prints a table for a model card.

    python tools/layerskip/score_exits.py model.gguf held-out.txt

Perplexity and agreement: the text in windows of n_ctx tokens behind a BOS, the second half of each
window scored; agreement is the share of positions at which an exit's likeliest token is the last
block's. Acceptance: greedy text after prompts taken from the same file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray
from rich.progress import track

from pyselfspec import GREEDY, Context, Fixed, LayerMask, Model, Sampler, generate_steps
from pyselfspec.errors import SelfSpecError
from pyselfspec.masks.score import token_loss
from pyselfspec.selection.chunks import cut, first_scored
from pyselfspec.speculate.drafters import layer_skip

N_PROMPT = 48  # tokens
DRAFT_LENGTHS = range(2, 7)


@dataclass(frozen=True)
class ExitScore:
    """exit: blocks that run. nll: nats per token. n_agree of n_scored positions."""

    exit: int
    nll: float
    n_agree: int
    n_scored: int


@dataclass(frozen=True)
class Acceptance:
    """Greedy drafts of a fixed length. n_compared: accepted ones and the first rejected of each."""

    exit: int
    n_max: int
    n_drafted: int
    n_accepted: int
    n_compared: int


def second_half(context: Context, window: tuple[int, ...], mask: LayerMask) -> NDArray[np.float32]:
    """Logits that predict the second half of a window, float32 [n_ctx / 2, n_vocab]."""
    context.sequence().drop()
    return context.decode(window, mask=mask).logits[first_scored(len(window)) - 1 : -1]


def score_exits(
    context: Context, texts: Sequence[tuple[int, ...]], exits: Sequence[int]
) -> list[ExitScore]:
    n_layer = context.model.n_layer
    nll, agree, count = dict.fromkeys(exits, 0.0), dict.fromkeys(exits, 0), 0
    for window in track(texts, "exits", disable=not sys.stderr.isatty()):
        target = window[first_scored(len(window)) :]
        best = second_half(context, window, LayerMask.full(n_layer)).argmax(-1)
        count += len(target)
        for keep in exits:
            logits = second_half(context, window, LayerMask.early_exit(n_layer, keep))
            nll[keep] += sum(map(token_loss, logits, target))
            agree[keep] += int((logits.argmax(-1) == best).sum())
    return [ExitScore(keep, nll[keep] / count, agree[keep], count) for keep in exits]


def acceptance(
    context: Context, prompts: Sequence[tuple[int, ...]], keep: int, n_max: int, n_predict: int
) -> Acceptance:
    mask = LayerMask.early_exit(context.model.n_layer, keep)
    drafter = layer_skip.LayerSkipDrafter(context, mask)
    drafted = accepted = compared = 0
    for prompt in prompts:
        with Sampler(context.model, GREEDY) as sampler:
            for step in generate_steps(
                context,
                prompt,
                drafter=drafter,
                controller=Fixed(n_max, p_min=0.0),
                sampler=sampler,
                n_predict=n_predict,
            ):
                drafted += step.n_drafted
                accepted += step.n_accepted
                compared += min(step.n_drafted, step.n_accepted + 1)
    return Acceptance(keep, n_max, drafted, accepted, compared)


def lines(scores: list[ExitScore], found: list[Acceptance]) -> Iterator[str]:
    """Markdown."""
    yield "| exit after block | " + " | ".join(str(s.exit) for s in scores) + " |"
    yield "|---" * (len(scores) + 1) + "|"
    yield "| perplexity | " + " | ".join(f"{np.exp(s.nll):.2f}" for s in scores) + " |"
    yield "| agreement | " + " | ".join(f"{s.n_agree / s.n_scored:.3f}" for s in scores) + " |"
    yield ""
    yield "| exit after | draft length | accepted per token compared | accepted of all drafted |"
    yield "|---|---|---|---|"
    for a in found:
        per_token, of_all = a.n_accepted / a.n_compared, a.n_accepted / a.n_drafted
        yield f"| {a.exit} | {a.n_max} | {per_token:.3f} | {of_all:.3f} |"


@click.command(help=__doc__)
@click.argument("model_file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("text_file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--exit", "draft_exits", type=int, multiple=True, help="[default: L/6, L/4, L/3]")
@click.option("--windows", "n_window", type=int, help="[default: all]")
@click.option("--prompts", "n_prompt", default=16, show_default=True)
@click.option("-n", "--n-predict", default=128, show_default=True)
@click.option("-t", "--threads", type=int)
@click.option("--json", "as_json", is_flag=True)
def main(
    model_file: Path,
    text_file: Path,
    draft_exits: tuple[int, ...],
    n_window: int | None,
    n_prompt: int,
    n_predict: int,
    threads: int | None,
    as_json: bool,
) -> None:
    try:
        with Model(model_file) as model:
            n_ctx, n_layer = model.n_ctx_train, model.n_layer
            tokens = model.tokenize(text_file.read_text())
            texts = cut(tokens, n_ctx, model.start_token)[:n_window]
            with model.context(n_ctx=n_ctx, n_batch=n_ctx, n_threads=threads) as context:
                scores = score_exits(context, texts, range(1, n_layer + 1))
                step = max(1, len(texts) // n_prompt)
                prompts = [window[:N_PROMPT] for window in texts[::step]][:n_prompt]
                cases = [
                    (keep, n_max)
                    for keep in draft_exits or (n_layer // 6, n_layer // 4, n_layer // 3)
                    for n_max in DRAFT_LENGTHS
                ]
                found = [
                    acceptance(context, prompts, keep, n_max, n_predict)
                    for keep, n_max in track(cases, "drafts", disable=not sys.stderr.isatty())
                ]
    except SelfSpecError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        data = {"exits": [asdict(s) for s in scores], "drafts": [asdict(a) for a in found]}
        click.echo(json.dumps(data))
    else:
        click.echo("\n".join(lines(scores, found)))


if __name__ == "__main__":
    main()
