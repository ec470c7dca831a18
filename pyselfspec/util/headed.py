"""JSON-lines files that outlive the process: a header that says of what the lines are, then one
line for each thing that was measured.

Lines are forced to the disk one by one, so an interrupted run loses nothing that was measured.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ..errors import SelfSpecError
from . import records
from .closing import Closing
from .files import errors_name, locked

MAX_HEADER = 1 << 20  # bytes; it holds the command line


class ResultFileError(SelfSpecError):
    """A result file that cannot be used."""


class HeadedLines(Closing):
    """A file of results, to be taken up again later. Use in a ``with`` block, and read ``lines``
    before anything is appended.

    header: what the results are of, with its "format".
    same: what of it must agree with the header of a file that exists, and how to call it.
    older: by earlier format, what turns its header into one of today.

    A file beside it, with ".lock" added to the name, keeps other processes out meanwhile.

    Raises ResultFileError for a file of something else, which is left as it is, and for a file that
    another process uses. A last line cut off in the middle is taken away.
    """

    def __init__(
        self,
        path: Path,
        header: Mapping[str, Any],
        same: Mapping[str, str],
        older: records.Older | None = None,
    ) -> None:
        self.path = path
        self._header = records.parse(records.encode(header))  # as it is read back
        self._same = same
        self._older = older or {}
        self._stack = ExitStack()
        if not path.absolute().parent.is_dir():
            raise ResultFileError(f"{path.absolute().parent} is no folder: make it first")
        if path.exists():
            self._require_ours()  # before anything is written, even a lock beside it
        with ExitStack() as opening:
            opening.enter_context(locked(path, "give another file (out)"))
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
        """What an earlier run wrote, with the numbers of the lines."""
        return enumerate(self._lines, 2)

    def no_result(self, number: int) -> ResultFileError:
        """For a line that holds none."""
        return ResultFileError(
            f"{self.path}, line {number} is no result; remove the line or give another file (out)"
        )

    def _take_up(self, data: bytes) -> list[bytes]:
        """The lines that an earlier run wrote; starts the file where there are none."""
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
            raise ResultFileError(f"{self.path} is no plain file; give another file (out)")
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
        number = header["format"]
        if isinstance(number, int) and number in self._older:
            header = self._older[number](header)
        for key, what in self._same.items():
            if header.get(key) != self._header.get(key):
                theirs, ours = _short(header.get(key)), _short(self._header.get(key))
                differ = "" if theirs == ours else f" ({theirs}, not {ours})"
                raise ResultFileError(
                    f"{self.path} has results of another {what}{differ}; give another file (out)"
                )

    def _foreign(self, why: str) -> ResultFileError:
        return ResultFileError(f"{self.path} is no file of results: {why}; give another file (out)")


def _short(value: object) -> str:
    """In a sentence; of records that have names, these."""
    if isinstance(value, list):
        return ", ".join(
            str(each["name"]) if isinstance(each, dict) and "name" in each else _short(each)
            for each in value
        )
    text = str(value)
    return text if len(text) <= 16 else f"{text[:12]}..."
