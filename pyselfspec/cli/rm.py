"""pyselfspec rm: remove a model that pull has fetched."""

from __future__ import annotations

import json
import sys

import click
import cloup

from .. import hub
from ..util.sizes import size_text
from ._completion import complete_fetched


@cloup.command(name="rm")
@click.argument("name", shell_complete=complete_fetched)
@cloup.option("-y", "--yes", is_flag=True, help="Do not ask before removing.")
@cloup.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(name: str, yes: bool, as_json: bool) -> None:
    """Remove a model that pull has fetched into the cache of pyselfspec.

    NAME is one of pyselfspec list. You are asked first; without a terminal give -y. Models of the
    Hugging Face hub are in a cache that other programs use, too: hf cache rm removes them. Other
    files are never removed.

    \b
    pyselfspec rm smollm2-135m
    """
    path = hub.removable(name)
    n_bytes = path.stat().st_size
    if not yes:
        if sys.stdin is None or not sys.stdin.isatty():
            raise click.UsageError("without a terminal nothing is asked; give -y to remove")
        click.confirm(f"Remove {path} ({size_text(n_bytes)})?", abort=True, err=True)
    hub.remove(name)
    facts = {"name": name, "path": str(path), "n_bytes": n_bytes}
    click.echo(json.dumps(facts) if as_json else f"removed {path} ({size_text(n_bytes)})")
