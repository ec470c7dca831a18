"""pyselfspec pull: get a model by its name."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import click
import cloup

from .. import hub
from ..errors import ModelFileError
from ..gguf.file import check
from ..hub.offer import Offer
from ..util.sizes import size_text
from ._completion import complete_name


@cloup.command(name="pull")
@click.argument("name", shell_complete=complete_name)
@cloup.option("-y", "--yes", is_flag=True, help="Do not ask before fetching.")
@cloup.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(name: str, yes: bool, as_json: bool) -> None:
    """Fetch a model, and print where its file is.

    NAME is one of pyselfspec list, or hf:USER/REPO[:FILE] for GGUF files of the Hugging Face hub;
    FILE is a file there or a type, such as Q8_0. USER/REPO or a Hugging Face URL works too. Size
    and licence are shown first, and at a terminal you are asked. Other commands take the NAME as
    MODEL.

    \b
    pyselfspec pull smollm2-135m
    pyselfspec pull hf:USER/REPO:Q8_0
    pyselfspec pull https://huggingface.co/USER/REPO
    """
    name = hub.wanted(name)
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
    if not as_json:
        click.echo(_next(name, path), err=True)


def _next(name: str, path: Path) -> str:
    """The command to go on with."""
    try:
        chats = check(path).is_chat_model
    except ModelFileError:
        return f"next: pyselfspec info {shlex.quote(name)}"
    more = "" if chats else " -p 'Once upon a time'"
    return f"next: pyselfspec {'chat' if chats else 'generate'} {shlex.quote(name)}{more}"


def _text(offered: Offer) -> str:
    choice = f" ({offered.chosen})" if offered.chosen else ""
    return (
        f"{offered.about}{choice}\n"
        f"size:    {size_text(offered.n_bytes)}\n"
        f"licence: {offered.licence}\n"
        f"from:    {offered.origin}"
    )
