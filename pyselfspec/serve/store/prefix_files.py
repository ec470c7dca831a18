"""Saved sequences in a folder, for later runs of the same model and build."""

from __future__ import annotations

import errno
import hashlib
import logging
import queue
import threading
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import ArgumentError
from ...runtime.saved import SavedSequence, n_usable
from . import saved_file
from .saved_file import Header, Kind

SUFFIX = ".sequence"
MAX_BYTES = 16 << 30  # of all files of a folder
FULL = (errno.ENOSPC, errno.EDQUOT)  # errors of a disk without room
N_WAITING = 4  # sequences that may wait to be written, in RAM

log = logging.getLogger(__name__)


class PrefixFiles:
    """The files of one folder, which is made if it is missing. Files are written in a thread of
    their own; the least recently used ones are removed when they exceed max_bytes, or when the disk
    is full.

    Files of other models and builds stay where they are. Damaged ones are ignored, with a line in
    the log. Raises ArgumentError for a folder that cannot be used.
    """

    def __init__(self, folder: Path, kind: Kind, max_bytes: int = MAX_BYTES) -> None:
        self._folder, self._kind, self._max_bytes = folder, kind, max_bytes
        self._lock = threading.Lock()  # guards the next field
        self._found: dict[Path, tuple[Header, NDArray[np.int32]]] = {}
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            paths = sorted(folder.glob(f"*{SUFFIX}"), key=lambda path: path.stat().st_mtime)
        except OSError as error:
            raise ArgumentError(f"{folder} cannot be used: {error.strerror or error}") from None
        for path in paths:
            self._look_at(path)
        self._waiting: queue.Queue[SavedSequence | None] = queue.Queue(N_WAITING)
        self._thread = threading.Thread(target=self._write_all, name="pyselfspec files")
        self._thread.start()

    def _look_at(self, path: Path) -> None:
        try:
            header, tokens = saved_file.read_header(path)
        except (ArgumentError, OSError) as error:
            log.warning("%s; it is ignored", error)
            return
        if header.kind == self._kind:
            with self._lock:
                self._found[path] = header, tokens

    def holds(self, tokens: NDArray[np.int32]) -> bool:
        """Return whether a file begins with all of these tokens."""
        n = len(tokens)
        with self._lock:
            found = [each for _, each in self._found.values()]
        return any(len(each) >= n and np.array_equal(each[:n], tokens) for each in found)

    def add(self, saved: SavedSequence, *, waits: bool = False) -> None:
        """Write a sequence to a file, soon. If many wait already, it is not written, or this call
        waits for them."""
        try:
            self._waiting.put(saved, block=waits)
        except queue.Full:
            log.warning("a text is not written to %s: others still are", self._folder)

    def longest(self, prompt: NDArray[np.int32], n_least: int) -> SavedSequence | None:
        """Return the sequence of which a prompt can use the most tokens, more than n_least."""
        while True:
            with self._lock:
                found = {path: _n_usable(*each, prompt) for path, each in self._found.items()}
            path = max(found, key=found.__getitem__, default=None)
            if path is None or found[path] <= n_least:
                return None
            try:
                saved, _ = saved_file.read(path, self._kind)
                path.touch()
                return saved
            except (ArgumentError, OSError) as error:
                log.warning("%s; it is ignored", error)
                with self._lock:
                    self._found.pop(path, None)

    def close(self) -> None:
        """Write what waits."""
        self._waiting.put(None)
        self._thread.join()

    def _write_all(self) -> None:
        while (saved := self._waiting.get()) is not None:
            try:
                self._write(saved)
            except Exception as error:  # a full disk must not end the thread
                log.warning("a text could not be written to %s: %s", self._folder, error)

    def _write(self, saved: SavedSequence) -> None:
        hashed = hashlib.sha256(repr(self._kind).encode() + saved.tokens.tobytes())
        path = self._folder / f"{hashed.hexdigest()[:32]}{SUFFIX}"
        try:
            saved_file.write(path, saved, self._kind)
        except OSError as error:
            if error.errno not in FULL or not self._remove_oldest(saved.n_bytes):
                raise
            saved_file.write(path, saved, self._kind)
        self._look_at(path)
        self._remove_beginnings(path, saved)
        self._remove_oldest(sum(_sizes(self._folder).values()) - self._max_bytes, but=path)

    def _remove_beginnings(self, path: Path, saved: SavedSequence) -> None:
        with self._lock:
            found = {each: tokens for each, (_, tokens) in self._found.items() if each != path}
        for each, tokens in found.items():
            n = len(tokens)
            if saved.can_cut and n < len(saved.tokens) and (saved.tokens[:n] == tokens).all():
                self._remove(each)

    def _remove_oldest(self, n_bytes: int, but: Path | None = None) -> bool:
        """Remove files of any model, the least recently used first, of this many bytes together;
        none if there are not as many. Return whether there are."""
        sizes = _sizes(self._folder)
        if sum(sizes.values()) < n_bytes:
            return False
        for path, size in sizes.items():
            if n_bytes > 0 and path != but:
                self._remove(path)
                n_bytes -= size
        return True

    def _remove(self, path: Path) -> None:
        with self._lock:
            self._found.pop(path, None)
        path.unlink(missing_ok=True)


def _sizes(folder: Path) -> dict[Path, int]:
    """Return the bytes of each file of a folder, the least recently used first."""
    found = {}
    for path in folder.glob(f"*{SUFFIX}"):
        with suppress(FileNotFoundError):  # another server has removed it
            found[path] = path.stat()
    oldest_first = sorted(found, key=lambda path: found[path].st_mtime)
    return {path: found[path].st_size for path in oldest_first}


def _n_usable(header: Header, tokens: NDArray[np.int32], prompt: NDArray[np.int32]) -> int:
    """Return how many tokens of a prompt a file has."""
    return n_usable(tokens, prompt, [stop for stop, _ in header.stops], can_cut=header.can_cut)
