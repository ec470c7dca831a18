"""Pictures. One file each; the numbers come from elsewhere. matplotlib is an extra and imported
only here."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ArgumentError
from ..util.files import replacing, require_no_model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg")


def require(path: Path) -> Path:
    """Raise ArgumentError where this picture could not be drawn: before the work, not after it."""
    if path.suffix.lower() not in SUFFIXES:
        raise ArgumentError(f"a picture is a {' or '.join(SUFFIXES)} file, got {path.name!r}")
    require_no_model(path.absolute())
    if find_spec("matplotlib") is None:
        raise ArgumentError("pictures need matplotlib: pip install 'pyselfspec[plot]'")
    return path


def entitle(figure: Figure, title: str) -> None:
    """Put a title on top, which may be any file name: no formula, nothing that cannot be shown."""
    shown = "".join(c if c.isprintable() else "?" for c in title)
    figure.suptitle(shown, parse_math=False)


def save(figure: Figure, path: Path) -> None:
    with replacing(path) as unfinished:
        figure.savefig(unfinished, format=path.suffix.lower().removeprefix("."), dpi=150)
