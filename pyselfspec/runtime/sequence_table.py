"""Bookkeeping of a context's sequences: the tokens they hold, which of them share cells, and which
are in use. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ArgumentError
from .lora import Adapters
from .passes import Rows


class SequenceTable:
    """A row for each sequence of a context.

    tokens: by sequence id, the tokens at its beginning whose K/V the full model computed.
    adapters: by sequence id, the LoRA adapters that it computed them with.

    A text occupies its sequence until it is dropped; a draft borrows one and releases it.
    """

    def __init__(self, n_seq_max: int) -> None:
        self.tokens: list[list[int]] = [[] for _ in range(n_seq_max)]
        self.adapters: list[Adapters] = [() for _ in range(n_seq_max)]
        self._sharing: list[set[int]] = [set() for _ in range(n_seq_max)]  # cells, with these
        self._occupied: set[int] = set()
        self._borrowed: set[int] = set()

    # tokens

    def invalidate(self, rows: Rows, adapters: Adapters, *, in_place: bool) -> None:
        """Forget the tokens from the rows of a pass on; in place, also in sequences that share
        their cells; and all tokens of a sequence that were computed with other adapters."""
        for _, seq_id, pos in rows.places():
            if self.adapters[seq_id] != adapters:
                self.truncate(seq_id, 0)
                self.adapters[seq_id] = adapters
            self.truncate(seq_id, pos)
            if in_place:
                for each in self._sharing[seq_id]:
                    self.truncate(each, pos)

    def record(self, rows: Rows) -> None:
        """Add the tokens of a full pass to the sequences that they continue."""
        for token, seq_id, pos in rows.places():
            if len(self.tokens[seq_id]) == pos:
                self.tokens[seq_id].append(token)

    def extend(self, seq_id: int, tokens: Sequence[int]) -> None:
        """Set the tokens of a sequence, which must begin with the recorded ones.

        Raises ArgumentError where the last recorded token differs.
        """
        recorded = self.tokens[seq_id]
        del recorded[len(tokens) :]
        if recorded and recorded[-1] != tokens[len(recorded) - 1]:
            raise ArgumentError(f"sequence {seq_id} does not begin with these tokens")
        recorded += tokens[len(recorded) :]

    def truncate(self, seq_id: int, n: int) -> None:
        """Forget the tokens of a sequence from position n on."""
        del self.tokens[seq_id][max(n, 0) :]

    def clear(self, seq_id: int) -> None:
        """Record that a sequence is empty and shares no cells."""
        self.tokens[seq_id].clear()
        for other in self._sharing[seq_id]:
            self._sharing[other].discard(seq_id)
        self._sharing[seq_id].clear()

    def copy(self, seq_id: int, other: int) -> None:
        """Record that another sequence shares the cells of this one."""
        self.tokens[other] = self.tokens[seq_id].copy()
        self.adapters[other] = self.adapters[seq_id]
        group = {seq_id, other, *self._sharing[seq_id]}
        for one in group:
            self._sharing[one] |= group - {one}

    def adopt_from(self, seq_id: int, fork: int, n_keep: int) -> None:
        """Record that a sequence holds the cells of its fork from position n_keep on."""
        if len(self.tokens[seq_id]) >= n_keep:
            self.tokens[seq_id][n_keep:] = self.tokens[fork][n_keep:]

    # use

    def occupy(self, seq_id: int) -> None:
        """Mark a sequence as a text's. Raises ArgumentError while a draft borrows it."""
        if seq_id in self._borrowed:
            raise ArgumentError(
                f"a draft uses sequence {seq_id}; finish the other texts first, or give the "
                "context a larger n_seq_max"
            )
        self._occupied.add(seq_id)

    def vacate(self, seq_id: int) -> None:
        """Mark a sequence as no text's."""
        self._occupied.discard(seq_id)

    def borrow(self, seq_id: int) -> None:
        """Mark a sequence as a draft's."""
        self._borrowed.add(seq_id)

    def release(self, seq_id: int) -> None:
        """Mark a sequence as no draft's."""
        self._borrowed.discard(seq_id)

    def is_free(self, seq_id: int) -> bool:
        """Return whether neither a text nor a draft uses a sequence."""
        return seq_id not in self._occupied and seq_id not in self._borrowed


def n_common(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the number of tokens at the beginning that two texts have in common."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))
