"""Paths of pictures in a message, as terminals write those of files that are dropped on them."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp")
_WORD = re.compile(r"""(?<!\S)(?:'([^'\n]+)'|"([^"\n]+)"|((?:\\.|[^\s\\])+))""")


def picture_paths(text: str) -> list[Path]:
    """Return the files of pictures that a text names by paths with a slash: in quotes, or with a
    backslash before each space."""
    return [path for match in _WORD.finditer(text) for path in _files(*match.groups())[:1]]


def _files(single: str | None, double: str | None, bare: str | None) -> list[Path]:
    word = single or double or (bare or "").rstrip(".,:;!?)")
    found = []
    for name in (word, re.sub(r"\\(.)", r"\1", word)):
        is_path = re.search(r"[/\\]", name) and name.lower().endswith(SUFFIXES)
        with suppress(OSError, ValueError, RuntimeError):  # no name of a file
            if is_path and (path := Path(name).expanduser()).is_file():
                found.append(path)
    return found
