"""Benches: one file each; the file name is the name users give.

A bench is a module here with ``command``, the click command that measures, and ``TABLES``, what
benchmarks/README.md shows of its records. The command line finds it by listing this folder. What
begins with an underscore is no bench but serves some.

Every bench is in three parts: measuring makes a record, of counts and times; figures are derived
from a record; cells show figures. Only ``_table`` knows Markdown.
"""

from __future__ import annotations

from typing import Protocol

import click

from pyselfspec.util import plugins

from ._table import Table


class Bench(Protocol):
    command: click.Command
    TABLES: tuple[Table, ...]


def names() -> tuple[str, ...]:
    """Names of all benches, as the command line spells them."""
    return plugins.names(__path__)


def load(name: str) -> Bench:
    """The file of a bench. Raises ArgumentError for a name that is no file here."""
    bench: Bench = plugins.load(__name__, "bench", name)
    return bench
