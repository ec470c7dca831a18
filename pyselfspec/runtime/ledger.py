"""What is known of a context's sequences: which tokens they hold, which share cells, and whose they
are. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..errors import ArgumentError
from .passes import Rows


class Part(NamedTuple):
    """The first tokens of a sequence and the last ones."""

    n_first: int
    n_last: int

    def of(self, n_past: int) -> list[tuple[int, int]]:
        """Ranges of positions, the first one from 0 on."""
        n_first = min(self.n_first, n_past)
        return [(0, n_first), (max(n_first, n_past - self.n_last), n_past)]


class Ledger:
    """held: by sequence, the tokens at its beginning whose K/V is known to be the full model's."""

    def __init__(self, n_seq_max: int) -> None:
        self.held: list[list[int]] = [[] for _ in range(n_seq_max)]
        self._sharing: list[set[int]] = [set() for _ in range(n_seq_max)]  # cells, with these
        self._claimed: set[int] = set()
        self._lent: set[int] = set()

    # tokens

    def touch(self, rows: Rows, in_place: bool) -> None:
        """These rows go through a pass: from there on nothing is known any more, in place not of
        sequences that share the cells either."""
        for _, seq_id, pos in rows.places():
            for touched in (seq_id, *(self._sharing[seq_id] if in_place else ())):
                self.cut(touched, pos)

    def evaluated(self, rows: Rows) -> None:
        """A full pass over these rows: what it adds to a text that is the full model's so far is
        the full model's."""
        for token, seq_id, pos in rows.places():
            if len(self.held[seq_id]) == pos:
                self.held[seq_id].append(token)

    def extend(self, seq_id: int, tokens: Sequence[int]) -> None:
        """The sequence holds these tokens, which begin with those that are known.

        Raises ArgumentError where the last token that is known is another.
        """
        held = self.held[seq_id]
        del held[len(tokens) :]
        if held and held[-1] != tokens[len(held) - 1]:
            raise ArgumentError(f"sequence {seq_id} does not begin with these tokens")
        held += tokens[len(held) :]

    def cut(self, seq_id: int, n: int) -> None:
        """From position n on nothing is known any more."""
        del self.held[seq_id][max(n, 0) :]

    def dropped(self, seq_id: int) -> None:
        """The sequence is empty."""
        self.held[seq_id].clear()
        for other in self._sharing[seq_id]:
            self._sharing[other].discard(seq_id)
        self._sharing[seq_id].clear()

    def forked(self, seq_id: int, other: int, part: Part | None = None) -> None:
        """The other sequence holds the cells of this one, or a part of them."""
        self.held[other] = self.held[seq_id][: None if part is None else part.n_first]
        group = {seq_id, other, *self._sharing[seq_id]}
        for one in group:
            self._sharing[one] |= group - {one}

    def taken_over(self, seq_id: int, fork: int, n_keep: int) -> None:
        """From this position on the sequence holds the cells of its fork."""
        if len(self.held[seq_id]) >= n_keep:
            self.held[seq_id][n_keep:] = self.held[fork][n_keep:]

    # whose they are

    def claim(self, seq_id: int) -> None:
        """A text lives in this sequence: it is not lent. Raises ArgumentError while it is."""
        if seq_id in self._lent:
            raise ArgumentError(
                f"sequence {seq_id} is lent to a draft; finish the other texts first, or give the "
                "context a larger n_seq_max"
            )
        self._claimed.add(seq_id)

    def release(self, seq_id: int) -> None:
        """No text lives in this sequence any more."""
        self._claimed.discard(seq_id)

    def lend(self, seq_id: int) -> None:
        self._lent.add(seq_id)

    def give_back(self, seq_id: int) -> None:
        self._lent.discard(seq_id)

    def is_free(self, seq_id: int) -> bool:
        """Neither claimed nor lent."""
        return seq_id not in self._claimed and seq_id not in self._lent


def n_common(a: Sequence[int], b: Sequence[int]) -> int:
    """Tokens that two texts begin with both."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))
