"""The token that each part of a text comes from. Text does not come token by token: characters are
completed by later tokens, and what could begin a stop string is held back. Pure."""

from __future__ import annotations

import codecs
from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TaggedText(Generic[T]):
    """Text of one token.

    tag: was pushed with the token. token: its whole text if this is the first part, else None.
    """

    text: str
    tag: T
    token: str | None = None


@dataclass(slots=True)
class _Token(Generic[T]):
    text: str
    tag: T
    n_taken: int = 0
    begun: bool = False

    def take(self, n: int) -> TaggedText[T]:
        text, whole = self.text[self.n_taken : self.n_taken + n], None if self.begun else self.text
        self.n_taken += len(text)
        self.begun = True
        return TaggedText(text, self.tag, whole)

    @property
    def is_empty(self) -> bool:
        return self.n_taken == len(self.text)


class TokenTracker(Generic[T]):
    """Finds the tokens that the parts of one text come from."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._tokens: deque[_Token[T]] = deque()
        self._last: list[T] = []  # none or one

    def push(self, token: bytes, tag: T) -> None:
        """Add the bytes of the next token. A character belongs to the token that completes it."""
        self._tokens.append(_Token(self._decoder.decode(token), tag))
        self._last = [tag]

    def take(self, text: str) -> list[TaggedText[T]]:
        """Return the parts of the next piece of the text, one per token, including tokens without
        text of their own. A character that no token completed belongs to the last token."""
        parts: list[TaggedText[T]] = []
        while self._tokens and (text or self._tokens[0].is_empty):
            part = self._tokens[0].take(len(text))
            text = text[len(part.text) :]
            parts.append(part)
            if self._tokens[0].is_empty:
                self._tokens.popleft()
        if text:
            parts += [TaggedText(text, tag) for tag in self._last]
        return parts
