"""Scores that have been measured, kept in memory or in a JSON-lines file that outlives the process.

A file starts with a header that says of what its scores are. Each line after it holds the score of
one mask on one chunk, or the tokens of a chunk that the model wrote itself. Lines are written one
by one and forced to the disk, so an interrupted run loses nothing that was measured.
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
from ..util.closing import Closing
from ..util.headed import HeadedLines

FORMAT = 2
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

    Raises ResultFileError as `HeadedLines` does, and for lines that are no results.
    """

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        super().__init__()
        self.path = path
        with ExitStack() as opening:
            older = {1: _from_format_1}
            file = HeadedLines(path, {"format": FORMAT, **header}, SAME, older)
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
