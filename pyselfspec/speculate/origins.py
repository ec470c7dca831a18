"""Which token each part of a text is from, though text does not come token by token: characters are
completed by later tokens, and what could begin a stop string is held back. Pure."""

from __future__ import annotations

import codecs
from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Part(Generic[T]):
    """Text that one token gave. of: what was pushed with it. token: all of its text, where this is
    the first of it."""

    text: str
    of: T
    token: str | None = None


@dataclass(slots=True)
class _Token(Generic[T]):
    text: str
    of: T
    n_taken: int = 0
    begun: bool = False

    def take(self, n: int) -> Part[T]:
        text, whole = self.text[self.n_taken : self.n_taken + n], None if self.begun else self.text
        self.n_taken += len(text)
        self.begun = True
        return Part(text, self.of, whole)

    @property
    def is_empty(self) -> bool:
        return self.n_taken == len(self.text)


class Origins(Generic[T]):
    """Takes the tokens of one text as they are drawn, and says what its parts are from as it comes
    out."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._tokens: deque[_Token[T]] = deque()
        self._last: list[T] = []  # none or one

    def push(self, token: bytes, of: T) -> None:
        """The bytes of the next token. A character is of the token that completes it."""
        self._tokens.append(_Token(self._decoder.decode(token), of))
        self._last = [of]

    def take(self, text: str) -> list[Part[T]]:
        """Parts of the next piece of the text, one a token, also of tokens without text of their
        own. What no token completed, at the end, is of the last one."""
        parts: list[Part[T]] = []
        while self._tokens and (text or self._tokens[0].is_empty):
            part = self._tokens[0].take(len(text))
            text = text[len(part.text) :]
            parts.append(part)
            if self._tokens[0].is_empty:
                self._tokens.popleft()
        if text:
            parts += [Part(text, of) for of in self._last]
        return parts
