"""pyselfspec models rm: remove a model that pull has downloaded."""

from __future__ import annotations

import json
import sys

import click
import cloup

from ... import hub
from ...util.sizes import size_text
from .._model import complete_from
from .._options import json_option, yes_option


@cloup.command(name="rm")
@cloup.argument(
    "name",
    shell_complete=complete_from(hub.to_remove),
    help="A name that pyselfspec models list shows.",
)
@yes_option
@json_option
def command(name: str, yes: bool, as_json: bool) -> None:
    """Remove a model that pull has downloaded.

    Asks for confirmation; without a terminal, give -y. Never removes your own files, or models that
    other programs keep or share: for these, an error says how to remove them.

    \b
    pyselfspec models rm smollm2-135m
    """
    path = hub.removable(name)
    n_bytes = path.stat().st_size
    if not yes:
        if sys.stdin is None or not sys.stdin.isatty():
            raise click.UsageError(
                "cannot ask for confirmation without a terminal; give -y to remove the model"
            )
        click.confirm(f"Remove {path} ({size_text(n_bytes)})?", abort=True, err=True)
    hub.remove(name)
    facts = {"name": name, "path": str(path), "n_bytes": n_bytes}
    click.echo(json.dumps(facts) if as_json else f"removed {path} ({size_text(n_bytes)})")
