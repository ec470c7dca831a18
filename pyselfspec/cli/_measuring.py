"""What the commands that score masks share: options, and a progress bar."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import cloup
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .. import plots
from ..masks.space import Unit
from ..selection import chunks, objectives
from ..selection.options import Options
from ..selection.rounds import Follow
from ..selection.rounds import Progress as Done
from ..selection.session import Interrupted
from ..util.files import require_no_model
from ..util.paths import without_password
from ._options import MAX_TEXT, F, bar_console, context_params, device_options, read_text
from ._options import together as _together


class NameChoice(click.Choice[str]):
    """Names of files, with those that earlier versions used."""

    def __init__(self, names: tuple[str, ...], former: Mapping[str, str]) -> None:
        super().__init__(names)
        self._former = former

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return super().convert(self._former.get(value, value), param, ctx)


def _chunks_help() -> str:
    names = objectives.names()
    defaults = (f"{objectives.load(name).about.n_chunks} for {name}" for name in names)
    return f"Chunks of text to score.  [default: {', '.join(defaults)}]"


def objective_option(default: str) -> Callable[[F], F]:
    return cloup.option(
        "--objective",
        type=NameChoice(objectives.names(), objectives.FORMER),
        default=default,
        show_default=True,
        help="What makes a mask better. agreement: of drafts with the full model. expected-speed: "
        "by agreement and costs of passes. measured-speed: by generating. perplexity: without what "
        "is skipped.",
    )


measuring_options = _together(
    cloup.option_group(
        "Text and results",
        cloup.option("--chunks", type=click.IntRange(min=1), help=_chunks_help()),
        cloup.option(
            "-c",
            "--ctx-size",
            "n_ctx",
            type=click.IntRange(min=4),
            help=f"Tokens in a chunk; the second half is scored.  [default: {chunks.N_CHUNK}]",
        ),
        cloup.option(
            "--window",
            type=click.IntRange(min=1),
            default=objectives.WINDOW,
            show_default=True,
            help="Tokens in a masked pass of agreement.",
        ),
        cloup.option("--text", "text_file", help="File with text to score on, - for stdin."),
        cloup.option(
            "--seed",
            type=click.IntRange(min=0),
            default=0,
            show_default=True,
            help="Seed for everything random, including the text that the model writes when none "
            "is given.",
        ),
        cloup.option(
            "--out",
            type=click.Path(path_type=Path),
            help="File of results; resumed if it exists.  [default: in the user's data "
            "folder, by model and text]",
        ),
        cloup.option(
            "--cache-mib",
            type=click.IntRange(min=0),
            default=objectives.CACHE_BYTES // 2**20,
            show_default=True,
            help="Memory for hidden states that masks share, 0 for none.",
        ),
        cloup.option("--no-profile", is_flag=True, help="Keep the profile of the model as it is."),
    ),
    device_options,
)


def session_options(options: Mapping[str, Any]) -> Options:
    """What measuring_options say about a session."""
    file = options["text_file"]
    return Options(
        text=None if file is None else read_text(file, MAX_TEXT),
        text_name=file,
        chunks=options["chunks"],
        n_ctx=options["n_ctx"],
        window=options["window"],
        seed=options["seed"],
        out=options["out"],
        cache_bytes=options["cache_mib"] * 2**20,
        context=context_params(options),
        command=command_line(),
    )


def space_options(share: float, *, unit_help: str, share_help: str) -> Callable[[F], F]:
    """--unit and --share: what masks are made of, and how much they skip."""
    return _together(
        cloup.option(
            "--unit",
            type=click.Choice([unit.value for unit in Unit]),
            default=Unit.BOTH.value,
            show_default=True,
            help=f"{unit_help}; both: attention and feed-forward sublayers, each alone.",
        ),
        cloup.option(
            "--share",
            type=click.FloatRange(0, 1, min_open=True),
            default=share,
            show_default=True,
            help=share_help,
        ),
    )


@contextmanager
def progress_bar() -> Iterator[Follow]:
    """A bar on the terminal, followed by what it yields; says how to go on when it is cut off."""
    console = bar_console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    hidden = console.quiet
    try:
        with Progress(*columns, TimeRemainingColumn(), console=console, disable=hidden) as bar:
            task = bar.add_task("opening the model", total=None)

            def follow(done: Done) -> None:
                bar.update(task, description=done.doing, completed=done.n_done, total=done.n_total)

            yield follow
    except Interrupted as stop:
        click.echo(f"stopped; {stop.path} has the results, the same command goes on", err=True)
        raise


def command_line() -> str:
    return without_password(shlex.join(["pyselfspec", *sys.argv[1:]]))


def picture_callback(
    _ctx: click.Context, _param: click.Parameter, path: Path | None
) -> Path | None:
    return None if path is None else plots.require(path)


def target_callback(_ctx: click.Context, _param: click.Parameter, path: Path | None) -> Path | None:
    if path is not None:
        require_no_model(path)
    return path
