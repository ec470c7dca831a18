"""The state of a head of several blocks for one text, see later_blocks.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ....runtime.passes import Head
from ....runtime.sequence_table import n_common
from ....runtime.short_list import ShortList
from .later_blocks import N_ROWS, LaterBlocks
from .sequence import HeadSequence


@dataclass(slots=True)
class ChainedSequence(HeadSequence):
    """Each draft token comes from a block of its own, and those beyond the last block from that one
    again, with the states that it leaves.

    ahead: tokens after ``tokens`` that rows of later blocks have read already.
    text, n_drafted: the text in a draft, with its n_drafted draft tokens at the end.
    """

    ahead: list[int] = field(default_factory=list)
    text: list[int] = field(default_factory=list)
    n_drafted: int = 0
    later: LaterBlocks = field(init=False)

    def __post_init__(self) -> None:
        self.later = LaterBlocks(self.head, self.seq.seq_id)

    def n_seen(self, history: Sequence[int]) -> int:
        n = n_common(self._read, history[:-1])
        # the rows of the last ones, one for each block, have run with another next token, and their
        # states are gone
        if 0 < n < self._n_read:
            return max(0, n - self.head.kind.n_chained)
        return min(n, len(self.tokens))

    @property
    def _read(self) -> list[int]:
        """The tokens that rows of any block may have read."""
        return [*self.tokens, *self.ahead] if self.ahead else self.tokens

    @property
    def _n_read(self) -> int:
        """The number of tokens that rows of any block have read."""
        return len(self.tokens) + len(self.ahead) if self.ahead else self.n_run + 1

    def truncate(self, n: int) -> None:
        """Forget all but the first n tokens; all of them where a failed pass has removed rows."""
        if not self.seq.context.closed and self.seq.n_past < self._n_cells(self.n_run):
            n = 0
        self.ahead = self._read[n : min(n + self.head.kind.n_chained, self._n_read)]
        HeadSequence.truncate(self, n)
        self.later.truncate(self._n_cells(self.n_run))

    def append(self, tokens: Sequence[int], states: NDArray[np.float32]) -> None:
        HeadSequence.append(self, tokens, states)
        del self.ahead[: len(tokens)]

    def catch_up(self, text: Sequence[int], n: int) -> None:
        while self.n_run < n:
            rows, states = self._next(text, n, "all")
            left = self.head.decode(rows, states, *self.later.unused)
            n_run = rows.pos[-1] + 1 - self.head.kind.n_first  # by now
            del self.waiting[: n_run - self.n_run]
            self.later.read(text, self._n_cells(n_run), left)

    def lead(
        self, text: Sequence[int], head: Head = "logits", among: ShortList | None = None
    ) -> int:
        self.text, self.n_drafted = list(text), 0
        n = len(text) - 1
        self.catch_up(text, n - self._n_most)
        self.later.catch_up(text, self._n_cells(self.n_run))
        rows, states = self._next(text, n, "all")
        left = self.head.decode(rows, states, head, among)
        del self.waiting[:-1]
        self.later.start(left)
        self.left, self.pos = left[-1:], rows.pos[-1]
        return len(rows) - 1

    def follow(self, token: int, head: Head = "logits", among: ShortList | None = None) -> int:
        self.text.append(token)
        self.n_drafted += 1
        if self.n_drafted <= len(self.later):
            self.left, row = self.later.run(self.n_drafted, self.text, head, among)
            return row
        self.pos += 1
        return self._run(token, head, among, block=len(self.later))

    def undo(self) -> None:
        self.truncate(len(self.tokens))

    @property
    def _n_most(self) -> int:
        return min(self.head.n_batch, N_ROWS) - self.head.kind.n_first
