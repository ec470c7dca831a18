"""Files of results, to which a benchmark appends each run and which it can continue."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from ..util import records
from ..util.closable import Closing
from ..util.jsonl_log import JsonlLog
from .types import MUST_MATCH, Results, Run, Setup, Widths


def parse_line(text: bytes | str) -> Run | Widths:
    """Return the record of a line after the setup. Raises RecordError for any other line."""
    data = records.parse(text)
    if isinstance(data, dict) and "costs" in data:
        return records.convert(data, Widths)
    return records.convert(data, Run)


class BenchFile(Closing):
    """A file of results, for a ``with`` block. found: results of an earlier benchmark with the same
    setup. Raises the errors of `JsonlLog`."""

    def __init__(self, path: Path, setup: Setup) -> None:
        self.found = Results(setup)
        with ExitStack() as opening:
            self._file = opening.enter_context(JsonlLog(path, records.to_dict(setup), MUST_MATCH))
            for number, line in self._file.lines():
                try:
                    self.found = self.found.with_line(parse_line(line))
                except records.RecordError:
                    raise self._file.no_result(number) from None
            opening.pop_all()

    def close(self) -> None:
        self._file.close()

    def add(self, record: Run | Widths) -> None:
        """Append a record and force it to the disk."""
        self._file.append(record)
