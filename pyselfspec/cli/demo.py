"""pyselfspec demo: one prompt with llama.cpp's kernels, plainly and with drafts, side by side."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Protocol, TypeVar

import click
import cloup
from filelock import FileLock
from rich.console import Console, Group
from rich.live import Live
from rich.progress import DownloadColumn, Progress
from rich.table import Table
from rich.text import Text

from ..bench.types import PLAIN, UPSTREAM
from ..bench.upstream import UpstreamKernels
from ..convert.stream import read_model
from ..convert.widen import widen
from ..errors import ModelFileError
from ..gguf.file import check
from ..runtime.context import Context
from ..runtime.sampling import SEED_MAX, SamplingParams
from ..speculate.completion import Completion
from ..speculate.config import AUTO
from ..speculate.stats import GenerationStats
from ..util import paths
from ..util.paths import DEMO
from ._generation_report import closing_line, report
from ._help import ManyOptions
from ._machine import DeviceOptions
from ._options import common_options, n_predict_option
from ._progress import progress
from ._sampling import temperature_option
from ._speeds import Speed, bars, upstream_kernels
from ._types import Integer, option, takes

# Factor of the width by the approximate number of parameters of the result. Powers of two keep the
# widened weights exact in the type of the model.
FACTORS = {"40M": 2, "160M": 4, "0.6B": 8, "2.4B": 16}
DIGEST_CHARS = 12  # of the bundled model's SHA-256; enough to tell versions apart
SIZE = "0.6B"
N_PREDICT = 240  # tokens
N_WARM_UP = 16  # tokens
N_BAR = 40  # characters
DRAFTED = "with drafts"
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
    """The text that all complete, and the model."""

    title: ClassVar[str] = "Text"
    prompt: str | None = option(
        "-p",
        "--prompt",
        help="Text to continue.  [default: JSON records, constrained by a grammar]",
    )
    n_predict: int = n_predict_option(N_PREDICT)
    temp: float = temperature_option()
    seed: int = option("--seed", type=Integer(0, SEED_MAX), default=1, help="Seed of the sampler.")
    size: str = option(
        "--size",
        type=click.Choice(list(FACTORS)),
        default=SIZE,
        help="Number of parameters of the wider copy; each takes 1.1 bytes of disk.",
    )


@cloup.command(name="demo", cls=ManyOptions)
@takes(text=RaceOptions, device=DeviceOptions)
@common_options
def command(text: RaceOptions, device: DeviceOptions, as_json: bool) -> None:
    """Compare llama.cpp's kernels with ours, and with drafts.

    First writes a wider copy of the bundled model. The copy has --size parameters, and generates
    the same text at the speed of any model of that size. It is written once and kept in the user's
    cache folder. llama.cpp is plain decoding with its own kernels in place of ours, in a second
    process.
    """
    path = wide_path(FACTORS[text.size])
    _make(path, text.size)
    free = SamplingParams(temperature=text.temp, seed=text.seed)
    sampling = replace(free, grammar=GRAMMAR) if text.prompt is None else free
    prompt = PROMPT if text.prompt is None else text.prompt
    with (
        device.open(path) as (model, plain_context),
        device.context(model) as context,
        upstream_kernels(model, partial(device.open, path)) as process,
    ):
        tokens = model.tokenize(prompt)
        # another text, so that no drafter has seen the prompt before the race
        warm_up = Task(tokens[::-1], N_WARM_UP, free)
        for task in (warm_up, Task(tokens, text.n_predict, sampling)):
            plain, speculative = task.completion(plain_context), task.completion(context, AUTO)
            racers: dict[str, Racer] = {PLAIN: plain, DRAFTED: speculative}
            if process is not None:
                racers = {UPSTREAM: UpstreamCompletion(process, task)} | racers
            _show(racers, prompt, quiet=as_json or task is warm_up)
    if as_json:
        speeds = {"speeds": [asdict(each) for each in _speeds(racers)]}
        click.echo(json.dumps(report(speculative, str(path), plain) | speeds))
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


class Racer(Protocol):
    """A text that grows while it is iterated over."""

    @property
    def text(self) -> str: ...

    @property
    def stats(self) -> GenerationStats: ...

    def __iter__(self) -> Iterator[str]: ...


RacerT = TypeVar("RacerT", bound=Racer)


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt as tokens, and how to complete it."""

    prompt: Sequence[int]
    n_predict: int
    sampling: SamplingParams

    def completion(self, context: Context, draft: str | None = None) -> Completion:
        return Completion(
            context, self.prompt, draft, n_predict=self.n_predict, sampling=self.sampling
        )


class UpstreamCompletion:
    """A plain completion in the process with llama.cpp's kernels, as far as it has come."""

    def __init__(self, process: UpstreamKernels, task: Task) -> None:
        self._process, self._task = process, task
        self.text, self.stats = "", GenerationStats()

    def __iter__(self) -> Iterator[str]:
        for piece, stats in self._process.each(_grow, self._task):
            self.text += piece
            self.stats = stats
            yield piece


def _grow(context: Context, task: Task) -> Iterator[tuple[str, GenerationStats]]:
    completion = task.completion(context)
    return ((piece, completion.stats) for piece in completion)


def race(completions: Iterable[RacerT]) -> Iterator[RacerT]:
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


def _show(racers: Mapping[str, Racer], prompt: str, *, quiet: bool) -> None:
    """Show texts and speeds while they grow; without a terminal, print one text and the speeds."""
    console = Console()
    if quiet or not console.is_terminal:
        for _ in race(racers.values()):
            pass
        if not quiet:
            click.echo(prompt + racers[DRAFTED].text)
            console.print(bars(_speeds(racers)))
        return
    console.print(Text(prompt, style="bold"))
    with Live(console=console, auto_refresh=False) as live:
        for _ in race(racers.values()):
            live.update(_picture(racers, console.width), refresh=True)


def _picture(racers: Mapping[str, Racer], width: int) -> Group:
    """Return the ends of all texts, and bars: their speeds, and accepted and rejected tokens."""
    tails = Table.grid(padding=(0, 1))
    room = max(10, width - len(f"{DRAFTED} "))
    for name, racer in racers.items():
        tails.add_row(name, Text(" ".join(racer.text.split())[-room:], no_wrap=True))
    stats = racers[DRAFTED].stats
    n_drafted, n_accepted = stats.n_drafted, stats.n_accepted
    n_green = round(N_BAR * n_accepted / max(1, n_drafted))
    bar = Text.assemble(
        ("█" * n_green, "green"),
        ("█" * (N_BAR - n_green if n_drafted else 0), "red"),
        f" {n_drafted} drafted, {n_accepted} accepted, {n_drafted - n_accepted} rejected",
    )
    return Group(tails, bars(_speeds(racers)), bar)


def _speeds(racers: Mapping[str, Racer]) -> list[Speed]:
    return [
        Speed(name, racer.stats.tokens_per_second or 0.0, racer.stats.prompt_per_second)
        for name, racer in racers.items()
    ]
