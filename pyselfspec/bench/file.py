"""A file of results that a benchmark adds to, run by run, and can be taken up again."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from ..util import records
from ..util.closing import Closing
from ..util.headed import HeadedLines
from .types import SAME, Results, Run, Setup, Widths


def line_of(text: bytes | str) -> Run | Widths:
    """What a line behind the setup holds. Raises RecordError for anything else."""
    data = records.parse(text)
    if isinstance(data, dict) and "costs" in data:
        return records.convert(data, Widths)
    return records.convert(data, Run)


def results_of(text: str) -> Results:
    """What the text of a file holds, or of the format "jsonl". Raises RecordError for lines that
    are none."""
    head, *lines = text.splitlines()
    found = Results(records.decode(head, Setup))
    for line in lines:
        found = found.with_line(line_of(line))
    return found


class BenchFile(Closing):
    """Use in a ``with`` block; see `HeadedLines` for what it raises. found: what an earlier
    benchmark of the same setup has left there."""

    def __init__(self, path: Path, setup: Setup) -> None:
        self.found = Results(setup)
        with ExitStack() as opening:
            self._file = opening.enter_context(HeadedLines(path, records.to_dict(setup), SAME))
            for number, line in self._file.lines():
                try:
                    self.found = self.found.with_line(line_of(line))
                except records.RecordError:
                    raise self._file.no_result(number) from None
            opening.pop_all()

    def close(self) -> None:
        self._file.close()

    def add(self, record: Run | Widths) -> None:
        """Force it to the disk."""
        self._file.append(record)
