"""pyselfspec models list: list the models that have names, downloaded or not."""

from __future__ import annotations

import json

import click
import cloup

from ... import hub
from ...hub import Entry
from ...hub.huggingface import FORM
from ...util.sizes import size_text
from .._options import json_option


@cloup.command(name="list")
@json_option
def command(as_json: bool) -> None:
    """List models by name: downloaded ones, and ones that pull can get.

    Commands that take a MODEL accept these names and GGUF files.
    """
    entries = list(hub.entries())
    if as_json:
        click.echo(json.dumps({"models": [_facts(entry) for entry in entries]}))
        return
    rows = [("name", "type", "size", "licence", "where"), *map(_row, entries)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (f"{cell:{width}}" for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())
    click.echo(
        f"download: pyselfspec models pull {FORM}; remove: pyselfspec models rm NAME", err=True
    )


def _facts(entry: Entry) -> dict[str, object]:
    return {
        "name": entry.name,
        "type": entry.type,
        "n_bytes": entry.n_bytes,
        "licence": entry.licence,
        "path": None if entry.path is None else str(entry.path),
    }


def _row(entry: Entry) -> tuple[str, ...]:
    where = f"pyselfspec models pull {entry.name}" if entry.path is None else str(entry.path)
    return entry.name, entry.type, size_text(entry.n_bytes), entry.licence, where
