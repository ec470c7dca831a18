"""Pictures in prompts, as the rows of a model's input that they become. Pure; projector.py makes
them.

A row of a picture has an id below 0, derived from the picture's bytes: prompts with the same
picture share a prefix, and prompts with another one do not. No drafter copies these ids, since they
are no text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..errors import ArgumentError
from .passes import Pass, PictureRows

_ROW_BITS, _CHUNK_BITS = 32, 16
_ROW_MAX = -(1 << _ROW_BITS)  # ids of rows are below


@dataclass(frozen=True, eq=False, slots=True)
class Picture:
    """A picture in a prompt. tokens: ids of its rows and of the text that the model has around
    it. rows: those between such text, with their ids, which are below 0."""

    tokens: tuple[int, ...]
    rows: tuple[tuple[tuple[int, ...], PictureRows], ...]

    @property
    def n_bytes(self) -> int:
        """The bytes of its states."""
        return sum(each.states.numpy().nbytes for _, each in self.rows)


def row_ids(data: bytes, chunk: int, n: int) -> tuple[int, ...]:
    """Return ids for n rows of the chunk with this index of a picture in a file."""
    digest = int.from_bytes(hashlib.sha256(data).digest(), "big")
    first = (digest << _CHUNK_BITS | chunk) << _ROW_BITS
    return tuple(-1 - first - i for i in range(n))


def is_text(token: int) -> bool:
    """Return whether an id is a token of the vocabulary, not a picture's row."""
    return token >= 0


class _Place(NamedTuple):
    rows: PictureRows
    row: int


class PictureMap:
    """Finds the rows of pictures by their ids."""

    def __init__(self, pictures: Iterable[Picture]) -> None:
        self._places: Mapping[int, _Place] = {
            token: _Place(rows, i)
            for picture in pictures
            for ids, rows in picture.rows
            for i, token in enumerate(ids)
        }

    def __bool__(self) -> bool:
        return bool(self._places)

    def require(self, prompt: Sequence[int]) -> None:
        """Raise ArgumentError for a prompt with rows of unknown pictures, and for one that ends
        with a picture."""
        for token in prompt:
            if not is_text(token) and token not in self._places:
                what = f"token {token}" if token > _ROW_MAX else "a row of another picture"
                raise ArgumentError(
                    f"the prompt has {what}; ids below 0 belong to the pictures given with it"
                )
        if prompt and not is_text(prompt[-1]):
            raise ArgumentError("the prompt ends with a picture; put some text after it")

    def aligned(self, prompt: Sequence[int], n: int) -> int:
        """Return the most tokens, at most n, that a sequence may keep without half a picture."""
        place = self._places.get(prompt[n]) if n < len(prompt) else None
        return n if place is None else n - place.row

    def next_pass(
        self, prompt: Sequence[int], pos: int, n_max: int, n_batch: int
    ) -> tuple[int, Pass | None]:
        """Return how many tokens from a position on go through the next pass, at most n_max, and
        the pass if they are rows of a picture. Rows that see each other need one pass whatever
        n_max is, of at most n_batch rows."""
        place = self._places.get(prompt[pos])
        if place is None:
            n = 1
            while n < n_max and pos + n < len(prompt) and is_text(prompt[pos + n]):
                n += 1
            return n, None
        rows, first = place
        n = len(rows) - first
        if rows.is_causal:
            n = min(n, n_max)
        elif n > n_batch:
            raise ArgumentError(
                f"this image needs a batch of {n} tokens, and this context has n_batch={n_batch}; "
                f"open it with n_batch of at least {n}"
            )
        return n, Pass(embedded=rows.part(first, n))
