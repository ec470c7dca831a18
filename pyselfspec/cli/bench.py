"""pyselfspec bench: compare drafters with plain decoding, and with llama.cpp's own kernels, on this
machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import click
import cloup
from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from ..bench import pass_times
from ..bench import prompts as prompt_files
from ..bench import tables as bench_tables
from ..bench.figures import overall
from ..bench.file import BenchFile
from ..bench.formats import FORMATS
from ..bench.measuring import PlannedRun, Runner, measure, plan
from ..bench.prompts import Prompt
from ..bench.report import html
from ..bench.setup import make_setup, template_of, tokenize_prompts
from ..bench.tables import notes, provenance
from ..bench.types import PLAIN, Results, Run, Setup, Widths
from ..bench.variants import make_variants
from ..masks.layer_mask import LayerMask
from ..runtime.context import Context
from ..runtime.sampling import SEED_MAX
from ..speculate import controllers, drafters
from ..speculate.config import AUTO, OFF
from ..util.files import replacing
from ..util.paths import shown
from ._drafting import MaskOptions, complete_draft, parse_draft, profile_option
from ._help import ManyOptions
from ._machine import MachineOptions
from ._model import model_argument
from ._options import (
    MAX_TEXT,
    command_line,
    common_options,
    n_predict_option,
    read_text,
    require_one_reader_of_stdin,
    results_option,
    target,
)
from ._progress import progress
from ._sampling import temperature_option
from ._speeds import Speed, bars, upstream_kernels
from ._types import FILE, Choice, Integer, of_value, option, rare, takes

N_PREDICT = 128  # tokens
N_ROUND = 3
TABLE = "table"  # the format for terminals
SUFFIX = ".html"


def _drafts(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if parse_draft(name) in (OFF, PLAIN):
            raise click.BadParameter("plain decoding is always measured; give other drafters")
    return names


def _report(path: Path) -> Path:
    if path.suffix.lower() != SUFFIX:
        raise click.BadParameter(
            f"{path.name!r} is not an HTML file; give a name that ends with {SUFFIX}"
        )
    return target(path)


@dataclass(frozen=True, slots=True)
class PromptOptions:
    """The prompts to answer."""

    title: ClassVar[str] = "Prompts"
    prompts: tuple[str, ...] = option(
        "-p", "--prompt", multiple=True, help="Prompt to answer; repeatable."
    )
    prompt_files: tuple[str, ...] = option(
        "-f",
        "--file",
        metavar="FILE",
        multiple=True,
        help="File with a prompt, - for stdin; repeatable.",
    )
    prompts_file: str | None = option(
        "--prompts",
        metavar="JSONL",
        help="File of prompts, one a line, see docs/bench.md.  [default: four bundled prompts]",
    )
    plain_text: bool = rare(
        "--plain-text", is_flag=True, help="Do not apply the model's chat template."
    )

    def read(self, mask_file: str | None) -> tuple[list[Prompt], str]:
        """Return the prompts, and a description of their source. mask_file: of another option, for
        which stdin may be read instead."""
        texts, files, file = self.prompts, self.prompt_files, self.prompts_file
        require_one_reader_of_stdin(*files, file, mask_file)
        given = [*texts, *(read_text(path, MAX_TEXT) for path in files)]
        found = [Prompt.of(text, f"prompt {i}") for i, text in enumerate(given, 1)]
        if file is not None:
            found += prompt_files.read(read_text(file, MAX_TEXT), file)
        if not found:
            return prompt_files.bundled(), "the package"
        sources = [*["the command line"] * bool(texts), *files, *filter(None, [file])]
        return found, ", ".join(sources)


@dataclass(frozen=True, slots=True)
class DrafterOptions(MaskOptions):
    """The drafters to measure."""

    title: ClassVar[str] = "Drafters"
    drafts: tuple[str, ...] = option(
        "--draft",
        metavar="|".join((AUTO, *drafters.names())),
        multiple=True,
        callback=of_value(_drafts),
        shell_complete=complete_draft,
        help="Drafter to measure, see --draft of generate; repeatable.  "
        f"[default: {AUTO}, and each drafter that it combines]",
    )
    profile: str = profile_option()
    controller: str = rare(
        "--controller",
        type=Choice(controllers.names(), controllers.all_names()),
        default=controllers.DEFAULT,
        help="How to decide the length of drafts. auto: draft where that should save time; "
        "fixed: draft in every step.",
    )


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """How each prompt is answered."""

    title: ClassVar[str] = "Answers"
    n_predict: int = n_predict_option(N_PREDICT)
    rounds: int = option(
        "-r",
        "--rounds",
        type=Integer(1),
        default=N_ROUND,
        help="Number of times to answer each prompt with each drafter.",
    )
    temp: float = temperature_option()
    seed: int = rare(
        "--seed",
        type=Integer(0, SEED_MAX // 2),
        default=0,
        help="Seed of the first round; each further round adds 1.",
    )


@dataclass(frozen=True, slots=True)
class ResultOptions:
    """How results are kept and shown."""

    title: ClassVar[str] = "Results"
    format_name: str | None = rare(
        "--format",
        type=click.Choice([TABLE, *FORMATS]),
        help=f"Output format.  [default: {TABLE} on a terminal, else md]",
    )
    results: Path | None = results_option("not kept")
    report_file: Path | None = option(
        "--report",
        type=FILE,
        callback=of_value(_report),
        help="Also write an HTML page with plots into this file; replaced if it exists.",
    )
    widths: bool | None = rare(
        "--widths/--no-widths",
        default=None,
        help="Also measure the time of passes by their width.  [default: with --report]",
    )


@cloup.command(name="bench", cls=ManyOptions)
@model_argument
@takes(
    asked=PromptOptions,
    drafting=DrafterOptions,
    answers=AnswerOptions,
    wanted=ResultOptions,
    machine=MachineOptions,
)
@common_options
def command(
    model: str,
    asked: PromptOptions,
    drafting: DrafterOptions,
    answers: AnswerOptions,
    wanted: ResultOptions,
    machine: MachineOptions,
    as_json: bool,
) -> None:
    """Compare drafters with plain decoding, on your own prompts.

    Answers each prompt with each drafter in turn, in several rounds; no drafter remembers earlier
    answers. The speed-up of a drafter is its median speed divided by that of plain decoding.
    llama.cpp is plain decoding with its own kernels in place of ours, in a second process.

    \b
    pyselfspec bench model.gguf
    pyselfspec bench model.gguf -p "Tell me a story." --draft ngram --draft model:small.gguf
    pyselfspec bench model.gguf --prompts mine.jsonl --report mine.html
    """
    if as_json and wanted.format_name not in (None, "json"):
        raise click.UsageError("--json prints JSON; leave out --format, or leave out --json")
    prompts, source = asked.read(drafting.mask_file)
    with ExitStack() as stack:
        loaded, context = stack.enter_context(machine.open(model))
        mask, profile = drafting.mask(loaded.n_layer), drafting.profile == "auto"
        template = None if asked.plain_text else template_of(loaded)
        texts = tokenize_prompts(context, prompts, template)
        there = stack.enter_context(upstream_kernels(loaded, partial(machine.open, model)))
        variants = make_variants(
            context, drafting.drafts, mask=mask, profile=profile, upstream=there is not None
        )
        runner = Runner(context, answers.n_predict, answers.temp, drafting.controller, there)
        setup = make_setup(
            runner,
            variants,
            prompts,
            source=source,
            templated=template is not None,
            seed=answers.seed,
            command=command_line(),
        )
        with _Bench.opened(wanted.results, setup) as bench:
            done = {run.key for run in bench.results.runs}
            finished = bench.measure(runner, plan(texts, variants, answers.rounds, done))
            times_widths = (
                wanted.report_file is not None if wanted.widths is None else wanted.widths
            )
            if finished and times_widths:
                finished = bench.time_widths(context, mask, profile)
    _show(bench.results, "json" if as_json else wanted.format_name)
    if wanted.report_file is not None:
        page = html(bench.results)
        with replacing(wanted.report_file) as unfinished:
            unfinished.write_text(page, encoding="utf-8")
        click.echo(f"report written to {shown(str(wanted.report_file))}", err=True)
    if not finished:
        raise KeyboardInterrupt  # for the exit status


@dataclass
class _Bench:
    """Results in memory, and in a file if one was given."""

    results: Results
    file: BenchFile | None

    @classmethod
    @contextmanager
    def opened(cls, path: Path | None, setup: Setup) -> Iterator[_Bench]:
        with ExitStack() as stack:
            file = None if path is None else stack.enter_context(BenchFile(path, setup))
            bench = cls(Results(setup) if file is None else file.found, file)
            if bench.results.runs:
                click.echo(f"{path} already has {len(bench.results.runs)} runs", err=True)
            yield bench

    def add(self, line: Run | Widths) -> None:
        if self.file is not None:
            self.file.add(line)
        self.results = self.results.with_line(line)

    def measure(self, runner: Runner, todo: Sequence[PlannedRun]) -> bool:
        """Answer every prompt of ``todo``; return False if Ctrl-C interrupted it."""
        try:
            with _bar(len(todo)) as follow:
                for n, run in enumerate(measure(runner, todo, self.results.setup.seed), 1):
                    self.add(run)
                    follow(f"round {run.round + 1}, {run.prompt}, {run.variant}", n)
        except KeyboardInterrupt:
            click.echo("stopped; these are the runs so far", err=True)
            return False
        return True

    def time_widths(self, context: Context, mask: LayerMask | None, profile: bool) -> bool:
        """Time passes by width, unless the file has their times; False if interrupted."""
        if self.results.widths is not None:
            return True
        try:
            with (
                pass_times.drafter_with_passes(context, mask, profile=profile) as drafter,
                _bar(1) as show,
            ):
                widths = pass_times.time_passes(
                    context, drafter, lambda share: show("passes by width", share)
                )
        except KeyboardInterrupt:
            click.echo("stopped; costs by width are left out", err=True)
            return False
        self.add(widths)
        return True


@contextmanager
def _bar(total: float) -> Iterator[Callable[[str, float], None]]:
    """Show a bar on the terminal; yield a function that takes a description and a count."""
    with progress(TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn()) as bar:
        task = bar.add_task("warming up", total=total)
        yield lambda doing, done: bar.update(task, description=doing, completed=done)


def _show(results: Results, format_name: str | None) -> None:
    console = Console()
    if format_name is None:
        format_name = TABLE if console.is_terminal else "md"
    if format_name in FORMATS:
        click.echo(FORMATS[format_name](results), nl=False)
        return
    console.print(bars([Speed.of(row) for row in overall(results)]))
    for table in bench_tables.tables(results):
        console.print(_table(table))
    for note in notes(results):
        console.print(f"Note: {note}", markup=False, highlight=False)
    for name, value in provenance(results.setup):
        console.print(f"{name:>16}  {value}", markup=False, highlight=False, soft_wrap=True)


def _table(source: bench_tables.Table) -> Table:
    table = Table(
        title=source.title, title_justify="left", box=SIMPLE_HEAD, padding=0, pad_edge=False
    )
    for name, side in zip(source.columns, source.align, strict=True):
        is_name = side == "<"
        justify: JustifyMethod = "left" if is_name else "right"
        table.add_column(
            name, justify=justify, no_wrap=is_name, overflow="fold"
        )  # no cell is cut off
    for cells in source.rows:
        table.add_row(*map(Text, cells))
    return table
