"""The command line of the benches."""

from __future__ import annotations

import json
from pathlib import Path

import click

from pyselfspec.errors import SelfSpecError
from tools import bench

from ._options import HELP

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results.jsonl"


class Folder(click.Group):
    """Commands are the files of this folder, and ``table``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*bench.names(), *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in bench.names():
            return bench.load(cmd_name).command
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except SelfSpecError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=Folder, context_settings=HELP)
def main() -> None:
    """Measurements of the runtime, alternating what is compared.

    \b
    python tools/models/random_gguf.py model.gguf --params 0.85B --type Q8_0
    python tools/bench.py speed model.gguf
    python tools/bench.py table

    With --out FILE each measurement is appended as one JSON object: counts and times with what is
    needed to repeat them. Ratios are derived when they are shown.
    """


@main.command()
@click.argument("results", type=click.Path(exists=True, path_type=Path), default=RESULTS)
def table(results: Path) -> None:
    """The tables of benchmarks/README.md, in Markdown."""
    records = [json.loads(line) for line in results.read_text().splitlines()]
    tables = [each for name in bench.names() for each in bench.load(name).TABLES]
    shown = ((each.record, each.markdown(records)) for each in tables)
    click.echo("\n\n".join(f"### {name}\n\n{rows}" for name, rows in shown if rows))
