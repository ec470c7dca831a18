"""Scores that have been measured, kept in memory or in a JSON-lines file that outlives the process.

A file starts with a header that says of what its scores are. Each line after it holds the score of
one mask on one chunk, or the tokens of a chunk that the model wrote itself. Lines are written one
by one and forced to the disk, so an interrupted run loses nothing that was measured.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import SelfSpecError
from ..masks.layer_mask import LayerMask
from ..masks.score import Score
from ..util import records
from ..util.closing import Closing
from ..util.files import errors_name, locked

FORMAT = 2
MAX_HEADER = 1 << 20  # bytes; it holds the command line
# What must agree for scores to be comparable, and how to call it.
SAME = {
    "format": "format",
    "build": "library build",
    "fingerprint": "model",
    "text_sha256": "text",
    "seed": "seed",
    "objective": "objective",
    "n_ctx": "chunk size",
    "window": "window",
    "attention": "kind of attention",
}


@dataclass(frozen=True, slots=True)
class ScoreLine:
    """What one mask scored on one chunk."""

    chunk: int
    mask: LayerMask
    score: Score


@dataclass(frozen=True, slots=True)
class TextLine:
    """Token ids of a chunk whose second half the model wrote."""

    chunk: int
    tokens: tuple[int, ...]


def _from_format_1(header: records.Data) -> records.Data:
    """Lines are the same in both formats, headers used other names."""
    former = {"match": "agreement", "ppl": "perplexity"}
    objective = header.get("objective")
    return header | {
        "format": 2,
        "fingerprint": header.get("model_sha256"),
        "objective": former.get(str(objective), objective),
    }


class ResultFileError(SelfSpecError):
    """A result file that cannot be used."""


class Results:
    """Scores by mask and chunk, in memory."""

    def __init__(self) -> None:
        self._scores: dict[tuple[LayerMask, int], Score] = {}
        self._texts: dict[int, tuple[int, ...]] = {}

    def score(self, mask: LayerMask, chunk: int) -> Score | None:
        return self._scores.get((mask, chunk))

    def text(self, chunk: int) -> tuple[int, ...] | None:
        """The tokens of a chunk that the model wrote."""
        return self._texts.get(chunk)

    def add_score(self, mask: LayerMask, chunk: int, score: Score) -> None:
        self._scores[mask, chunk] = score

    def add_text(self, chunk: int, tokens: tuple[int, ...]) -> None:
        self._texts[chunk] = tokens

    def totals(self) -> dict[LayerMask, tuple[int, Score]]:
        """For each mask the number of chunks measured, without gaps, and their common score."""
        totals: dict[LayerMask, tuple[int, Score]] = {}
        for mask, chunk in sorted(self._scores, key=lambda key: key[1]):
            n, score = totals.get(mask, (0, Score()))
            if chunk == n:
                totals[mask] = (n + 1, score + self._scores[mask, chunk])
        return totals


class ResultFile(Results, Closing):
    """Results that are also in a file, to be taken up again later. Use in a ``with`` block.

    header: what the scores are of; must agree in everything that SAME names with that of a file
    that exists. Files of format 1 are taken up, too.

    A file beside it, with ".lock" added to the name, keeps other processes out meanwhile.

    Raises ResultFileError for a file of something else, which is left as it is, a file that another
    process uses, and lines that are no results. A last line cut off in the middle is taken away.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        super().__init__()
        self.path = path
        self._header = {"format": FORMAT, **header}
        self._stack = ExitStack()
        if not path.absolute().parent.is_dir():
            raise ResultFileError(f"{path.absolute().parent} is no folder: make it first")
        if path.exists():
            self._require_ours()  # before anything is written, even a lock beside it
        with ExitStack() as opening:
            opening.enter_context(locked(path, "give another file (out)"))
            self._file = opening.enter_context(path.open("ab+"))
            self._file.seek(0)
            self._take_up(self._file.read())
            self._stack = opening.pop_all()

    def close(self) -> None:
        self._stack.close()

    def add_score(self, mask: LayerMask, chunk: int, score: Score) -> None:
        super().add_score(mask, chunk, score)
        self._append(ScoreLine(chunk, mask, score))

    def add_text(self, chunk: int, tokens: tuple[int, ...]) -> None:
        super().add_text(chunk, tokens)
        self._append(TextLine(chunk, tokens))

    def _append(self, record: object) -> None:
        with errors_name(self.path):
            self._file.write(records.encode(record) + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())

    def _take_up(self, data: bytes) -> None:
        """Read what an earlier run wrote, or start the file."""
        whole, newline, cut_off = data.rpartition(b"\n")
        self._check_start(data[: data.find(b"\n") + 1] or data)
        if cut_off:
            self._file.truncate(len(data) - len(cut_off))
        if not newline:
            self._append(self._header)
            return
        _header, *lines = whole.split(b"\n")
        for number, line in enumerate(lines, 2):
            try:
                self._read(records.parse(line))
            except records.RecordError:
                raise ResultFileError(
                    f"{self.path}, line {number} is no result; remove the line or give another "
                    "file (out)"
                ) from None

    def _require_ours(self) -> None:
        """Raise ResultFileError for a file of something else, which stays as it is."""
        if not self.path.is_file():
            raise ResultFileError(f"{self.path} is no plain file; give another file (out)")
        with self.path.open("rb") as file:
            self._check_start(file.readline(MAX_HEADER))

    def _check_start(self, line: bytes) -> None:
        """Raise ResultFileError unless a file that begins with this line has results like ours.
        Only a header can be cut off in the middle of the first line."""
        head = records.encode({"format": FORMAT})[:-1]
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
        if header["format"] == 1:
            header = _from_format_1(header)
        for key, what in SAME.items():
            if header.get(key) != self._header.get(key):
                raise ResultFileError(
                    f"{self.path} has results of another {what} ({_short(header.get(key))}, not "
                    f"{_short(self._header.get(key))}); give another file (out)"
                )

    def _read(self, data: Any) -> None:
        if isinstance(data, dict) and "tokens" in data:
            text = records.convert(data, TextLine)
            super().add_text(text.chunk, text.tokens)
        else:
            line = records.convert(data, ScoreLine)
            super().add_score(line.mask, line.chunk, line.score)

    def _foreign(self, why: str) -> ResultFileError:
        return ResultFileError(f"{self.path} is no file of results: {why}; give another file (out)")


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 16 else f"{text[:12]}..."
