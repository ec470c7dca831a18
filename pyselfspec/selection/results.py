"""Measured scores, in memory or in a JSON-lines file.

The first line of a file is a header with model, text and settings. Each other line has the score of
one mask on one chunk, or the tokens of a chunk that the model generated. Every line is flushed to
disk, so an interrupted run loses no score.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..masks.layer_mask import LayerMask
from ..masks.score import Score
from ..util import records
from ..util.closable import Closing
from ..util.jsonl_log import JsonlLog

FORMAT = 1
# Header fields that must be equal for scores to be comparable, with their names in messages.
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
    """The score of one mask on one chunk."""

    chunk: int
    mask: LayerMask
    score: Score


@dataclass(frozen=True, slots=True)
class TextLine:
    """Token ids of a chunk whose second half the model generated."""

    chunk: int
    tokens: tuple[int, ...]


class Results:
    """Scores by mask and chunk, in memory."""

    def __init__(self) -> None:
        self._scores: dict[tuple[LayerMask, int], Score] = {}
        self._texts: dict[int, tuple[int, ...]] = {}

    def score(self, mask: LayerMask, chunk: int) -> Score | None:
        return self._scores.get((mask, chunk))

    def text(self, chunk: int) -> tuple[int, ...] | None:
        """Return the tokens of a chunk that the model generated, None if there are none."""
        return self._texts.get(chunk)

    def add_score(self, mask: LayerMask, chunk: int, score: Score) -> None:
        self._scores[mask, chunk] = score

    def add_text(self, chunk: int, tokens: tuple[int, ...]) -> None:
        self._texts[chunk] = tokens

    def totals(self) -> dict[LayerMask, tuple[int, Score]]:
        """Return by mask the number of chunks scored without gaps, and their total score."""
        totals: dict[LayerMask, tuple[int, Score]] = {}
        for mask, chunk in sorted(self._scores, key=lambda key: key[1]):
            n, score = totals.get(mask, (0, Score()))
            if chunk == n:
                totals[mask] = (n + 1, score + self._scores[mask, chunk])
        return totals


class ResultFile(Results, Closing):
    """Results that are also written to a file, which may exist already. Use in a ``with`` block.

    header: model, text and settings; must equal an existing file's in all fields of SAME.

    Raises ResultFileError as `JsonlLog` does, and for lines that are not results.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        super().__init__()
        self.path = path
        with ExitStack() as opening:
            file = JsonlLog(path, {"format": FORMAT, **header}, SAME)
            self._file = opening.enter_context(file)
            for number, line in file.lines():
                try:
                    self._read(records.parse(line))
                except records.RecordError:
                    raise file.no_result(number) from None
            opening.pop_all()

    def close(self) -> None:
        self._file.close()

    def add_score(self, mask: LayerMask, chunk: int, score: Score) -> None:
        super().add_score(mask, chunk, score)
        self._file.append(ScoreLine(chunk, mask, score))

    def add_text(self, chunk: int, tokens: tuple[int, ...]) -> None:
        super().add_text(chunk, tokens)
        self._file.append(TextLine(chunk, tokens))

    def _read(self, data: Any) -> None:
        if isinstance(data, dict) and "tokens" in data:
            text = records.convert(data, TextLine)
            super().add_text(text.chunk, text.tokens)
        else:
            line = records.convert(data, ScoreLine)
            super().add_score(line.mask, line.chunk, line.score)
