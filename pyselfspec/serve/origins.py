"""Which token each piece of a text is from."""

from __future__ import annotations

import codecs
from collections import deque
from dataclasses import dataclass

from ..runtime.logprobs import LogProbs
from .jobs import Origin


@dataclass(slots=True)
class _Token:
    text: str
    source: str
    logprobs: LogProbs | None
    is_new: bool = True  # nothing of it has been taken


class Origins:
    """Takes tokens as they are drawn and gives them back as their text comes out, which may be
    later: text is held back while it may become a stop string."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._tokens: deque[_Token] = deque()

    def push(self, piece: bytes, source: str, logprobs: LogProbs | None = None) -> None:
        """The next token's bytes. The text of a character is that of the token that ends it."""
        self._tokens.append(_Token(self._decoder.decode(piece), source, logprobs))

    def end(self) -> None:
        """No more tokens come: bytes of an unfinished character are the last one's."""
        if self._tokens:
            self._tokens[-1].text += self._decoder.decode(b"", final=True)

    def take(self, text: str) -> tuple[list[Origin], list[tuple[str, LogProbs]]]:
        """Where this next piece of the text is from, and the tokens that begin in it."""
        origins: list[Origin] = []
        begun: list[tuple[str, LogProbs]] = []
        n_left = len(text)
        while self._tokens and (n_left or not self._tokens[0].text):
            token = self._tokens[0]
            if token.is_new and token.logprobs is not None:
                begun.append((token.text, token.logprobs))
            token.is_new = False
            part = token.text[:n_left]
            if part:
                origins.append(Origin(part, token.source))
            n_left -= len(part)
            token.text = token.text[len(part) :]
            if not token.text:
                self._tokens.popleft()
        return origins, begun
