"""Cuts long texts where tokens cannot change, since llama.cpp's time for a text grows with the
square of the special tokens in it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

N_PIECE = 1 << 14  # least characters of a piece
N_TRIED = 512  # places in a row where a special token could begin, before a piece gets longer


class Pieces:
    """Cuts texts behind special tokens that overlap no others: llama.cpp finds such a token first
    or last, and tokenizes what is before and behind it alone.

    strips: the texts of special tokens, and whether they take away white space behind them.
    """

    def __init__(self, strips: Mapping[str, bool]) -> None:
        self._strips = strips
        self._begins = {text[:n] for text in strips for n in range(1, len(text) + 1)}
        self._n_max = max(map(len, strips), default=0)
        first = "".join(sorted({text[0] for text in strips}))
        self._first = re.compile(f"[{re.escape(first)}]" if first else r"(?!)")

    def of(self, text: str, n_piece: int = N_PIECE) -> Iterator[str]:
        """Yield the pieces of a text, each of at least n_piece characters but for the last."""
        start = pos = 0
        while (pos := max(pos, start + n_piece)) < len(text):
            for i, found in enumerate(self._first.finditer(text, pos)):
                if (end := self._end_of_lone(text, found.start())) is not None:
                    yield text[start:end]
                    start = end
                    break
                if i >= N_TRIED:
                    pos = found.start() + n_piece
                    break
            else:
                break
        yield text[start:]

    def _end_of_lone(self, text: str, start: int) -> int | None:
        """Return the end of the special token that begins at a place, None if there is none, or
        others overlap it, or it acts on what is behind."""
        n = self._size_at(text, start)
        end = start + n
        token = text[start:end]
        if not n or token != token.strip():  # others may take its white space away
            return None
        if self._strips[token] and text[end : end + 1].isspace():
            return None
        for at in range(max(0, start - self._n_max + 1), end):
            n_other = self._size_at(text, at)
            if n_other and at != start and (at > start or at + n_other > start):
                return None
        return end

    def _size_at(self, text: str, start: int) -> int:
        """Return the length of the longest special token at a place, 0 if none begins there."""
        size = 0
        for n in range(1, self._n_max + 1):
            part = text[start : start + n]
            if part not in self._begins:
                break
            if part in self._strips:
                size = n
        return size
