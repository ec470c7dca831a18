"""Options and the progress bar of the commands that score masks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import click
import cloup
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ...masks.space import Unit
from ...selection import chunks, objectives
from ...selection.options import ScanOptions
from ...selection.session import Interrupted
from ...util.progress import OnProgress
from ...util.progress import Progress as State
from .._options import MAX_TEXT, F, bar_console, context_params, device_options, read_text
from .._options import together as _together
from .._targets import command_line
from .._types import FILE, Integer, Number


def _chunks_help() -> str:
    names = objectives.names()
    defaults = (f"{objectives.load(name).about.n_chunks} for {name}" for name in names)
    return f"Number of chunks of text to score.  [default: {', '.join(defaults)}]"


def objective_option(default: str) -> Callable[[F], F]:
    return cloup.option(
        "--objective",
        type=click.Choice(objectives.names()),
        default=default,
        help="How to score a mask. agreement: share of tokens for which the masked model picks the "
        "full model's token. expected-speed: speed-up computed from agreement and the times of "
        "passes. measured-speed: speed of generation with the mask. perplexity: perplexity of the "
        "masked model.",
    )


measuring_options = _together(
    cloup.option_group(
        "Text and results",
        cloup.option("--chunks", type=Integer(1), help=_chunks_help()),
        cloup.option(
            "-c",
            "--ctx-size",
            "n_ctx",
            type=Integer(4),
            help="Number of tokens in a chunk; the second half is scored.  [default: "
            f"{chunks.N_CHUNK}]",
        ),
        cloup.option(
            "--window",
            type=Integer(1),
            default=objectives.WINDOW,
            help="Number of tokens in a masked pass, for --objective agreement.",
        ),
        cloup.option(
            "--text",
            "text_file",
            metavar="FILE",
            help="File with the text to score on, - for stdin.  [default: text that the model "
            "generates]",
        ),
        cloup.option(
            "--seed",
            type=Integer(0),
            default=0,
            help="Seed of all random choices, including the text that the model generates.",
        ),
        cloup.option(
            "--out",
            type=FILE,
            help="File of results; if it exists, resume from it.  [default: in the user's data "
            "folder, by model and text]",
        ),
        cloup.option(
            "--cache-mib",
            type=Integer(0),
            default=objectives.CACHE_BYTES // 2**20,
            help="Memory for hidden states that masks share, in MiB; 0 for none.",
        ),
        cloup.option(
            "--no-profile", is_flag=True, help="Do not replace the model's profile with the result."
        ),
    ),
    device_options,
)


def session_options(options: Mapping[str, Any]) -> ScanOptions:
    """Return the settings of measuring_options."""
    file = options["text_file"]
    return ScanOptions(
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
    """Return the options --unit and --share."""
    return _together(
        cloup.option(
            "--unit",
            type=click.Choice([unit.value for unit in Unit]),
            default=Unit.BOTH.value,
            help=f"{unit_help}: an attention sublayer (attn), a feed-forward sublayer (ffn), "
            "either of them (both), or a whole block (block).",
        ),
        cloup.option(
            "--share",
            type=Number(0, 1, min_open=True),
            default=share,
            help=share_help,
        ),
    )


@contextmanager
def progress_bar() -> Iterator[OnProgress]:
    """Show a bar on the terminal, updated by the function it yields; after Ctrl-C, print how
    to resume."""
    console = bar_console()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    hidden = console.quiet
    try:
        with Progress(*columns, TimeRemainingColumn(), console=console, disable=hidden) as bar:
            task = bar.add_task("opening the model", total=None)

            def update(state: State) -> None:
                bar.update(
                    task, description=state.stage, completed=state.n_done, total=state.n_total
                )

            yield update
    except Interrupted as stop:
        click.echo(
            f"stopped; the results so far are in {stop.path}; run the same command to resume",
            err=True,
        )
        raise
