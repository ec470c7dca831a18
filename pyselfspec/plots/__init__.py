"""Charts, one file each, drawn with matplotlib, which is an optional dependency and imported here
only."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ArgumentError
from ..util.extras import install_command
from ..util.files import replacing, require_no_model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg")


def require(path: Path) -> Path:
    """Raise ArgumentError if a chart cannot be drawn into this file: before the work."""
    if path.suffix.lower() not in SUFFIXES:
        raise ArgumentError(f"a picture is a {' or '.join(SUFFIXES)} file, got {path.name!r}")
    require_no_model(path.absolute())
    if find_spec("matplotlib") is None:
        raise ArgumentError(f"pictures need matplotlib: {install_command('plot')}")
    return path


def entitle(figure: Figure, title: str) -> None:
    """Set a title that may be any file name: it is not read as a formula, and stays printable."""
    shown = "".join(c if c.isprintable() else "?" for c in title)
    figure.suptitle(shown, parse_math=False)


def save(figure: Figure, path: Path) -> None:
    with replacing(path) as unfinished:
        figure.savefig(unfinished, format=path.suffix.lower().removeprefix("."), dpi=150)
