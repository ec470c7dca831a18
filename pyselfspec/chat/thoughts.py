"""Separates the thoughts that some models write between <think> and </think>. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto

BEGIN, END = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of text. origin: the drafter that proposed it, None for the full model."""

    text: str
    origin: str | None = None
    is_thought: bool = False


class _State(Enum):
    START = auto()  # thoughts or the answer may begin
    THINKING = auto()
    ANSWER = auto()


class ThoughtSplitter:
    """Separates thoughts from the answer in a stream of pieces.

    Removes the tags and white space beside them. Does not change an answer without thoughts.

    begun: whether the prompt ends with <think>, so that the text begins with thoughts.
    """

    def __init__(self, *, begun: bool = False) -> None:
        self._state = _State.THINKING if begun else _State.START
        self._held: list[Piece] = []  # may be part of a tag, or white space beside one
        self._trims = begun  # whether to remove the white space that comes next

    @property
    def is_open(self) -> bool:
        """Whether thoughts have begun and not ended."""
        return self._state is _State.THINKING

    def push(self, pieces: Iterable[Piece]) -> list[Piece]:
        """Take pieces of the stream; return those whose kind is known."""
        self._held += pieces
        done: list[Piece] = []
        while self._held:
            state, trims = self._state, self._trims
            done += self._step()
            if (state, trims) == (self._state, self._trims):
                break
        return done

    def finish(self) -> list[Piece]:
        """Return the pieces held back, at the end of the stream."""
        held, self._held = self._held, []
        if self.is_open:
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
        """Return whether thoughts begin or may begin here. Updates the state once that is clear."""
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
    """Return the answer in a whole text; empty if the text ends within the thoughts.

    >>> without_thoughts("<think>hm</think>\\n\\nyes"), without_thoughts("hm</think>yes")
    ('yes', 'yes')
    """
    before, end, _ = text.partition(END)
    begun = bool(end) and BEGIN not in before
    thoughts = ThoughtSplitter(begun=begun)
    pieces = [*thoughts.push([Piece(text)]), *thoughts.finish()]
    return _text([piece for piece in pieces if not piece.is_thought])


def _n_begun(text: str) -> int:
    """Return the length of the prefix of END at the end of a text."""
    return next((n for n in range(len(END) - 1, 0, -1) if text.endswith(END[:n])), 0)


def _text(pieces: Iterable[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


def _cut(pieces: Sequence[Piece], n: int) -> tuple[list[Piece], list[Piece]]:
    """Return the first n characters of the pieces, and the others."""
    before: list[Piece] = []
    after: list[Piece] = []
    for piece in pieces:
        first, second = piece.text[:n], piece.text[n:]
        n -= len(first)
        before += [replace(piece, text=first)] if first else []
        after += [replace(piece, text=second)] if second else []
    return before, after
