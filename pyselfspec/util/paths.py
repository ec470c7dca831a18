"""Every place outside the working folder that the package reads or writes."""

from __future__ import annotations

import os
import re
from pathlib import Path

_SHIPPED = Path(__file__).parents[1] / "data"
DEMO = _SHIPPED / "demo.gguf"  # the bundled model; DEMO.md beside it is its card
SAMPLE_TEXT = _SHIPPED / "sample.txt"
REQUESTS = _SHIPPED / "requests.toml"  # prompts of tune, if none are given
PROMPTS = _SHIPPED / "prompts.jsonl"  # prompts of benchmarks, if none are given
REPORT = _SHIPPED / "bench.html"  # template of their report
KINDS = ("data", "cache")  # of the user's folders
_PASSWORD = re.compile(r"(://[^/@\s:]*):[^/\s]*@")  # in a URL


def shown(name: str) -> str:
    """A file's name, which may be any bytes, as text that every file and terminal takes."""
    return os.fsencode(name).decode(errors="replace")


def without_password(text: str) -> str:
    """Return a text without the passwords in its URLs, for messages and files.

    >>> without_password("mysql://me:secret@localhost/db")
    'mysql://me:***@localhost/db'
    """
    return _PASSWORD.sub(r"\1:***@", text)


def on_one_line(message: str) -> str:
    """A message that may quote a file: what cannot be printed is escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in shown(message))


def data(name: str) -> Path:
    """Return a folder of the user's for what is kept between runs; it may not exist yet."""
    return _user_folder("data") / name


def cache(name: str) -> Path:
    """Return a folder of the user's for what can be made again; it may not exist yet."""
    return _user_folder("cache") / name


def elsewhere(path: str | bytes | int) -> str:
    """Return a hint that names the environment variable with which a path that cannot be written
    moves elsewhere, or "" where none moves it."""
    if isinstance(path, int):
        return ""
    there = Path(os.fsdecode(path))
    is_missing = not os.path.exists(there)
    names = [
        _variable(kind)
        for kind in KINDS
        for folder in [_user_folder(kind)]
        if there.is_relative_to(folder) or (is_missing and folder.is_relative_to(there))
    ]
    if not names:
        return ""
    return f"; set {' and '.join(names)} to a folder that can be written and has room"


def _variable(kind: str) -> str:
    return f"XDG_{kind.upper()}_HOME"


def _user_folder(kind: str) -> Path:
    """XDG_DATA_HOME and XDG_CACHE_HOME come first on every system."""
    if folder := os.environ.get(_variable(kind), "").strip():
        return Path(folder) / "pyselfspec"
    import platformdirs

    find = {"data": platformdirs.user_data_path, "cache": platformdirs.user_cache_path}[kind]
    return find("pyselfspec", appauthor=False)
