"""The API keys of a server: from a file or the environment, not from the command line, which other
users of the machine can read."""

from __future__ import annotations

import os
from pathlib import Path

import click
import cloup

from ..errors import ArgumentError
from ._options import read_text
from ._types import FILE

KEY_VARIABLE = "PYSELFSPEC_API_KEY"


def _refuse(_ctx: click.Context, _param: click.Parameter, given: str | None) -> None:
    """Refuse llama-server's option, with the ways to give a key here."""
    if given is not None:
        raise click.UsageError(
            "--api-key is no option: other users of this machine could read the key; set "
            f"${KEY_VARIABLE}, or give --api-key-file FILE"
        )


key_options = (
    cloup.option(
        "--api-key-file",
        type=FILE,
        help="File with the API keys that requests may have, one a line.  "
        f"[default: ${KEY_VARIABLE}, else none]",
    ),
    cloup.option("--api-key", hidden=True, expose_value=False, callback=_refuse),
)


def keys_from(path: Path | None) -> tuple[str, ...]:
    """Return the API keys: the lines of a file, or the one of the environment."""
    if path is None:
        return tuple(filter(None, [os.environ.get(KEY_VARIABLE)]))
    keys = tuple(filter(None, map(str.strip, read_text(str(path)).splitlines())))
    if not keys:
        raise ArgumentError(f"{path} is empty: write an API key into it, or several, one a line")
    return keys
