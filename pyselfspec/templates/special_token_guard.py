"""Keeps special tokens typed in messages from being read as special tokens. Pure.

Before a template runs, every text of a special token in the messages, and every part that could
form one together with its neighbours, is replaced by a placeholder: a character of Unicode's
private areas. After rendering, the placeholders mark the stretches to tokenize as plain text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any

from ..errors import ArgumentError
from ..util.beginnings import Beginnings

PRIVATE = (range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))  # planes 15 and 16 of Unicode


class Markers:
    """Finds markers, the texts of special tokens, and parts of them. The time of a search is linear
    in the text and independent of the number of markers."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = frozenset(texts)
        self._begins = Beginnings(self.texts)
        self._ends = Beginnings(text[::-1] for text in self.texts)  # read backwards
        self._n_max = max(map(len, self.texts), default=0)
        first = "".join(sorted({text[0] for text in self.texts}))
        self._first = re.compile(f"[{re.escape(first)}]" if first else r"(?!)")

    def find(self, text: str) -> list[range]:
        """Return the ranges of markers in a text; of several that begin at a place, the longest."""
        places, pos = [], 0
        while start := self._first.search(text, pos):
            begin, n = start.start(), 0
            for size in range(1, min(self._n_max, len(text) - begin) + 1):
                part = text[begin : begin + size]
                if part in self.texts:
                    n = size
                if part not in self._begins:
                    break
            pos = begin + max(n, 1)
            if n:
                places.append(range(begin, pos))
        return places

    def n_prefix_at_end(self, text: str) -> int:
        """Return the length of the longest suffix of a text that is a proper prefix of a marker."""
        return self._begins.n_at_end(text)

    def n_suffix_at_start(self, text: str) -> int:
        """Return the length of the longest prefix of a text that is a proper suffix of a marker."""
        return self._ends.n_at_end(text[: self._n_max][::-1])

    def contains(self, text: str) -> bool:
        """Return whether a text is a proper part of a marker."""
        return 0 < len(text) < self._n_max and any(text in each for each in self.texts)


class Guard:
    """Placeholders for one list of messages. avoid: texts whose characters are not placeholders."""

    def __init__(self, avoid: Iterable[str]) -> None:
        used = set().union(*avoid)
        self._free = (c for c in map(chr, chain(*PRIVATE)) if c not in used)
        self._placeholders: dict[str, str] = {}
        self._hidden: dict[str, str] = {}

    def new_placeholder(self) -> str:
        """Return an unused character. Raises ArgumentError if none is left."""
        try:
            return next(self._free)
        except StopIteration:
            raise ArgumentError("the messages use up the private characters of Unicode") from None

    def _placeholder(self, text: str) -> str:
        if text not in self._placeholders:
            self._placeholders[text] = self.new_placeholder()
            self._hidden[self._placeholders[text]] = text
        return self._placeholders[text]

    def hide_whole(self, text: str, markers: Markers) -> str:
        """Replace the markers in a text; enough if the template adds nothing at its ends."""
        parts, end = [], 0
        for place in markers.find(text):
            parts += [text[end : place.start], self._placeholder(text[place.start : place.stop])]
            end = place.stop
        return "".join([*parts, text[end:]])

    def hide(self, text: str, markers: Markers) -> str:
        """Replace the markers in a text, and the parts of markers at its ends, which a template or
        the next text could complete. Templates may also trim the text."""
        text = self.hide_whole(text, markers)
        core = text.strip()
        start = text.find(core)
        before, behind = text[:start], text[start + len(core) :]
        if markers.contains(core):
            return before + self._placeholder(core) + behind
        if n := markers.n_prefix_at_end(core):
            core = core[:-n] + self._placeholder(core[-n:])
        if n := markers.n_suffix_at_start(core):
            core = self._placeholder(core[:n]) + core[n:]
        return before + core + behind

    def has_hidden(self, text: str) -> bool:
        """Return whether a text has placeholders."""
        return not self._hidden.keys().isdisjoint(text)

    def restore(self, text: str) -> tuple[str, set[int]]:
        """Return a text without placeholders, and the indices of characters that were hidden."""
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
    """Return a JSON value with `change` applied to every string in it, keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {each_text(k, change): each_text(v, change) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [each_text(item, change) for item in value]
    return value


def texts_in(value: Any) -> list[str]:
    """Return all strings in a JSON value."""
    found: list[str] = []

    def keep(text: str) -> str:
        found.append(text)
        return text

    each_text(value, keep)
    return found
