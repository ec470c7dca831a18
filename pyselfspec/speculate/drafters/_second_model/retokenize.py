"""Conversion of texts between vocabularies, by way of bytes.

Bytes, not strings, since a token may end within a character, which decoding the token alone would
destroy. A part of a text is tokenized without a start token and without a leading space.
"""

from __future__ import annotations

import codecs
import re
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property

from ....runtime.model import Model

N_BACK = 8  # most tokens to go back to the beginning of a word
WHITE = b" \n\t\r"
WORDS = re.compile(r"\s*\S+|\s+")
BROKEN = re.compile("([\udc80-\udcff]+)")  # bytes that are no UTF-8, in surrogateescape form


class Spelling:
    """Tokens of a model and their bytes; control tokens have none.

    ends: for each token, the number of bytes up to its end.
    """

    def __init__(self, model: Model, tokens: Sequence[int] = ()) -> None:
        self._model = model
        self.tokens: list[int] = []
        self.ends: list[int] = []
        self.data = bytearray()
        self.extend(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.data += self._model.piece(token)
            self.tokens.append(token)
            self.ends.append(len(self.data))

    def truncate(self, n: int) -> None:
        """Keep the first n tokens."""
        if n < len(self.tokens):
            del self.data[self.ends[n - 1] if n else 0 :], self.tokens[n:], self.ends[n:]

    def n_shared(self, data: bytes | bytearray) -> int:
        """Return the number of tokens at the beginning that these bytes share, up to the beginning
        of a word: the last shared token may differ once the word is complete."""
        n_all = bisect_right(self.ends, n_common_bytes(self.data, data))
        n_least = max(n_all - N_BACK, 0)
        for n in range(n_all, n_least, -1):
            end = self.ends[n - 1]
            if end in (0, len(data)) or data[end] in WHITE:
                return n
        return n_least


def n_common_bytes(a: bytes | bytearray, b: bytes | bytearray) -> int:
    """Return the length of the common prefix."""
    low, high = 0, min(len(a), len(b))
    if a[:high] == b[:high]:
        return high
    while high - low > 1:  # the first low bytes are equal, the first high ones are not
        middle = (low + high) // 2
        low, high = (middle, high) if a[low:middle] == b[low:middle] else (low, middle)
    return low


def whole(data: bytes | bytearray) -> bytes:
    """Return the bytes without a partial character at the end."""
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    decoder.decode(bytes(data))
    return bytes(data[: len(data) - len(decoder.getstate()[0])])


class Tokenizer:
    """Tokenizes bytes from anywhere in a text."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def tokens(self, data: bytes) -> list[int]:
        """Return tokens that add exactly these bytes to a text, as the model's own tokenizer splits
        them. Bytes without a token are left out."""
        found: list[int] = []
        for i, part in enumerate(BROKEN.split(data.decode(errors="surrogateescape"))):
            if part:
                found += self._one_by_one(part) if i % 2 else self._of_text(part)
        return found

    def _of_text(self, text: str) -> list[int]:
        before, spaced = self._spaced(text)
        tokens = self._model.tokenize(spaced, add_special=False, parse_special=False)
        spelled = Spelling(self._model, tokens)
        starts = [0, *spelled.ends]
        if len(before) in starts and spelled.data == before + text.encode():
            return tokens[starts.index(len(before)) :]
        words = WORDS.findall(text)  # a tokenizer that changes some of them leaves the others
        if len(words) > 1:
            return [token for word in words for token in self._of_text(word)]
        return self._one_by_one(text)

    def _spaced(self, text: str) -> tuple[bytes, str]:
        """Return the bytes to strip from the start of the tokenizer's result, and the text to give
        to the tokenizer. Many tokenizers put a space before any text."""
        if not self._adds_space:
            return b"", text
        return (b"", text[1:]) if text[0] == " " else (b" \n", "\n" + text)

    @cached_property
    def _adds_space(self) -> bool:
        tokens = self._model.tokenize("a", add_special=False, parse_special=False)
        return Spelling(self._model, tokens).data == b" a"

    def _one_by_one(self, text: str) -> list[int]:
        data = text.encode(errors="surrogateescape")
        return [self._bytes[byte] for byte in data if byte in self._bytes]

    @cached_property
    def _bytes(self) -> dict[int, int]:
        """Tokens of one byte, by that byte."""
        pieces = enumerate(self._model.pieces())
        return {piece[0]: token for token, piece in pieces if len(piece) == 1}


def shared_tokens(one: Model, other: Model) -> dict[int, int]:
    """Tokens of one by the token of the other that adds the same bytes. Of several that do, as some
    bytes have one as a letter and one as a byte, that which the tokenizer takes."""
    tokenizer = Tokenizer(one)
    by_piece: dict[bytes, int] = {}
    for token, piece in enumerate(one.pieces()):
        if piece and (piece not in by_piece or tokenizer.tokens(piece) == [token]):
            by_piece[piece] = token
    pieces = enumerate(other.pieces())
    return {token: by_piece[piece] for token, piece in pieces if piece in by_piece}
