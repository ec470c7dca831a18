"""Conversion of tokens to text: whole UTF-8 characters, stop strings that may span tokens, and
limits for lines. Does not depend on a model."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence

from ...errors import ArgumentError
from ...util.beginnings import Beginnings
from .line_limits import LineLimits, LineWatch


class TextStream:
    """Turns tokens into text, one at a time.

    piece: returns the bytes that a token adds. is_eog: returns whether a token ends the text. stop:
    strings that end the text and are not part of it. lines: limits that end it at a line.

    Text that could still become a stop string, and bytes of a partial character, are held back.
    Bytes that are no UTF-8 become U+FFFD.
    """

    def __init__(
        self,
        piece: Callable[[int], bytes],
        is_eog: Callable[[int], bool],
        stop: Sequence[str] = (),
        lines: LineLimits | None = None,
    ) -> None:
        if isinstance(stop, str) or not all(stop):
            raise ArgumentError(f"stop is a list of strings that are not empty, got {stop!r}")
        self._piece = piece
        self._is_eog = is_eog
        self._stop = tuple(stop)
        self._undecided = Beginnings(self._stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self._lines = None if lines is None else LineWatch(lines)
        # "eog", "stop", or "length" for a line too far, once the text has ended
        self.finish_reason: str | None = None
        self.stopped_by: str | None = None  # the stop string that ended the text

    def consume(self, token: int) -> bool:
        """Add the next token to the text; return True if the text ends with it."""
        if self._is_eog(token):
            self.finish_reason = "eog"
            return True
        n_before, new = len(self._held), self._decoder.decode(self._piece(token))
        self._held += new
        found = [(at + len(s), at, s) for s in self._stop if (at := self._held.find(s)) >= 0]
        if found:
            # the stop string that is complete first, wherever tokens end
            _, at, self.stopped_by = min(found)
            self._held = self._held[:at]
            self.finish_reason = "stop"
        elif self._lines is not None and (end := self._lines.end_in(new)) is not None:
            self._held = self._held[: n_before + end]
            self.finish_reason = "length"
        return self.finish_reason is not None

    def take(self) -> str:
        """Return the text that is certain and has not been taken yet."""
        n_held = 0 if self.finish_reason else self._undecided.n_at_end(self._held)
        text = self._held[: len(self._held) - n_held]
        self._held = self._held[len(text) :]
        return text

    def finish(self) -> str:
        """Return the rest of the text at its end, with a partial character."""
        if self.finish_reason in (None, "eog"):
            self._held += self._decoder.decode(b"", final=True)
        text, self._held = self._held, ""
        return text
