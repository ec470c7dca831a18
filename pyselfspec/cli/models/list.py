"""pyselfspec models list: list the models that have names, downloaded or not."""

from __future__ import annotations

import json

import click
import cloup

from ... import hub
from ...hub.huggingface import FORM
from ...util.sizes import size_text
from .._options import json_option
from .._table import show_table


@cloup.command(name="list")
@json_option
def command(as_json: bool) -> None:
    """List models by name: downloaded ones, and ones that pull can get.

    Includes files that Ollama, LM Studio and programs of the Hugging Face hub have downloaded.
    Commands that take a MODEL accept these names and GGUF files.
    """
    entries = list(hub.entries())
    if as_json:
        names = ("name", "type", "n_bytes", "licence")
        facts = [
            {name: getattr(each, name) for name in names}
            | {"path": None if each.path is None else str(each.path)}
            for each in entries
        ]
        click.echo(json.dumps({"models": facts}))
        return
    rows = [("name", "type", "size", "licence", "where")]
    for each in entries:
        where = f"pyselfspec models pull {each.name}" if each.path is None else str(each.path)
        rows.append((each.name, each.type, size_text(each.n_bytes), each.licence, where))
    show_table(rows)
    click.echo(
        f"download: pyselfspec models pull {FORM}; find: pyselfspec models search WORD; "
        "remove: pyselfspec models rm NAME",
        err=True,
    )
