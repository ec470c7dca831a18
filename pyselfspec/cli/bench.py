"""pyselfspec bench: compare drafters with plain decoding on this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import cloup
from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from ..bench import prompts as prompt_files
from ..bench import tables as bench_tables
from ..bench.file import BenchFile
from ..bench.formats import FORMATS
from ..bench.measuring import PlannedRun, Runner, measure, plan
from ..bench.prompts import Prompt
from ..bench.report import html
from ..bench.setup import make_setup, template_of, tokenize_prompts
from ..bench.tables import notes, provenance
from ..bench.types import PLAIN, Key, Results, Run, Setup, Widths
from ..bench.variants import make_variants
from ..masks.layer_mask import LayerMask
from ..runtime.context import Context
from ..runtime.sampling import SEED_MAX
from ..speculate import calibrate, controllers, drafters
from ..speculate.config import AUTO, OFF
from ..util.files import replacing
from ..util.paths import shown
from ._drafting import complete_draft, mask_from, mask_options, parse_draft, profile_option
from ._options import (
    MAX_TEXT,
    bar_console,
    common_options,
    context_options,
    model_argument,
    n_predict_option,
    open_context,
    read_text,
    require_one_reader_of_stdin,
    together,
)
from ._targets import command_line, target_callback
from ._types import FILE, Choice, Integer, Number

N_PREDICT = 128  # tokens
N_ROUND = 3
TABLE = "table"  # the format for terminals
SUFFIX = ".html"


def _drafts(ctx: click.Context, param: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if parse_draft(ctx, param, name) in (OFF, PLAIN):
            raise click.BadParameter("plain decoding is always measured; give other drafters")
    return names


def _report(_ctx: click.Context, _param: click.Parameter, path: Path | None) -> Path | None:
    if path is not None and path.suffix.lower() != SUFFIX:
        raise click.BadParameter(
            f"{path.name!r} is not an HTML file; give a name that ends with {SUFFIX}"
        )
    return target_callback(_ctx, _param, path)


prompt_options = cloup.option_group(
    "Prompts",
    cloup.option("-p", "--prompt", "prompts", multiple=True, help="Prompt to answer; repeatable."),
    cloup.option(
        "-f",
        "--file",
        "prompt_files",
        metavar="FILE",
        multiple=True,
        help="File with a prompt, - for stdin; repeatable.",
    ),
    cloup.option(
        "--prompts",
        "prompts_file",
        metavar="JSONL",
        help="File of prompts, one JSON value per line: a string, or an object with prompt or "
        "messages, and optionally id and task.  [default: four bundled prompts]",
    ),
    cloup.option("--plain-text", is_flag=True, help="Do not apply the model's chat template."),
)
drafter_options = together(
    cloup.option_group(
        "Drafters",
        cloup.option(
            "--draft",
            "drafts",
            metavar="|".join((AUTO, *drafters.names())),
            multiple=True,
            callback=_drafts,
            shell_complete=complete_draft,
            help="Drafter to measure, see --draft of generate; repeatable.  "
            f"[default: {AUTO}, and each drafter that it combines]",
        ),
        profile_option,
        cloup.option(
            "--controller",
            type=Choice(controllers.names(), controllers.all_names()),
            default=controllers.DEFAULT,
            help="How to decide the length of drafts. auto: draft where that should save time; "
            "fixed: draft in every step.",
        ),
    ),
    mask_options,
)
answer_options = cloup.option_group(
    "Answers",
    n_predict_option(N_PREDICT),
    cloup.option(
        "-r",
        "--rounds",
        type=Integer(1),
        default=N_ROUND,
        help="Number of times to answer each prompt with each drafter.",
    ),
    cloup.option("--temp", type=Number(0), default=0.0, help="Temperature, 0 for greedy."),
    cloup.option(
        "--seed",
        type=Integer(0, SEED_MAX // 2),
        default=0,
        help="Seed of the first round; each further round adds 1.",
    ),
)
output_options = cloup.option_group(
    "Results",
    cloup.option(
        "--format",
        "format_name",
        type=click.Choice([TABLE, *FORMATS]),
        help=f"Output format.  [default: {TABLE} on a terminal, else md]",
    ),
    cloup.option(
        "--out",
        type=FILE,
        callback=target_callback,
        help="Append each run to this file as soon as it is measured; if the file exists, do not "
        "repeat its runs.",
    ),
    cloup.option(
        "--report",
        "report_file",
        type=FILE,
        callback=_report,
        help="Also write an HTML page with plots into this file; replaced if it exists.",
    ),
    cloup.option(
        "--widths/--no-widths",
        default=None,
        help="Also measure the time of passes by their width, as layers calibrate does.  [default: "
        "with --report]",
    ),
)


@cloup.command(name="bench")
@model_argument
@prompt_options
@drafter_options
@answer_options
@output_options
@context_options
@common_options
def command(model: str, as_json: bool, **options: Any) -> None:
    """Compare drafters with plain decoding, on your own prompts.

    Answers each prompt with each drafter in turn, in several rounds; no drafter remembers earlier
    answers. The speed-up of a drafter is its median speed divided by that of plain decoding.

    \b
    pyselfspec bench model.gguf
    pyselfspec bench model.gguf -p "Tell me a story." --draft ngram --draft model:small.gguf
    pyselfspec bench model.gguf --prompts mine.jsonl --out mine.bench.jsonl --report mine.html
    """
    if as_json and options["format_name"] not in (None, "json"):
        raise click.UsageError("--json prints JSON; leave out --format, or leave out --json")
    format_name = "json" if as_json else options["format_name"]
    prompts, source = _prompts(options)
    with open_context(model, options) as (loaded, context):
        mask = mask_from(loaded.n_layer, options)
        profile = options["profile"] == "auto"
        variants = make_variants(context, options["drafts"], mask=mask, profile=profile)
        runner = Runner(context, options["n_predict"], options["temp"], options["controller"])
        template = None if options["plain_text"] else template_of(loaded)
        texts = tokenize_prompts(context, prompts, template)
        setup = make_setup(
            runner,
            variants,
            prompts,
            source=source,
            templated=template is not None,
            seed=options["seed"],
            command=command_line(),
        )
        with _Bench.opened(options["out"], setup) as bench:
            finished = bench.measure(runner, plan(texts, variants, options["rounds"], bench.keys))
            if finished and _wants_widths(options):
                finished = bench.time_widths(context, mask, profile)
    _show(bench.results, format_name)
    if options["report_file"] is not None:
        _write_report(bench.results, options["report_file"])
    if not finished:
        raise KeyboardInterrupt  # for the exit status


def _prompts(options: Mapping[str, Any]) -> tuple[list[Prompt], str]:
    """Return the prompts, and a description of their source."""
    texts, files, file = options["prompts"], options["prompt_files"], options["prompts_file"]
    require_one_reader_of_stdin(*files, file, options["mask_file"])
    given = [*texts, *(read_text(path, MAX_TEXT) for path in files)]
    found = [Prompt.of(text, f"prompt {i}") for i, text in enumerate(given, 1)]
    if file is not None:
        found += prompt_files.read(read_text(file, MAX_TEXT), file)
    if not found:
        return prompt_files.bundled(), "the package"
    return found, ", ".join([*["the command line"] * bool(texts), *files, *[file] * bool(file)])


def _wants_widths(options: Mapping[str, Any]) -> bool:
    given: bool | None = options["widths"]
    return options["report_file"] is not None if given is None else given


@dataclass
class _Bench:
    """Results in memory, and in a file if one was given."""

    results: Results
    file: BenchFile | None

    @classmethod
    @contextmanager
    def opened(cls, out: Path | None, setup: Setup) -> Iterator[_Bench]:
        with ExitStack() as stack:
            file = None if out is None else stack.enter_context(BenchFile(out, setup))
            bench = cls(Results(setup) if file is None else file.found, file)
            if bench.results.runs:
                click.echo(f"{out} already has {len(bench.results.runs)} runs", err=True)
            yield bench

    def add(self, line: Run | Widths) -> None:
        if self.file is not None:
            self.file.add(line)
        self.results = self.results.with_line(line)

    @property
    def keys(self) -> set[Key]:
        """Return the keys of the runs so far."""
        return {run.key for run in self.results.runs}

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
            with calibrate.to_time(context, mask, profile=profile) as (_, drafter), _bar(1) as show:
                made = calibrate.measure(
                    context, drafter, lambda share: show("passes by width", share)
                )
        except KeyboardInterrupt:
            click.echo("stopped; costs by width are left out", err=True)
            return False
        self.add(Widths(made.table, made.n_rounds))
        return True


@contextmanager
def _bar(total: float) -> Iterator[Callable[[str, float], None]]:
    """Show a bar on the terminal; yield a function that takes a description and a count."""
    console = bar_console()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=console.quiet) as bar:
        task = bar.add_task("warming up", total=total)
        yield lambda doing, done: bar.update(task, description=doing, completed=done)


def _show(results: Results, format_name: str | None) -> None:
    console = Console()
    if format_name is None:
        format_name = TABLE if console.is_terminal else "md"
    if format_name in FORMATS:
        click.echo(FORMATS[format_name](results), nl=False)
        return
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


def _write_report(results: Results, path: Path) -> None:
    page = html(results)
    with replacing(path) as unfinished:
        unfinished.write_text(page, encoding="utf-8")
    click.echo(f"report written to {shown(str(path))}", err=True)
