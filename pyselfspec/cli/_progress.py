"""Progress bars on stderr."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click
from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from ..util.progress import Interrupted, OnProgress, Progress


def progress(*columns: ProgressColumn, hidden: bool = False) -> Bars:
    """Return a progress bar, silent without a terminal: even a disabled bar would print the end of
    its line."""
    console = Console(stderr=True)
    console.quiet = not console.is_terminal
    return Bars(*columns, console=console, disable=console.quiet or hidden)


@contextmanager
def stages(column: ProgressColumn) -> Iterator[OnProgress]:
    """Show a bar for a model's opening and the stages that follow, with a column of its own kind;
    yield the function that updates the bar and prints messages. After Ctrl-C, print how to
    resume."""
    columns = (TextColumn("{task.description}"), BarColumn(), column, TimeRemainingColumn())
    try:
        with progress(*columns) as bars:
            task = bars.add_task("opening the model", total=None)

            def update(state: Progress) -> None:
                n_done, n_total = state.n_done, state.n_total
                bars.update(task, description=state.stage, completed=n_done, total=n_total)
                if state.message is not None:
                    click.echo(state.message, err=True)

            yield update
    except Interrupted as stop:
        click.echo(f"{stop}; run the same command to resume", err=True)
        raise
