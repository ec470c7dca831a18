"""Options for files to write, and the command line to record in files of results."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import click
import cloup

from .. import plots
from ..util.files import require_no_model
from ..util.paths import without_password
from ._options import F
from ._types import FILE


def command_line() -> str:
    return without_password(shlex.join(["pyselfspec", *sys.argv[1:]]))


def _picture_callback(
    _ctx: click.Context, _param: click.Parameter, path: Path | None
) -> Path | None:
    return None if path is None else plots.require(path)


def plot_option(action: str) -> Callable[[F], F]:
    """Return the option --plot; ``action``: verb and object of its help text."""
    return cloup.option(
        "--plot",
        type=FILE,
        callback=_picture_callback,
        help=f"{action} into this file, .png or .svg; replaced if it exists.",
    )


def target_callback(_ctx: click.Context, _param: click.Parameter, path: Path | None) -> Path | None:
    if path is not None:
        require_no_model(path)
    return path
