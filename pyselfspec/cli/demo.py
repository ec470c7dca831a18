"""pyselfspec demo: plain and speculative decoding of one prompt, side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import cloup
from rich.console import Console, Group
from rich.live import Live
from rich.progress import DownloadColumn, Progress
from rich.table import Table
from rich.text import Text

from ..runtime.context import Context
from ..runtime.model import Model
from ..runtime.sampling import SEED_MAX, SamplingParams
from ..speculate.completion import Completion
from ..speculate.config import AUTO
from ._demo_model import FACTORS, make_wide, race, wide_path
from ._generation_report import closing_line, report
from ._options import (
    bar_console,
    common_options,
    context_params,
    device_options,
    model_params,
    n_predict_option,
)
from ._types import Integer, Number

SIZE = "0.6B"
N_PREDICT = 240  # tokens
N_WARM_UP = 16  # tokens
N_BAR = 40  # characters
TEMPERATURE = 0.8
PROMPT = """\
The people of the village, one on each line:

{"first_name": "Edward", "lives_in": "the mill", "age": 41, "best_friend": "John"}
"""
# JSON is an everyday task of models, but the bundled one needs a grammar to write it.
GRAMMAR = r"""
root ::= record{24}
record ::= first lives "\"age\": " age ", " friend
first ::= "{\"first_name\": \"" name "\", "
lives ::= "\"lives_in\": \"" place "\", "
friend ::= "\"best_friend\": \"" name "\"}\n"
name ::= "Anna" | "Charles" | "Edward" | "Helen" | "John" | "Mary" | "Robert" | "William"
place ::= "the castle" | "the mill" | "the farm" | "the forest" | "the village"
age ::= [2-7] [0-9]
"""
NEXT = "next, with your own model: pyselfspec generate MODEL.gguf -f PROMPT.txt --compare"


@cloup.command(name="demo")
@cloup.option_group(
    "Text",
    cloup.option(
        "-p",
        "--prompt",
        help="Text to continue.  [default: JSON records, constrained by a grammar]",
    ),
    n_predict_option(N_PREDICT),
    cloup.option(
        "--temp",
        "--temperature",
        "temp",
        type=Number(0),
        default=TEMPERATURE,
        help="Temperature, 0 for greedy.",
    ),
    cloup.option(
        "--seed",
        type=Integer(0, SEED_MAX),
        default=1,
        help="Seed of the sampler.",
    ),
    cloup.option(
        "--size",
        type=click.Choice(list(FACTORS)),
        default=SIZE,
        help="Number of parameters of the wider copy.",
    ),
)
@device_options
@common_options
def command(
    prompt: str | None,
    n_predict: int,
    temp: float,
    seed: int,
    size: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Compare plain decoding with drafting, on a bundled model.

    First writes a wider copy of the bundled model. The copy has --size parameters, and generates
    the same text at the speed of any model of that size. It is written once and kept in the user's
    cache folder.
    """
    path = wide_path(FACTORS[size])
    _make(path, size)
    free = SamplingParams(temperature=temp, seed=seed)
    sampling = replace(free, grammar=GRAMMAR) if prompt is None else free
    prompt = PROMPT if prompt is None else prompt
    with (
        Model(path, **model_params(options)) as model,
        model.context(**context_params(options)) as plain_context,
        model.context(**context_params(options)) as context,
    ):

        def pair(
            prompt: Sequence[int], n_predict: int, sampling: SamplingParams
        ) -> tuple[Completion, Completion]:
            return (
                _completion(plain_context, None, prompt, n_predict, sampling),
                _completion(context, AUTO, prompt, n_predict, sampling),
            )

        tokens = model.tokenize(prompt)
        for _ in race(
            pair(tokens[::-1], N_WARM_UP, free)
        ):  # another text, so that no drafter has seen the prompt before the race
            pass
        plain, speculative = pair(tokens, n_predict, sampling)
        _show(plain, speculative, prompt, quiet=as_json)
    if as_json:
        click.echo(json.dumps(report(speculative, str(path), plain)))
    else:
        click.echo(f"{closing_line(speculative, plain)}\n{NEXT}")


def _completion(
    context: Context,
    draft: str | None,
    prompt: Sequence[int],
    n_predict: int,
    sampling: SamplingParams,
) -> Completion:
    return Completion(context, prompt, n_predict=n_predict, draft=draft, sampling=sampling)


def _make(path: Path, size: str) -> None:
    """Write the widened model to ``path`` with a progress bar, unless it exists."""
    console = bar_console()
    columns = (*Progress.get_default_columns(), DownloadColumn())
    with (
        Progress(*columns, console=console, disable=console.quiet) as bar,
        closing(make_wide(path, FACTORS[size])) as steps,
    ):
        task = None
        for done, total in steps:
            task = bar.add_task(f"making a {size} model (once)") if task is None else task
            bar.update(task, completed=done, total=total)


def _show(plain: Completion, speculative: Completion, prompt: str, *, quiet: bool) -> None:
    """Show both texts while they grow; without a terminal, print the finished text."""
    console = Console()
    if quiet or not console.is_terminal:
        for _ in race((plain, speculative)):
            pass
        if not quiet:
            click.echo(prompt + speculative.text)
        return
    console.print(Text(prompt, style="bold"))
    with Live(console=console, auto_refresh=False) as live:
        for _ in race((plain, speculative)):
            live.update(_picture(plain, speculative, console.width), refresh=True)


def _picture(plain: Completion, speculative: Completion, width: int) -> Group:
    table = Table.grid(padding=(0, 2))
    room = max(10, width - len("speculative  1234.5 tokens/s  "))
    for label, completion in (("plain", plain), ("speculative", speculative)):
        speed = completion.stats.tokens_per_second or 0.0
        tail = " ".join(completion.text.split())[-room:]
        table.add_row(label, f"{speed:.1f} tokens/s", Text(tail, no_wrap=True))
    return Group(table, _bar(speculative))


def _bar(completion: Completion) -> Text:
    """Return a bar of accepted and rejected draft tokens."""
    n_drafted, n_accepted = completion.stats.n_drafted, completion.stats.n_accepted
    n_green = round(N_BAR * n_accepted / max(1, n_drafted))
    return Text.assemble(
        ("█" * n_green, "green"),
        ("█" * (N_BAR - n_green if n_drafted else 0), "red"),
        f" {n_drafted} drafted, {n_accepted} accepted, {n_drafted - n_accepted} rejected",
    )
