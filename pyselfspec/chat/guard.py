"""Keeps texts of special tokens that somebody typed apart from those that a template writes. Pure.

Before a template runs, whatever in the messages is such a text, or could become one together with
its neighbours, is hidden: one character of a private area of Unicode stands for it. Behind the
template, what is hidden marks the stretches of text to be read as plain text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

from ..errors import ArgumentError

PRIVATE = (range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))  # planes 15 and 16 of Unicode


class Markers:
    """Texts of special tokens, ready to be found, also where only a part of one is there. What a
    search costs grows with the text, not with the number of markers."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = frozenset(texts)
        self._begins = {text[:n] for text in self.texts for n in range(1, len(text))}
        self._ends = {text[-n:] for text in self.texts for n in range(1, len(text))}
        self._n_max = max(map(len, self.texts), default=0)
        first = "".join(sorted({text[0] for text in self.texts}))
        self._first = re.compile(f"[{re.escape(first)}]" if first else r"(?!)")

    def whole(self, text: str) -> list[range]:
        """Where in a text there is one; of several that begin there, the longest."""
        places, pos = [], 0
        while start := self._first.search(text, pos):
            n = self._size_at(text, start.start())
            pos = start.start() + max(n, 1)
            if n:
                places.append(range(start.start(), pos))
        return places

    def _size_at(self, text: str, start: int) -> int:
        size = 0
        for n in range(1, min(self._n_max, len(text) - start) + 1):
            part = text[start : start + n]
            if part in self.texts:
                size = n
            if part not in self._begins:
                break
        return size

    def begun(self, text: str) -> int:
        """How many characters at the end of a text begin one."""
        sizes = range(min(len(text), self._n_max), 0, -1)
        return next((n for n in sizes if text[-n:] in self._begins), 0)

    def ended(self, text: str) -> int:
        """How many characters at the start of a text end one."""
        sizes = range(min(len(text), self._n_max), 0, -1)
        return next((n for n in sizes if text[:n] in self._ends), 0)

    def has_inside(self, text: str) -> bool:
        """Whether a text is a part of one."""
        return 0 < len(text) < self._n_max and any(text in each for each in self.texts)


class Guard:
    """What is hidden in one list of messages. avoid: texts in which private characters may be."""

    def __init__(self, avoid: Iterable[str]) -> None:
        used = set().union(*avoid)
        self._free = (c for c in map(chr, chain(*PRIVATE)) if c not in used)
        self._signs: dict[str, str] = {}
        self._hidden: dict[str, str] = {}

    def new_sign(self) -> str:
        """A character that stands for nothing yet."""
        try:
            return next(self._free)
        except StopIteration:
            raise ArgumentError("the messages use up the private characters of Unicode") from None

    def _sign(self, text: str) -> str:
        if text not in self._signs:
            self._signs[text] = self.new_sign()
            self._hidden[self._signs[text]] = text
        return self._signs[text]

    def hide_whole(self, text: str, markers: Markers) -> str:
        """Markers in a text; enough where a template adds nothing to its ends."""
        parts, end = [], 0
        for place in markers.whole(text):
            parts += [text[end : place.start], self._sign(text[place.start : place.stop])]
            end = place.stop
        return "".join([*parts, text[end:]])

    def hide(self, text: str, markers: Markers) -> str:
        """Markers in a text, and at its ends what a template could make one of, or another text
        behind it. Templates may also trim it."""
        text = self.hide_whole(text, markers)
        core = text.strip()
        start = text.find(core)
        before, behind = text[:start], text[start + len(core) :]
        if markers.has_inside(core):
            return before + self._sign(core) + behind
        if n := markers.begun(core):
            core = core[:-n] + self._sign(core[-n:])
        if n := markers.ended(core):
            core = self._sign(core[:n]) + core[n:]
        return before + core + behind

    def has_hidden(self, text: str) -> bool:
        return not self._hidden.keys().isdisjoint(text)

    def shown(self, text: str) -> tuple[str, set[int]]:
        """A text with everything as it was typed, and the places of characters that were hidden."""
        parts: list[str] = []
        places: set[int] = set()
        at = 0
        for c in text:
            part = self._hidden.get(c, c)
            if c in self._hidden:
                places.update(range(at, at + len(part)))
            parts.append(part)
            at += len(part)
        return "".join(parts), places


def each_text(value: Any, change: Callable[[str], str]) -> Any:
    """A value of JSON with every text in it changed, keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {each_text(k, change): each_text(v, change) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [each_text(item, change) for item in value]
    return value


def texts_in(value: Any) -> list[str]:
    """All texts in a value of JSON."""
    found: list[str] = []

    def keep(text: str) -> str:
        found.append(text)
        return text

    each_text(value, keep)
    return found
