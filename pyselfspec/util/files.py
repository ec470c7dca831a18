"""Files that appear under their name only when they are complete."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import BinaryIO

from ..errors import ArgumentError

GGUF = b"GGUF"  # the first bytes of a model
UNFINISHED = ".unfinished-"  # prefix of folders of files that are being written
LOCK = ".lock"  # name of the lock file in such a folder, and suffix of those beside files
READ_BYTES = 1 << 20
YOUNG_S = 60.0  # seconds in which a new lock file may not be locked yet


def read_limited(file: BinaryIO, n_bytes: int) -> bytes:
    """Return all bytes of a file of at most n_bytes. Raises ArgumentError for longer and endless
    files."""
    data = bytearray()  # in blocks: one read would allocate all that memory at once
    while block := file.read(min(READ_BYTES, n_bytes + 1 - len(data))):
        data += block
    if len(data) > n_bytes:
        raise ArgumentError(f"more than {n_bytes >> 20} MiB")
    return bytes(data)


def require_target(target: Path) -> None:
    """Raise ArgumentError for a path that `replacing` could not replace."""
    if target.exists() and not target.is_file():
        raise ArgumentError(f"{target} is no plain file: give the name of a file to write")
    if not target.parent.is_dir():
        raise ArgumentError(f"{target.parent} is no folder: make it first")
    if not os.access(target.parent, os.W_OK):
        raise ArgumentError(f"{target.parent} cannot be written to: give another folder")


def require_space(target: Path, n_bytes: int) -> None:
    """Raise OSError if a model of this size does not fit on the disk of a file."""
    free = shutil.disk_usage(target.parent).free
    if n_bytes > free:
        reason = f"the model has {n_bytes} bytes, but only {free} are free on the disk"
        raise OSError(errno.ENOSPC, reason, str(target))


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
    """Yield a path to write to, in a new folder beside `target`; on success the file replaces
    `target`.

    The folder is removed in any case; a folder of a killed process is removed when the next file is
    written beside it. Raises ArgumentError for a target that is no plain file or whose
    folder does not exist. OSErrors that name no file name this one.
    """
    from filelock import FileLock

    require_target(target)
    beside = target.parent.absolute()
    _remove_abandoned(beside)
    with (
        TemporaryDirectory(prefix=UNFINISHED, dir=beside) as folder,
        FileLock(Path(folder) / LOCK),
        errors_name(target),
    ):
        unfinished = Path(folder) / target.name
        yield unfinished
        os.replace(unfinished, target)


def _remove_abandoned(beside: Path) -> None:
    """Remove folders of `replacing` whose process was killed."""
    from filelock import FileLock, Timeout

    for folder in beside.glob(f"{UNFINISHED}*/"):
        with suppress(OSError, Timeout):  # another process may be removing it, or own it
            lock = folder / LOCK
            if time.time() - lock.stat().st_mtime > YOUNG_S:
                with FileLock(lock, timeout=0):
                    _empty(folder, lock)
                shutil.rmtree(folder)  # Windows does not remove an open file, such as the lock


def _empty(folder: Path, kept: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path != kept:
            path.unlink()


@contextmanager
def errors_name(path: Path) -> Iterator[None]:
    """Set this file in OSErrors without a file name, such as those of a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def locked(path: Path, fix: str, wait_s: float = 0.0) -> Iterator[None]:
    """Lock a file against other processes, with a file beside it with ".lock" added to its name.

    fix: what to do instead of waiting, for the error's message.
    wait_s: seconds to wait for a process that keeps it.
    Raises ArgumentError when another process keeps it, where no lock can be made, and for what
    `replacing` could not replace.
    """
    from filelock import FileLock, Timeout

    require_target(path)
    lock = FileLock(f"{path}.lock", timeout=wait_s)
    try:
        with suppress(Timeout):
            lock.acquire()
        if not lock.is_locked and not os.path.exists(lock.lock_file):
            TemporaryFile(dir=path.parent).close()  # says why no file can be made, as in /proc
    except OSError as error:
        reason = error.strerror or error
        raise ArgumentError(f"{path} cannot be locked ({reason}); {fix}") from error
    if not lock.is_locked:
        raise ArgumentError(f"{path} is in use by another process; wait for it or {fix}")
    try:
        yield
    finally:
        with suppress(OSError):  # some systems do not remove open files
            os.unlink(lock.lock_file)  # while it is locked, so that no other process uses it
        lock.release()
