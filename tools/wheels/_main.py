"""The command line: one command per file."""

from __future__ import annotations

import click

from tools import wheels

from .building import build
from .speed import speed
from .trying import try_wheel


@click.group(help=(wheels.__doc__ or "").splitlines()[0])
def main() -> None:
    pass


for command in (build, try_wheel, speed):
    main.add_command(command)
