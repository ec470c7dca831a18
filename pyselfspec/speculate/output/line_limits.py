"""Limits that end a text at one of its lines. Pure but for the clock."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

BLANKS = " \t"


@dataclass(frozen=True, slots=True)
class LineLimits:
    """Limits for texts that editors insert, as in llama-server.

    n_indent: the text ends before a line, other than its first, that begins with fewer blanks.
    seconds: the text ends after the first line break that comes so long after its first token.
    """

    n_indent: int = 0
    seconds: float = math.inf


class LineWatch:
    """Reads a text piece by piece and finds where its limits end it."""

    def __init__(self, limits: LineLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._end: float | None = None
        self._n_blanks: int | None = None  # at the beginning of a line; None: inside of one

    def end_in(self, piece: str) -> int | None:
        """Return the index in the next piece at which the text ends; None: it goes on."""
        if self._end is None:
            self._end = self._clock() + self._limits.seconds
        for i, char in enumerate(piece):
            if self._n_blanks is not None and char in BLANKS:
                self._n_blanks += 1
                continue
            if self._n_blanks is not None and self._n_blanks < self._limits.n_indent:
                return i
            self._n_blanks = None
            if char == "\n":
                if self._clock() >= self._end:
                    return i + 1
                self._n_blanks = 0
        return None
