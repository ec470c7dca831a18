"""``lmstudio:USER/REPO[:FILE]``: GGUF files that LM Studio has downloaded, read where they are."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ..errors import ArgumentError
from . import _repositories

PREFIX = "lmstudio:"
HOMES = ("~/.lmstudio/models", "~/.cache/lm-studio/models")  # the second one of old versions


def is_name(text: str) -> bool:
    return text.startswith(PREFIX)


def find(name: str) -> Path | None:
    return _repositories.find(_folders(), _repositories.parse(PREFIX, name))


def installed() -> Iterator[tuple[str, Path]]:
    return _repositories.named(PREFIX, _folders())


def how_to_get(name: str) -> str:
    return f"lms get https://huggingface.co/{_repositories.parse(PREFIX, name).repo}"


def removable(name: str) -> Path:
    raise ArgumentError(f"{name} is in LM Studio's folder; remove it on its page My Models")


def _folders() -> Iterator[_repositories.Repository]:
    """Yield the folders of repositories, with their GGUF files by name."""
    for home in HOMES:
        models = Path(os.path.expanduser(home))
        for folder in sorted(models.glob("*/*")):
            files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*.gguf")}
            yield folder.relative_to(models).as_posix(), files
