"""Tables of text on stdout."""

from __future__ import annotations

from collections.abc import Iterable

import click


def show_table(rows: Iterable[tuple[str, ...]]) -> None:
    """Print rows with aligned columns; the first row has the names of the columns."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{cell:{width}}" for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())
