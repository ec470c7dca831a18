"""Pictures. One file each; the numbers come from elsewhere. matplotlib is an extra and imported
only here."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from ..errors import ArgumentError

SUFFIXES = (".png", ".svg")


def require(path: Path) -> Path:
    """Raise ArgumentError where this picture could not be drawn: before the work, not after it."""
    if path.suffix.lower() not in SUFFIXES:
        raise ArgumentError(f"a picture is a {' or '.join(SUFFIXES)} file, got {path.name!r}")
    if not path.absolute().parent.is_dir():
        raise ArgumentError(f"{path.absolute().parent} is no folder: make it first")
    if find_spec("matplotlib") is None:
        raise ArgumentError("pictures need matplotlib: pip install 'pyselfspec[plot]'")
    return path
