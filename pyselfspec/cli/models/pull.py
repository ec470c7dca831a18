"""pyselfspec models pull: download a model by its name."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import click
import cloup

from ... import hub
from ...errors import ModelFileError
from ...gguf.file import check
from ...util.sizes import size_text
from .._model import complete_from
from .._options import json_option, yes_option


@cloup.command(name="pull")
@cloup.argument(
    "name",
    shell_complete=complete_from(lambda: [each.name for each in hub.to_pull()]),
    help="A name that pyselfspec models list shows, or a model of the Hugging Face hub: "
    "hf:USER/REPO[:FILE], USER/REPO or a URL; FILE is a GGUF file there or a type like Q8_0.",
)
@yes_option
@json_option
def command(name: str, yes: bool, as_json: bool) -> None:
    """Download a model, and print the path of its file.

    First shows the size and the licence; on a terminal, asks for confirmation. After the download,
    give NAME as MODEL to other commands.

    \b
    pyselfspec models pull qwen3:0.6b
    pyselfspec models pull hf:USER/REPO:Q8_0
    pyselfspec models pull https://huggingface.co/USER/REPO
    """
    name = hub.name_to_pull(name)
    path, fetched = hub.find(name), False
    if path is None:
        offered = hub.offer(name)
        choice = f" ({offered.chosen})" if offered.chosen else ""
        click.echo(
            f"{offered.about}{choice}\nsize:    {size_text(offered.n_bytes)}\n"
            f"licence: {offered.licence}\nfrom:    {offered.origin}",
            err=True,
        )
        if not yes and sys.stdin is not None and sys.stdin.isatty():
            click.confirm("Download it?", default=True, abort=True, err=True)
        path, fetched = hub.fetch(offered), True
    else:
        click.echo(f"{name} is already downloaded", err=True)
    facts = {"name": name, "path": str(path), "fetched": fetched}
    click.echo(json.dumps(facts) if as_json else path)
    if not as_json:
        click.echo(_next(name, path), err=True)


def _next(name: str, path: Path) -> str:
    """Return a line with the command to try next."""
    try:
        chats = check(path).is_chat_model
    except ModelFileError:
        return f"next: pyselfspec models info {shlex.quote(name)}"
    more = "" if chats else " -p 'Once upon a time'"
    return f"next: pyselfspec {'chat' if chats else 'generate'} {shlex.quote(name)}{more}"
