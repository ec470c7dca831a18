"""pyselfspec pull: get a model by its name."""

from __future__ import annotations

import json
import sys

import click
import cloup
from rich.filesize import decimal

from .. import hub
from ..hub.offer import Offer
from ._completion import complete_name


@cloup.command(name="pull")
@click.argument("name", shell_complete=complete_name)
@cloup.option("-y", "--yes", is_flag=True, help="Do not ask before fetching.")
@cloup.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(name: str, yes: bool, as_json: bool) -> None:
    """Fetch a model, and print where its file is.

    NAME is one of pyselfspec list, or hf:USER/REPO[:FILE] for GGUF files of the Hugging Face hub;
    FILE is a file there or a type, such as Q8_0. Size and licence are shown before, and at a
    terminal you are asked. Other commands take the same NAME as MODEL.

    \b
    pyselfspec pull smollm2-135m
    pyselfspec pull hf:USER/REPO:Q8_0
    """
    path, fetched = hub.find(name), False
    if path is None:
        offered = hub.offer(name)
        click.echo(_text(offered), err=True)
        if not yes and sys.stdin is not None and sys.stdin.isatty():
            click.confirm("Fetch it?", default=True, abort=True, err=True)
        path, fetched = hub.fetch(offered), True
    else:
        click.echo(f"{name} is here already", err=True)
    facts = {"name": name, "path": str(path), "fetched": fetched}
    click.echo(json.dumps(facts) if as_json else path)


def _text(offered: Offer) -> str:
    choice = f" ({offered.chosen})" if offered.chosen else ""
    return (
        f"{offered.about}{choice}\n"
        f"size:    {decimal(offered.n_bytes)}\n"
        f"licence: {offered.licence}\n"
        f"from:    {offered.origin}"
    )
