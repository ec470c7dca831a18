"""How fast the variants are."""

from __future__ import annotations

import statistics
import sys
from contextlib import ExitStack
from pathlib import Path

import click

from .environment import Environment, installed, probed
from .probe import WIDTH
from .targets import folder_argument


@click.command()
@folder_argument
@click.argument("model", type=click.Path(exists=True, dir_okay=False, resolve_path=True))
@click.option("--rounds", default=5, show_default=True, help="Measurements of each, in turn.")
@click.option("--threads", default=1, show_default=True, type=click.IntRange(min=1))
@click.option(
    "--against",
    type=click.Path(exists=True, file_okay=False, path_type=Path, resolve_path=True),
    help="A folder with another wheel, whose variants are timed as well.",
)
@click.option("--variant", "wanted", multiple=True, help="Only this variant.")
def speed(
    folder: Path,
    model: str,
    rounds: int,
    threads: int,
    against: Path | None,
    wanted: tuple[str, ...],
) -> None:
    """Time every variant and the build installed here, in turn.

    With one thread it is processor time; with several it is elapsed time, on a quiet machine.
    """
    with ExitStack() as stack:
        builds = [("installed", Environment((sys.executable,)), "")]
        for place in [folder] if against is None else [folder, against]:
            environment = stack.enter_context(installed(place))
            builds += [
                (f"{place.name} {name}", environment, name)
                for name in probed(environment, "variants")
                if not wanted or name in wanted
            ]
        seconds: dict[str, list[list[float]]] = {name: [] for name, *_ in builds}
        for _ in range(rounds):
            for name, environment, variant in builds:
                said = probed(environment, "times", model, str(threads), variant=variant)
                seconds[name].append(said["seconds"])
    for name, measured in seconds.items():
        alone, wide = (statistics.median(column) for column in zip(*measured, strict=True))
        click.echo(f"{name:20} {1 / alone:7.1f} tokens/s {1e3 * wide:7.1f} ms for {WIDTH} tokens")
