"""JSON-lines files that a later run can continue: a header that describes the run, then one line
for each measurement.

Every line is synced to disk, so an interrupted run loses no measurement.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ..errors import SelfSpecError
from . import records
from .closable import Closing
from .files import errors_name, locked

OTHER_FILE = "give another file (results, --results)"
MAX_HEADER = 1 << 20  # bytes; it holds the command line


class ResultFileError(SelfSpecError):
    """A file of results that cannot be used."""


class JsonlLog(Closing):
    """A file of results that a later run can continue. Use it in a ``with`` block, and read
    ``lines`` before anything is appended.

    header: the description of the run, with its "format".
    same: the keys that must agree with the header of an existing file, and their names in messages.

    Meanwhile a file beside it, with ".lock" added to its name, locks it against other processes.

    Raises ResultFileError for a file of something else, which is not changed, and for a file that
    another process uses. A last line that is cut off is removed.
    """

    def __init__(self, path: Path, header: Mapping[str, Any], same: Mapping[str, str]) -> None:
        self.path = path
        self._header = records.parse(records.encode(header))  # as it is read back
        self._same = same
        self._stack = ExitStack()
        if not path.absolute().parent.is_dir():
            raise ResultFileError(f"{path.absolute().parent} is no folder: make it first")
        if path.exists():
            self._require_ours()  # before anything is written, even a lock beside it
        with ExitStack() as opening:
            opening.enter_context(locked(path, OTHER_FILE))
            # what a full disk left in the buffer is written again when the file is closed
            opening.enter_context(errors_name(path))
            self._file = opening.enter_context(path.open("ab+"))
            self._file.seek(0)
            self._lines = self._take_up(self._file.read())
            self._stack = opening.pop_all()

    def close(self) -> None:
        self._stack.close()

    def append(self, record: object) -> None:
        with errors_name(self.path):
            self._file.write(records.encode(record) + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Return the lines that an earlier run wrote, with their numbers."""
        return enumerate(self._lines, 2)

    def no_result(self, number: int) -> ResultFileError:
        """Return the error for a line that holds no result."""
        return ResultFileError(
            f"{self.path}, line {number} is no result; remove the line or {OTHER_FILE}"
        )

    def _take_up(self, data: bytes) -> list[bytes]:
        """Return the lines that an earlier run wrote; write the header to an empty file."""
        whole, newline, cut_off = data.rpartition(b"\n")
        self._check_start(data[: data.find(b"\n") + 1] or data)
        if cut_off:
            self._file.truncate(len(data) - len(cut_off))
        if not newline:
            self.append(self._header)
            return []
        _header, *lines = whole.split(b"\n")
        return lines

    def _require_ours(self) -> None:
        """Raise ResultFileError for a file of something else, which stays as it is."""
        if not self.path.is_file():
            raise ResultFileError(f"{self.path} is no plain file; {OTHER_FILE}")
        with self.path.open("rb") as file:
            self._check_start(file.readline(MAX_HEADER))

    def _check_start(self, line: bytes) -> None:
        """Raise ResultFileError unless a file that begins with this line has results like ours.
        Only a header can be cut off in the middle of the first line."""
        head = records.encode({"format": self._header["format"]})[:-1]
        if line.endswith(b"\n"):
            self._check_header(line)
        elif len(line) == MAX_HEADER or not line.startswith(head[: len(line)]):
            raise self._foreign("it does not begin with a header")

    def _check_header(self, line: bytes) -> None:
        try:
            header = records.parse(line)
        except records.RecordError:
            header = None
        if not isinstance(header, dict) or "format" not in header:
            raise self._foreign("it does not begin with a header")
        for key, what in self._same.items():
            if header.get(key) != self._header.get(key):
                theirs, ours = _short(header.get(key)), _short(self._header.get(key))
                differ = "" if theirs == ours else f" ({theirs}, not {ours})"
                raise ResultFileError(
                    f"{self.path} has results of another {what}{differ}; {OTHER_FILE}"
                )

    def _foreign(self, why: str) -> ResultFileError:
        return ResultFileError(f"{self.path} is no file of results: {why}; {OTHER_FILE}")


def _short(value: object) -> str:
    """Return a value as a part of a sentence; records with names as their names."""
    if isinstance(value, list):
        return ", ".join(
            str(each["name"]) if isinstance(each, dict) and "name" in each else _short(each)
            for each in value
        )
    text = str(value)
    return text if len(text) <= 16 else f"{text[:12]}..."
