"""Options that most benches share, and what they do with a record in the end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.progress import track

from pyselfspec.util.machine import usable_cores
from tools.records import Record, append

from ._table import Table

T = TypeVar("T")
Command = Callable[..., None]
HELP = {"help_option_names": ["-h", "--help"], "show_default": True}


def file_path(**options: Any) -> click.Path:
    return click.Path(exists=True, dir_okay=False, path_type=Path, **options)


def run_options(command: Command) -> Command:
    """-t and --out."""
    for option in (
        click.option("--out", type=click.Path(path_type=Path), help="Append the result here."),
        click.option("-t", "--threads", type=click.IntRange(min=1), default=usable_cores()),
    ):
        command = option(command)
    return command


model_argument = click.argument("model", type=file_path())

kinds_option = click.option(
    "--task", "kinds", multiple=True, help="Only this kind; may be given several times."
)

stock_option = click.option(
    "--stock",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    envvar="PYSELFSPEC_STOCK_LIB",
    show_envvar=True,
    help="Library folder of an unpatched build.  [default: without]",
)

exit_option = click.option(
    "--exit-layer",
    type=click.IntRange(min=1),
    help="Draft with the first blocks.  [default: the model's own mask, else a quarter of them]",
)


def repeated(option: str, values: Iterable[object]) -> str:
    """The option with each of its values, as on the command line."""
    return "".join(f" {option} {value}" for value in values)


def progress(items: Iterable[T], name: str) -> Iterable[T]:
    """With a bar where somebody is watching."""
    return track(items, name, disable=not sys.stderr.isatty())


def keep(record: Record, table: Table, out: Path | None) -> None:
    """Append the record and show its table."""
    append(record, out)
    click.echo(table.markdown([record]))
