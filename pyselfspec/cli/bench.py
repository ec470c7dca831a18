"""pyselfspec bench: plain decoding and ways to draft, in turn, on your machine and prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
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

from ..bench import prompts as asked
from ..bench.file import BenchFile
from ..bench.formats import FORMATS
from ..bench.measuring import Answering, Job, measured, plan
from ..bench.prompts import Prompt
from ..bench.report import html
from ..bench.setup import questions, setup_of, template_of
from ..bench.sheets import Sheet, notes, provenance, sheets
from ..bench.types import PLAIN, Key, Results, Run, Setup, Widths
from ..bench.ways import ways_of
from ..masks.layer_mask import LayerMask
from ..runtime.context import Context
from ..runtime.sampling import SEED_MAX
from ..speculate import calibrate, controllers, drafters
from ..speculate.draft_names import SIGN
from ..speculate.prepared import AUTO
from ..util.files import replacing
from ..util.paths import shown
from ._drafting import OFF, complete_draft, mask_from, mask_options, parse_draft, profile_option
from ._measuring import command_line, target_callback
from ._options import (
    MAX_TEXT,
    bar_console,
    common_options,
    context_options,
    context_params,
    ctx_size,
    model_argument,
    model_params,
    n_predict_option,
    open_model,
    read_text,
    require_one_reader_of_stdin,
    together,
)

N_PREDICT = 128  # tokens
N_ROUND = 3
TABLE = "table"  # the format for terminals
SUFFIX = ".html"


def _drafts(ctx: click.Context, param: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if parse_draft(ctx, param, name) in (OFF, PLAIN):
            raise click.BadParameter("plain decoding is always measured; name ways to draft")
    return names


def _report(_ctx: click.Context, _param: click.Parameter, path: Path | None) -> Path | None:
    if path is not None and path.suffix.lower() != SUFFIX:
        raise click.BadParameter(f"a report is a {SUFFIX} file, got {path.name!r}")
    return target_callback(_ctx, _param, path)


prompt_options = cloup.option_group(
    "Prompts",
    cloup.option(
        "-p", "--prompt", "prompts", multiple=True, help="A prompt; may be given several times."
    ),
    cloup.option(
        "-f", "--file", "prompt_files", multiple=True, help="File with a prompt, - for stdin."
    ),
    cloup.option(
        "--prompts",
        "prompts_file",
        metavar="JSONL",
        help="File of prompts, one JSON value on each line: a string, or an object with prompt or "
        "messages, and if you like, id and task.  [default: four everyday ones of our own]",
    ),
    cloup.option(
        "--plain-text", is_flag=True, help="Leave the model's chat template aside, if it has one."
    ),
)
way_options = together(
    cloup.option_group(
        "Ways to draft",
        cloup.option(
            "--draft",
            "drafts",
            metavar="|".join((AUTO, *drafters.names())),
            multiple=True,
            callback=_drafts,
            shell_complete=complete_draft,
            help=f"A way to draft, as for generate, also several joined by {SIGN}; may be given "
            f"several times.  [default: {AUTO}, and where that joins several, each alone]",
        ),
        profile_option,
        cloup.option(
            "--controller",
            type=click.Choice(controllers.names()),
            default=controllers.DEFAULT,
            show_default=True,
            help="How to decide the length of drafts.",
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
        type=click.IntRange(min=1),
        default=N_ROUND,
        show_default=True,
        help="How often each prompt is answered each way.",
    ),
    cloup.option(
        "--temp", type=click.FloatRange(min=0), default=0.0, show_default=True, help="Temperature."
    ),
    cloup.option(
        "--seed",
        type=click.IntRange(0, SEED_MAX // 2),
        default=0,
        show_default=True,
        help="Of the first round; each round has the next one.",
    ),
)
output_options = cloup.option_group(
    "Results",
    cloup.option(
        "--format",
        "format_name",
        type=click.Choice([TABLE, *FORMATS]),
        help=f"What to print.  [default: {TABLE} on a terminal, else md]",
    ),
    cloup.option(
        "--out",
        type=click.Path(path_type=Path),
        callback=target_callback,
        help="Append each run here as soon as it is measured; taken up again if it exists.",
    ),
    cloup.option(
        "--report",
        "report_file",
        type=click.Path(path_type=Path),
        callback=_report,
        help="Also write an HTML page with plots into this file; it is replaced if it exists.",
    ),
    cloup.option(
        "--widths/--no-widths",
        default=None,
        help="Also time passes by their width, as calibrate does.  [default: with --report]",
    ),
)


@cloup.command(name="bench")
@model_argument
@prompt_options
@way_options
@answer_options
@output_options
@context_options
@common_options
def command(model: str, as_json: bool, **options: Any) -> None:
    """Measure the speed of plain decoding and of drafting, on your machine and your prompts.

    Each prompt is answered every way, in turn, several times over; each answer is as the first of
    a session. Speed over plain decoding is the ratio of the medians.

    MODEL is a GGUF file or a name, see pyselfspec list; default: $PYSELFSPEC_MODEL, else "demo".

    \b
    pyselfspec bench model.gguf
    pyselfspec bench model.gguf -p "Tell me a story." --draft ngram --draft model:small.gguf
    pyselfspec bench model.gguf --prompts mine.jsonl --out mine.bench.jsonl --report mine.html
    """
    if as_json and options["format_name"] not in (None, "json"):
        raise click.UsageError("--json prints JSON; leave out --format, or name another one there")
    format_name = "json" if as_json else options["format_name"]
    prompts, source = _prompts(options)
    with (
        open_model(model, **model_params(options)) as loaded,
        loaded.context(n_ctx=ctx_size(loaded, options), **context_params(options)) as context,
    ):
        mask = mask_from(loaded.n_layer, options)
        profile = options["profile"] == "auto"
        ways = ways_of(context, options["drafts"], mask=mask, profile=profile)
        answering = Answering(context, options["n_predict"], options["temp"], options["controller"])
        template = None if options["plain_text"] else template_of(loaded)
        texts = questions(context, prompts, template)
        setup = setup_of(
            answering,
            ways,
            prompts,
            source=source,
            templated=template is not None,
            seed=options["seed"],
            command=command_line(),
        )
        with _Bench.opened(options["out"], setup) as bench:
            finished = bench.measure(answering, plan(texts, ways, options["rounds"], bench.keys))
            if finished and _wants_widths(options):
                finished = bench.time_widths(context, mask, profile)
    _show(bench.results, format_name)
    if options["report_file"] is not None:
        _write_report(bench.results, options["report_file"])
    if not finished:
        raise KeyboardInterrupt  # the status tells, too


def _prompts(options: Mapping[str, Any]) -> tuple[list[Prompt], str]:
    """What is asked, and the name of where it is from."""
    texts, files, file = options["prompts"], options["prompt_files"], options["prompts_file"]
    require_one_reader_of_stdin(*files, file, options["mask_file"])
    given = [*texts, *(read_text(path, MAX_TEXT) for path in files)]
    found = [Prompt.of(text, f"prompt {i}") for i, text in enumerate(given, 1)]
    if file is not None:
        found += asked.read(read_text(file, MAX_TEXT), file)
    if not found:
        return asked.bundled(), "the package"
    return found, ", ".join([*["the command line"] * bool(texts), *files, *[file] * bool(file)])


def _wants_widths(options: Mapping[str, Any]) -> bool:
    asked_for: bool | None = options["widths"]
    return options["report_file"] is not None if asked_for is None else asked_for


@dataclass
class _Bench:
    """What has been measured, in memory and in a file if there is one."""

    results: Results
    file: BenchFile | None

    @classmethod
    @contextmanager
    def opened(cls, out: Path | None, setup: Setup) -> Iterator[_Bench]:
        with ExitStack() as stack:
            file = None if out is None else stack.enter_context(BenchFile(out, setup))
            bench = cls(Results(setup) if file is None else file.found, file)
            if bench.results.runs:
                click.echo(f"{out} has {len(bench.results.runs)} runs already", err=True)
            yield bench

    def add(self, line: Run | Widths) -> None:
        if self.file is not None:
            self.file.add(line)
        self.results = self.results.with_line(line)

    @property
    def keys(self) -> set[Key]:
        """What there is already."""
        return {run.key for run in self.results.runs}

    def measure(self, answering: Answering, todo: Sequence[Job]) -> bool:
        """False when Ctrl-C cut it off."""
        try:
            with _bar(len(todo)) as follow:
                for n, run in enumerate(measured(answering, todo, self.results.setup.seed), 1):
                    self.add(run)
                    follow(f"round {run.round + 1}, {run.prompt}, {run.way}", n)
        except KeyboardInterrupt:
            click.echo("stopped; this is what was measured", err=True)
            return False
        return True

    def time_widths(self, context: Context, mask: LayerMask | None, profile: bool) -> bool:
        """The same."""
        if self.results.widths is not None:
            return True
        _, drafter = calibrate.to_time(context, mask, profile=profile)
        try:
            with closing(drafter), _bar(1) as follow:
                made = calibrate.measure(
                    context, drafter, lambda share: follow("passes by width", share)
                )
        except KeyboardInterrupt:
            click.echo("stopped; without costs by width", err=True)
            return False
        self.add(Widths(made.table, made.n_rounds))
        return True


@contextmanager
def _bar(total: float) -> Iterator[Callable[[str, float], None]]:
    """A bar on the terminal; what it yields is told what is being done and how much is."""
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
    for sheet in sheets(results):
        console.print(_table(sheet))
    for note in notes(results):
        console.print(f"Note: {note}", markup=False, highlight=False)
    for name, value in provenance(results.setup):
        console.print(f"{name:>16}  {value}", markup=False, highlight=False, soft_wrap=True)


def _table(sheet: Sheet) -> Table:
    table = Table(
        title=sheet.title, title_justify="left", box=SIMPLE_HEAD, padding=0, pad_edge=False
    )
    for name, side in zip(sheet.columns, sheet.align, strict=True):
        is_name = side == "<"
        justify: JustifyMethod = "left" if is_name else "right"
        table.add_column(name, justify=justify, no_wrap=is_name, overflow="fold")  # nothing is cut
    for cells in sheet.rows:
        table.add_row(*map(Text, cells))
    return table


def _write_report(results: Results, path: Path) -> None:
    page = html(results)
    with replacing(path) as unfinished:
        unfinished.write_text(page, encoding="utf-8")
    click.echo(f"the report is {shown(str(path))}", err=True)
