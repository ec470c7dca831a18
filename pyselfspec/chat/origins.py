"""Which part of a text came from whom, though text does not come token by token: characters are
completed by later tokens, and what could begin a stop string is held back. Pure."""

from __future__ import annotations

import codecs
from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Piece:
    """Text, and the drafter that proposed it; None for the model's own."""

    text: str
    origin: str | None


class Origins:
    """Of one text, from its beginning."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._waiting: deque[tuple[int, str | None]] = deque()  # characters, and whose they are
        self._last: str | None = None

    def push(self, token: bytes, origin: str | None) -> None:
        """The bytes of the next token; a character is whose token completes it."""
        self._last = origin
        self._waiting.append((len(self._decoder.decode(token)), origin))

    def take(self, text: str) -> list[Piece]:
        """The next part of the text, in pieces of one origin each."""
        pieces: list[Piece] = []
        while text:
            n, origin = self._waiting.popleft() if self._waiting else (len(text), self._last)
            if n > len(text):
                self._waiting.appendleft((n - len(text), origin))
            part, text = text[:n], text[n:]
            if pieces and pieces[-1].origin == origin:
                pieces[-1] = Piece(pieces[-1].text + part, origin)
            elif part:
                pieces.append(Piece(part, origin))
        return pieces
