"""Snapshots of sequences, kept in RAM beyond the context, and in a folder for later runs: a prompt
that continues one is not read again. For the engine's thread."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import queue
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ...errors import ArgumentError
from ...runtime.sequence_snapshot import SavedSequence
from . import snapshot_file
from .snapshot_file import Compatibility

N_TOKENS_MIN = 64  # tokens; shorter prompts are read as quickly
SUFFIX = ".sequence"
MAX_BYTES = 16 << 30  # of all files of a folder
FULL = (errno.ENOSPC, errno.EDQUOT)  # errors of a disk without room
N_WAITING = 4  # snapshots that may wait to be written, in RAM

log = logging.getLogger(__name__)

K = TypeVar("K", int, Path)


class Prefixes:
    """Snapshots; the least recently used make room for new ones.

    max_bytes: of all in RAM, 0 for none. files: those on disk; None: none.
    """

    def __init__(self, max_bytes: int, files: PrefixFiles | None = None) -> None:
        self._max_bytes = max_bytes
        self._files = files
        self._kept: dict[int, SavedSequence] = {}  # by number, least recently used first
        self._n_added = 0
        self.n_restored = 0  # completions that began with a snapshot

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def n_bytes(self) -> int:
        """The bytes of all snapshots in RAM."""
        return sum(each.n_bytes for each in list(self._kept.values()))

    @property
    def has_files(self) -> bool:
        return self._files is not None

    def is_worth(self, n_tokens: int) -> bool:
        """Return whether to save a sequence of this length."""
        return n_tokens >= N_TOKENS_MIN and (self._max_bytes > 0 or self.has_files)

    def holds(self, tokens: Sequence[int]) -> bool:
        """Return whether a snapshot that begins with all of these tokens is in RAM or on disk."""
        given = np.array(tokens, np.int32)
        in_ram = any(_begins(each.tokens, given) for each in self._kept.values())
        return in_ram or (self._files is not None and self._files.holds(given))

    def add(self, saved: SavedSequence, *, waits: bool = False) -> None:
        """Keep a snapshot, in place of its beginnings. waits: whether to wait where many others are
        still being written."""
        if self._files is not None:
            self._files.add(saved, waits=waits)
        for number in _beginnings(self._kept, saved):
            del self._kept[number]
        if saved.n_bytes > self._max_bytes:
            return
        self._n_added += 1
        self._kept[self._n_added] = saved
        while self.n_bytes > self._max_bytes:
            del self._kept[next(iter(self._kept))]

    def longest(self, prompt: Sequence[int], n_least: int) -> SavedSequence | None:
        """Return the snapshot of which a prompt can use the most tokens, more than n_least; None
        without one."""
        given = np.array(prompt, np.int32)
        best, n_best = _longest(self._kept, given, max(n_least, N_TOKENS_MIN))
        if self._files is not None and (found := self._files.longest(given, n_best)) is not None:
            return found
        if best is None:
            return None
        self._kept[best] = self._kept.pop(best)  # now the last one
        return self._kept[best]

    def close(self) -> None:
        """Finish writing files."""
        if self._files is not None:
            self._files.close()


class PrefixFiles:
    """The files of one folder, which is made if it is missing. Files are written in a thread of
    their own; the least recently used ones are removed when they exceed max_bytes, or when the disk
    is full.

    Files of other models and builds stay where they are. Damaged ones are ignored, with a line in
    the log. Raises ArgumentError for a folder that cannot be used.
    """

    def __init__(self, folder: Path, kind: Compatibility, max_bytes: int = MAX_BYTES) -> None:
        self._folder, self._kind, self._max_bytes = folder, kind, max_bytes
        # without their states; the engine's thread and the one that writes use copies of it
        self._found: dict[Path, SavedSequence] = {}
        snapshot_file.make_folder(folder)
        for path in _sizes(folder):
            self._look_at(path)
        self._waiting: queue.Queue[SavedSequence | None] = queue.Queue(N_WAITING)
        self._thread = threading.Thread(target=self._write_all, name="pyselfspec files")
        self._thread.start()

    def _look_at(self, path: Path) -> None:
        try:
            outline = snapshot_file.read(path, self._kind, outline=True)
        except (ArgumentError, OSError) as error:
            log.warning("%s; it is ignored", error)
            return
        if outline is not None:
            self._found[path] = outline

    def holds(self, tokens: NDArray[np.int32]) -> bool:
        """Return whether a file begins with all of these tokens."""
        return any(_begins(each.tokens, tokens) for each in self._found.copy().values())

    def add(self, saved: SavedSequence, *, waits: bool = False) -> None:
        """Write a snapshot to a file, soon. If many wait already, it is not written, or this call
        waits for them."""
        try:
            self._waiting.put(saved, block=waits)
        except queue.Full:
            log.warning("a snapshot is not written to %s: others still are", self._folder)

    def longest(self, prompt: NDArray[np.int32], n_least: int) -> SavedSequence | None:
        """Return the snapshot of which a prompt can use the most tokens, more than n_least."""
        while (path := _longest(self._found.copy(), prompt, n_least)[0]) is not None:
            try:
                saved = snapshot_file.read(path, self._kind)
                with suppress(FileNotFoundError):  # another server has removed it
                    os.utime(path)
                return saved
            except (ArgumentError, OSError) as error:
                log.warning("%s; it is ignored", error)
                self._found.pop(path, None)
        return None

    def close(self) -> None:
        """Write what waits."""
        self._waiting.put(None)
        self._thread.join()

    def _write_all(self) -> None:
        while (saved := self._waiting.get()) is not None:
            hashed = hashlib.sha256(repr(self._kind).encode() + saved.tokens.tobytes())
            path = self._folder / f"{hashed.hexdigest()[:32]}{SUFFIX}"
            try:
                try:
                    snapshot_file.write(path, saved, self._kind)
                except OSError as error:
                    if error.errno not in FULL or not self._remove_oldest(saved.n_bytes):
                        raise
                    snapshot_file.write(path, saved, self._kind)
                self._look_at(path)
                for each in _beginnings(self._found.copy(), saved):
                    if each != path:
                        self._remove(each)
                self._remove_oldest(sum(_sizes(self._folder).values()) - self._max_bytes, but=path)
            except Exception as error:  # a full disk must not end the thread
                log.warning("a snapshot could not be written to %s: %s", self._folder, error)

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


def _begins(tokens: NDArray[np.int32], beginning: NDArray[np.int32]) -> bool:
    n = len(beginning)
    return len(tokens) >= n and np.array_equal(tokens[:n], beginning)


def _beginnings(kept: Mapping[K, SavedSequence], saved: SavedSequence) -> list[K]:
    """Return the keys of snapshots that another makes superfluous: it can be cut to each."""
    return [
        key for key, each in kept.items() if saved.can_cut and _begins(saved.tokens, each.tokens)
    ]


def _longest(
    kept: Mapping[K, SavedSequence], prompt: NDArray[np.int32], n_least: int
) -> tuple[K | None, int]:
    """Return the key of the snapshot of which a prompt can use the most tokens, and their number;
    None and n_least where no snapshot has more."""
    found = {key: each.n_usable(prompt) for key, each in kept.items()}
    best = max(found, key=found.__getitem__, default=None)
    return (None, n_least) if best is None or found[best] <= n_least else (best, found[best])
