"""Files that appear under their name only when they are complete."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

from ..errors import ArgumentError

GGUF = b"GGUF"  # what a model begins with


def read_limited(file: BinaryIO, n_bytes: int) -> bytes:
    """All of a file that is no longer than that. Raises ArgumentError for longer and endless
    ones."""
    data = file.read(n_bytes + 1)
    if len(data) > n_bytes:
        raise ArgumentError(f"more than {n_bytes >> 20} MiB")
    return data


def require_target(target: Path) -> None:
    """Raise ArgumentError for what `replacing` could not replace."""
    if target.exists() and not target.is_file():
        raise ArgumentError(f"{target} is no plain file: give the name of a file to write")
    if not target.parent.is_dir():
        raise ArgumentError(f"{target.parent} is no folder: make it first")
    if not os.access(target.parent, os.W_OK):
        raise ArgumentError(f"{target.parent} cannot be written to: give another folder")


def require_no_model(target: Path) -> None:
    """Raise ArgumentError for a model, which no other kind of file should replace."""
    require_target(target)
    if target.exists() and _start(target) == GGUF:
        raise ArgumentError(f"{target} is a model: give another name, it would be replaced")


def _start(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(len(GGUF))


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A path to write to, in a new folder beside `target`; it takes that name on success.

    The folder goes either way, with everything in it. Raises ArgumentError for a target that is no
    plain file or whose folder does not exist.
    """
    require_target(target)
    with TemporaryDirectory(prefix=".unfinished-", dir=target.parent.absolute()) as folder:
        unfinished = Path(folder) / target.name
        yield unfinished
        os.replace(unfinished, target)
