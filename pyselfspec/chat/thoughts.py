"""Thoughts that some models write before an answer, between <think> and </think>. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

BEGIN, END = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class Piece:
    """Text, and the drafter that proposed it; None for the model's own."""

    text: str
    origin: str | None = None
    is_thought: bool = False


class _State(Enum):
    START = auto()  # thoughts or the answer may begin
    THINKING = auto()
    ANSWER = auto()


class Thoughts:
    """Tells thoughts from the answer while both stream in.

    Tags are left out, and so is white space beside them. An answer without thoughts stays as it is.

    begun: the prompt has opened the tag already, so that the text begins with thoughts.
    """

    def __init__(self, *, begun: bool = False) -> None:
        self._state = _State.THINKING if begun else _State.START
        self._held: list[Piece] = []  # may be part of a tag, or space beside one
        self._trims = begun  # white space that comes next

    @property
    def are_open(self) -> bool:
        """Whether thoughts have begun and not ended."""
        return self._state is _State.THINKING

    def take(self, pieces: Iterable[Piece]) -> list[Piece]:
        """Pieces that are ready to be shown after these have come."""
        self._held += pieces
        done: list[Piece] = []
        while self._held:
            state, trims = self._state, self._trims
            done += self._step()
            if (state, trims) == (self._state, self._trims):
                break
        return done

    def rest(self) -> list[Piece]:
        """Pieces that were held back, after the last text has come."""
        held, self._held = self._held, []
        if self.are_open:
            text = _text(held)
            held = _cut(held, len(text.rstrip()))[0]
            return [replace(piece, is_thought=True) for piece in held]
        return held

    def _step(self) -> list[Piece]:
        text = _text(self._held)
        if self._trims:
            self._held = _cut(self._held, len(text) - len(text.lstrip()))[1]
            self._trims = not self._held
            return []
        if self._state is _State.THINKING:
            return self._thoughts(text)
        if self._state is _State.START and self._may_begin(text):
            return []
        done, self._held = self._held, []
        return done

    def _may_begin(self, text: str) -> bool:
        """Whether thoughts may begin here; goes on to them, or to the answer, when that is sure."""
        begin = text.lstrip()
        if begin.startswith(BEGIN):
            self._held = _cut(self._held, len(text) - len(begin) + len(BEGIN))[1]
            self._state, self._trims = _State.THINKING, True
            return True
        if BEGIN.startswith(begin):
            return True
        self._state = _State.ANSWER
        return False

    def _thoughts(self, text: str) -> list[Piece]:
        thought, end, _ = text.partition(END)
        if not end:
            thought = thought[: len(thought) - _n_begun(thought)]
        n = len(thought.rstrip())
        done, self._held = _cut(self._held, n)
        if end:
            self._held = _cut(self._held, len(thought) - n + len(END))[1]
            self._state, self._trims = _State.ANSWER, True
        return [replace(piece, is_thought=True) for piece in done]


def without_thoughts(text: str) -> str:
    """The answer in a text that a model wrote; empty where it ends before the answer.

    >>> without_thoughts("<think>hm</think>\\n\\nyes"), without_thoughts("hm</think>yes")
    ('yes', 'yes')
    """
    before, end, _ = text.partition(END)
    begun = bool(end) and BEGIN not in before
    thoughts = Thoughts(begun=begun)
    pieces = [*thoughts.take([Piece(text)]), *thoughts.rest()]
    return _text([piece for piece in pieces if not piece.is_thought])


def _n_begun(text: str) -> int:
    """Length of the beginning of END at the end of a text."""
    return next((n for n in range(len(END) - 1, 0, -1) if text.endswith(END[:n])), 0)


def _text(pieces: Iterable[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def _cut(pieces: Sequence[Piece], n: int) -> tuple[list[Piece], list[Piece]]:
    """The first n characters, and the others."""
    before: list[Piece] = []
    after: list[Piece] = []
    for piece in pieces:
        first, second = piece.text[:n], piece.text[n:]
        n -= len(first)
        before += [replace(piece, text=first)] if first else []
        after += [replace(piece, text=second)] if second else []
    return before, after
