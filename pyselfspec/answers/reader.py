"""Reads an answer while it streams: reasoning, text and calls, however its pieces are cut. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from ..util.beginnings import Beginnings
from .call_forms import CallForm, Functions, bare_calls, read_calls
from .form import AnswerForm
from .parts import Called, Part, Reasoning, Said

N_TRIES = 16  # closing markers within a call at most: an answer must not cost much to read


@dataclass(frozen=True, slots=True)
class _Bare:
    """The state within an answer that is one JSON object from its beginning to its end."""


@dataclass(frozen=True, slots=True)
class _Thinking:
    close: str


class AnswerReader:
    """Turns pieces of text into parts.

    functions: schemas of the arguments, by function; empty if the answer has no calls.
    reasoning_end: the closing marker of reasoning that the prompt has opened. is_call: whether the
    answer must be a call. n_calls: most calls to read, None for all; what follows them is left out.

    Holds back what may be a marker or a part of a call until that is decided.
    """

    def __init__(
        self,
        form: AnswerForm,
        functions: Functions,
        *,
        reasoning_end: str | None = None,
        is_call: bool = False,
        n_calls: int | None = None,
    ) -> None:
        self._functions = functions
        self._openers: dict[str, CallForm | _Thinking | None] = dict.fromkeys(form.silent)
        self._openers |= {opening: _Thinking(close) for opening, close in form.think}
        self._openers |= {each.open: each for each in form.calls if functions}
        self._marks = Beginnings(self._openers)
        self._held = ""
        self._n_pushed = 0
        self._inside: CallForm | _Thinking | _Bare | None = None
        if is_call:
            self._inside = _Bare()
        elif reasoning_end is not None:
            self._inside = _Thinking(reasoning_end)
        self._begun = False  # text that is not white space has come
        self._trims = reasoning_end is not None  # white space is left out until text comes
        self._n_tried = 0  # characters of a call in which no end was found
        self._n_tries = 0  # closing markers of a call that were not its end
        self._n_left = n_calls

    @property
    def reasoning_end(self) -> str | None:
        """The closing marker of reasoning that is open, None where none is."""
        return self._inside.close if isinstance(self._inside, _Thinking) else None

    def push(self, text: str) -> list[Part]:
        """Take a piece; return the parts that are certain."""
        self._held += text
        self._n_pushed += len(text)
        if not self._openers and self._inside is None:
            at, self._held = self._at, ""
            return [Said(text, at)] if text else []
        parts: list[Part] = []
        while self._advance(parts):
            pass
        return self._limited(parts)

    def finish(self) -> list[Part]:
        """Return the parts at the end of the answer."""
        parts: list[Part] = []
        while self._advance(parts, is_last=True):
            pass
        at, held, inside, self._held = self._at, self._held, self._inside, ""
        if isinstance(inside, CallForm):
            calls = read_calls(inside, held, self._functions)
            held, at = inside.open + held, at - len(inside.open)
        else:
            calls = bare_calls(held, self._functions) if isinstance(inside, _Bare) else None
        if calls:
            return self._limited([*parts, *map(Called, calls)])
        return self._limited([*parts, *([Said(held, at)] if held else [])])

    def _limited(self, parts: list[Part]) -> list[Part]:
        """Return the parts up to the last call that may be read."""
        if self._n_left is None:
            return parts
        kept: list[Part] = []
        for part in parts:
            if self._n_left == 0:
                break
            kept.append(part)
            self._n_left -= isinstance(part, Called)
        return kept

    def _advance(self, parts: list[Part], *, is_last: bool = False) -> bool:
        """Read up to the next change of state; return whether there was one."""
        if isinstance(self._inside, _Bare):
            return False
        if isinstance(self._inside, CallForm):
            return self._read_call(self._inside, parts)
        if isinstance(self._inside, _Thinking):
            return self._read_reasoning(self._inside.close, parts, is_last)
        return self._read_text(parts, is_last)

    def _read_text(self, parts: list[Part], is_last: bool) -> bool:
        if self._trims:
            self._held = self._held.lstrip()
        start = self._held.lstrip()
        if not start:
            return False
        if not self._begun and self._functions and start.startswith("{"):
            self._inside = _Bare()
            return False
        found = [
            (at, -len(mark), mark) for mark in self._openers if (at := self._held.find(mark)) >= 0
        ]
        if not found:
            n = self._n_certain(self._marks, is_last)
            text, at = self._held[:n], self._at
            if text and (text.strip() or self._begun):  # none before an opening marker
                self._held = self._held[n:]
                self._begun, self._trims = True, False
                parts.append(Said(text, at))
            return False
        n, _, mark = min(found)
        before, at = self._held[:n], self._at
        if not before.strip() and not self._begun:
            before = ""
        self._held = self._held[n + len(mark) :]
        self._inside = self._openers[mark]
        if before:
            parts.append(Said(before, at))
            self._begun = True
        self._trims = True
        return True

    @property
    def _at(self) -> int:
        """The place of the characters that are held."""
        return self._n_pushed - len(self._held)

    def _n_certain(self, marks: Beginnings, is_last: bool) -> int:
        """Return how many characters are certain: all but a beginning of a marker at the end."""
        return len(self._held) - (0 if is_last else marks.n_at_end(self._held))

    def _read_reasoning(self, close: str, parts: list[Part], is_last: bool) -> bool:
        if self._trims:
            self._held = self._held.lstrip()
        at = self._held.find(close)
        n = at if at >= 0 else self._n_certain(Beginnings([close]), is_last)
        reasoning = self._held[:n].rstrip()
        if reasoning:
            parts.append(Reasoning(reasoning, self._at))
            self._trims = False
        if at < 0:
            self._held = "" if is_last else self._held[len(reasoning) :]
            return False
        self._held = self._held[at + len(close) :]
        self._inside, self._trims = None, True
        return True

    def _read_call(self, form: CallForm, parts: list[Part]) -> bool:
        """Read a call whose end has come. Its arguments may contain the closing marker."""
        if form.close is None:
            return False
        while (at := self._held.find(form.close, self._n_tried)) >= 0 and self._n_tries < N_TRIES:
            calls = read_calls(form, self._held[:at], self._functions)
            self._n_tried, self._n_tries = at + 1, self._n_tries + 1
            if calls:
                parts += map(Called, calls)
                self._held = self._held[at + len(form.close) :]
                self._inside, self._begun, self._trims = None, True, True
                self._n_tried = self._n_tries = 0
                return True
        return False
