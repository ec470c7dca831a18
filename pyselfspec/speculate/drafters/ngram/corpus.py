"""Copies from the files of a folder, such as the sources that an agent edits.

Files are tokenized once and again when their modification time changes. One index holds all of
them.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ....errors import ArgumentError, SelfSpecError
from ....runtime.model import Model
from ....util.closable import Closing
from .index import BETWEEN, NgramIndex

FIRST = 3  # index of the shortest length that is looked up: shorter ones match by chance
N_FILE = 1 << 18  # bytes of a file at most
N_ALL = 1 << 22  # bytes of all files; of more, the latest are taken
N_FILES = 20_000
PERIOD_S = 5.0  # between two looks at the folder
GIT_S = 10.0  # for git to list files
SKIPPED = frozenset({"__pycache__", "node_modules", "target", "build", "dist", "venv"})


def list_files(folder: Path) -> list[Path]:
    """Return the files of a folder, without files that git ignores; without git, without hidden
    ones and folders of what is built."""
    command = ["git", "-C", str(folder), "ls-files", "-z", "-co", "--exclude-standard"]
    try:
        done = subprocess.run(command, capture_output=True, check=True, timeout=GIT_S)
    except (OSError, subprocess.SubprocessError):
        return list(_walk(folder))[:N_FILES]
    names = done.stdout.split(b"\0")[:N_FILES]
    return [folder / os.fsdecode(name) for name in names if name]


def _walk(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f not in SKIPPED)
        yield from (Path(root) / name for name in sorted(names) if not name.startswith("."))


@dataclass(frozen=True, slots=True)
class _File:
    """A file that was read. stamp: its modification time in nanoseconds and its size."""

    stamp: tuple[int, int]
    tokens: array[int]


class Corpus(Closing):
    """The files of a folder, as tokens of a model's vocabulary. Changed files are read again in a
    thread of their own.

    Raises ArgumentError for a folder that is not there.
    """

    def __init__(self, folder: Path, model: Model) -> None:
        if not folder.is_dir():
            raise ArgumentError(f"{folder} is no folder; give a folder of files to copy from")
        self._folder, self._model = folder, model
        self._files: dict[Path, _File] = {}
        self.n_tokens = 0
        self.index = NgramIndex(0, FIRST)
        self._looked_at = 0.0
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self.refresh()

    def refresh_soon(self) -> None:
        """Look for changed files in another thread, if the last time was a while ago."""
        is_busy = self._thread is not None and self._thread.is_alive()
        if is_busy or time.monotonic() - self._looked_at < PERIOD_S:
            return
        self._looked_at = time.monotonic()
        self._thread = threading.Thread(target=self.refresh, name="pyselfspec corpus", daemon=True)
        self._thread.start()

    def refresh(self) -> None:
        """Read new and changed files, and forget removed ones."""
        self._looked_at = time.monotonic()
        stamps = sorted(self._stamps(), key=lambda each: each[1])
        n_left, chosen = N_ALL, []
        for path, stamp in reversed(stamps):  # the latest first
            n_left -= stamp[1]
            if n_left < 0:
                break
            chosen.append((path, stamp))
        files: dict[Path, _File] = {}
        for path, stamp in reversed(chosen):
            if self._is_closed:
                return
            known = self._files.get(path)
            files[path] = known if known and known.stamp == stamp else self._read(path, stamp)
        if files != self._files:
            tokens = array("i")
            for each in files.values():
                tokens += each.tokens
                tokens.append(BETWEEN)
            index = NgramIndex(len(tokens), FIRST)
            index.extend(tokens)
            self.n_tokens, self.index, self._files = len(tokens), index, files

    def _stamps(self) -> Iterator[tuple[Path, tuple[int, int]]]:
        for path in list_files(self._folder):
            try:
                stat = path.lstat()
            except OSError:
                continue
            if path.is_file() and not path.is_symlink() and 0 < stat.st_size <= N_FILE:
                yield path, (stat.st_mtime_ns, stat.st_size)

    def _read(self, path: Path, stamp: tuple[int, int]) -> _File:
        """Return a file; without tokens if it is not text."""
        try:
            data = path.read_bytes()[:N_FILE]
            text = "" if b"\0" in data else data.decode()
            tokens = self._model.tokenize(text, add_special=False, parse_special=False)
        except (OSError, UnicodeDecodeError, SelfSpecError):
            tokens = []
        return _File(stamp, array("i", tokens))

    def close(self) -> None:
        self._is_closed = True
        if self._thread is not None:
            self._thread.join()
