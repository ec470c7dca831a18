"""pyselfspec demo: plain and speculative decoding of one prompt, side by side."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import click
import cloup
from filelock import FileLock
from rich.console import Console, Group
from rich.live import Live
from rich.progress import DownloadColumn, Progress
from rich.table import Table
from rich.text import Text

from ..convert.stream import read_model
from ..convert.widen import widen
from ..errors import ModelFileError
from ..gguf.file import check
from ..runtime.sampling import SEED_MAX, SamplingParams
from ..speculate.completion import Completion
from ..speculate.config import AUTO
from ..util import paths
from ..util.paths import DEMO
from ._generation_report import closing_line, report
from ._help import ManyOptions
from ._machine import DeviceOptions
from ._options import common_options, n_predict_option
from ._progress import progress
from ._sampling import DEFAULT
from ._types import Integer, Number, option, takes

# Factor of the width by the approximate number of parameters of the result. Powers of two keep the
# widened weights exact in the type of the model.
FACTORS = {"40M": 2, "160M": 4, "0.6B": 8, "2.4B": 16}
DIGEST_CHARS = 12  # of the bundled model's SHA-256; enough to tell versions apart
SIZE = "0.6B"
N_PREDICT = 240  # tokens
N_WARM_UP = 16  # tokens
N_BAR = 40  # characters
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


@dataclass(frozen=True, slots=True)
class RaceOptions:
    """The text that both complete, and the model."""

    title: ClassVar[str] = "Text"
    prompt: str | None = option(
        "-p",
        "--prompt",
        help="Text to continue.  [default: JSON records, constrained by a grammar]",
    )
    n_predict: int = n_predict_option(N_PREDICT)
    temp: float = option(
        "--temp",
        "--temperature",
        type=Number(0),
        default=DEFAULT.temperature,
        help="Temperature, 0 for greedy.",
    )
    seed: int = option("--seed", type=Integer(0, SEED_MAX), default=1, help="Seed of the sampler.")
    size: str = option(
        "--size",
        type=click.Choice(list(FACTORS)),
        default=SIZE,
        help="Number of parameters of the wider copy.",
    )


@cloup.command(name="demo", cls=ManyOptions)
@takes(text=RaceOptions, device=DeviceOptions)
@common_options
def command(text: RaceOptions, device: DeviceOptions, as_json: bool) -> None:
    """Compare plain decoding with drafting, on a bundled model.

    First writes a wider copy of the bundled model. The copy has --size parameters, and generates
    the same text at the speed of any model of that size. It is written once and kept in the user's
    cache folder.
    """
    path = wide_path(FACTORS[text.size])
    _make(path, text.size)
    free = SamplingParams(temperature=text.temp, seed=text.seed)
    sampling = replace(free, grammar=GRAMMAR) if text.prompt is None else free
    prompt = PROMPT if text.prompt is None else text.prompt
    with (
        device.open_model(path) as model,
        model.context(**device.context_params()) as plain_context,
        model.context(**device.context_params()) as context,
    ):
        contexts = ((plain_context, None), (context, AUTO))
        tokens = model.tokenize(prompt)
        warm_up = [  # another text, so that no drafter has seen the prompt before the race
            Completion(each, tokens[::-1], draft, n_predict=N_WARM_UP, sampling=free)
            for each, draft in contexts
        ]
        for _ in race(warm_up):
            pass
        plain, speculative = (
            Completion(each, tokens, draft, n_predict=text.n_predict, sampling=sampling)
            for each, draft in contexts
        )
        _show(plain, speculative, prompt, quiet=as_json)
    if as_json:
        click.echo(json.dumps(report(speculative, str(path), plain)))
    else:
        click.echo(f"{closing_line(speculative, plain)}\n{NEXT}")


def wide_path(factor: int) -> Path:
    """Return the path of the copy of this width, whether it exists or not."""
    digest = hashlib.sha256(DEMO.read_bytes()).hexdigest()[:DIGEST_CHARS]
    return paths.cache(f"demo-{digest}-{factor}x.gguf")


def make_wide(path: Path, factor: int) -> Generator[tuple[int, int], None, None]:
    """Write the copy unless it exists, yielding bytes done and bytes in total.

    A second process waits for the first. Raises OSError if the copy cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        with suppress(ModelFileError):
            check(path)
            return  # a complete copy exists
        copy = widen(read_model(DEMO), factor)
        done = 0
        with closing(copy.write_steps(path)) as steps:
            for n_bytes in steps:
                done += n_bytes
                yield done, copy.n_bytes


def race(completions: Sequence[Completion]) -> Iterator[Completion]:
    """Advance the completion that has used the least time, and yield it, until all are complete.

    So all completions show their text after about the same time.
    """
    running = [(completion, iter(completion)) for completion in completions]
    while running:
        behind = min(running, key=lambda pair: pair[0].stats.total_us)
        if next(behind[1], None) is None:
            running.remove(behind)
        else:
            yield behind[0]


def _make(path: Path, size: str) -> None:
    """Write the widened model to ``path`` with a progress bar, unless it exists."""
    with (
        progress(*Progress.get_default_columns(), DownloadColumn()) as bar,
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
    """Return the ends and the speeds of both texts, above a bar of accepted and rejected tokens."""
    table = Table.grid(padding=(0, 2))
    room = max(10, width - len("speculative  1234.5 tokens/s  "))
    for label, completion in (("plain", plain), ("speculative", speculative)):
        speed = completion.stats.tokens_per_second or 0.0
        tail = " ".join(completion.text.split())[-room:]
        table.add_row(label, f"{speed:.1f} tokens/s", Text(tail, no_wrap=True))
    n_drafted, n_accepted = speculative.stats.n_drafted, speculative.stats.n_accepted
    n_green = round(N_BAR * n_accepted / max(1, n_drafted))
    bar = Text.assemble(
        ("█" * n_green, "green"),
        ("█" * (N_BAR - n_green if n_drafted else 0), "red"),
        f" {n_drafted} drafted, {n_accepted} accepted, {n_drafted - n_accepted} rejected",
    )
    return Group(table, bar)
