"""pyselfspec models search: find models of the Hugging Face hub."""

from __future__ import annotations

import json
from dataclasses import asdict

import click
import cloup

from ...hub.huggingface import search
from .._options import json_option
from .._table import show_table


@cloup.command(name="search")
@cloup.argument("word", help="Part of the name of a model or of its maker.")
@json_option
def command(word: str, as_json: bool) -> None:
    """Search the Hugging Face hub for GGUF models, most downloaded first.

    Shows names that pull takes, downloads in the last month, and licences.

    \b
    pyselfspec models search qwen3
    """
    found = search(word)
    if as_json:
        click.echo(json.dumps({"models": [asdict(each) for each in found]}))
    elif found:
        rows = [(each.name, f"{each.n_downloads:,}", each.licence) for each in found]
        show_table([("name", "downloads", "licence"), *rows])
        click.echo("download: pyselfspec models pull NAME", err=True)
    else:
        click.echo(f"no GGUF model of the hub matches {word!r}; try a shorter word", err=True)
