"""The state of a draft head for one text: it reads hidden states of the model's passes over it.

A row of the head combines the state of one token with the next token, so the last token of a pass
waits until the next one is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ....runtime.draft_head import DraftHead
from ....runtime.kv import KVSequence
from ....runtime.passes import Head, Outputs, Rows
from ....runtime.sequence_table import n_common
from ....runtime.short_list import ShortList
from .later_blocks import N_ROWS, LaterBlocks

N_WAITING = 32  # most rows that may wait; a draft runs all of them in one pass


@dataclass(slots=True)
class HeadSequence:
    """A draft head's tokens and states for the text in one sequence.

    tokens: the beginning of the text, as far as its states have been read.
    waiting: states of the last of them, whose rows have not run yet, float32 [n_features] each.
    ahead: tokens after them that rows of later blocks have read already.
    """

    head: DraftHead
    seq: KVSequence  # the head's
    tokens: list[int] = field(default_factory=list)
    waiting: list[NDArray[np.float32]] = field(default_factory=list)
    ahead: list[int] = field(default_factory=list)
    later: LaterBlocks = field(init=False)

    def __post_init__(self) -> None:
        self.later = LaterBlocks(self.head, self.seq.seq_id)

    @property
    def n_run(self) -> int:
        """The number of rows that have run."""
        return len(self.tokens) - len(self.waiting)

    def n_seen(self, history: Sequence[int]) -> int:
        """Return the number of tokens at the beginning of a text, its last one left out, from which
        the head can go on."""
        known = [*self.tokens, *self.ahead] if self.ahead else self.tokens
        n = n_common(known, history[:-1])
        # the rows of the last ones, one for each block, have run with another next token, and their
        # states are gone
        if 0 < n < self._n_read:
            return max(0, n - self.head.n_blocks)
        return min(n, len(self.tokens))

    @property
    def _n_read(self) -> int:
        """The number of tokens that rows of any block have read."""
        return len(self.tokens) + len(self.ahead) if self.ahead else self.n_run + 1

    def truncate(self, n: int) -> None:
        """Forget all but the first n tokens; all of them where a failed pass has removed rows."""
        if self.later and not self.seq.context.closed:
            n = n if self.seq.n_past >= self._n_cells(self.n_run) else 0
        if self.later:
            known, n_blocks = [*self.tokens, *self.ahead], self.head.n_blocks
            self.ahead = known[n : min(n + n_blocks, self._n_read)]
        self.seq.rollback_if_open(self._n_cells(min(self.n_run, n)))
        del self.waiting[max(0, n - self.n_run) :]
        del self.tokens[n:]
        self.later.truncate(self._n_cells(self.n_run))

    def append(self, tokens: Sequence[int], states: NDArray[np.float32]) -> None:
        """Add the next tokens and their states, float32 [n_tokens, n_features]."""
        self.tokens += tokens
        del self.ahead[: len(tokens)]
        self.waiting += list(states)

    def catch_up(self, text: Sequence[int], n: int) -> None:
        """Run the rows of the first n tokens of a text."""
        while self.n_run < n:
            rows, states = self._next(text, n, "all" if self.later else "none")
            what, among = self.later.unused if self.later else ("logits", None)
            left = self.head.decode(rows, states, what, among)
            n_run = rows.pos[-1] + 1 - self.head.n_first  # by now
            del self.waiting[: n_run - self.n_run]
            if self.later:
                self.later.read(text, self._n_cells(n_run), left)

    def lead(
        self, text: Sequence[int], head: Head = "logits", among: ShortList | None = None
    ) -> tuple[NDArray[np.float32], int]:
        """Run the rows of all tokens but the last. Return the states after the last of these rows,
        float32 [1, n_embd], and its index in the pass.

        The last row goes on waiting, and ``undo`` removes its K/V.

        head, among: see DraftHead.decode.
        """
        n = len(text) - 1
        self.catch_up(text, n - self._n_most)
        self.later.catch_up(text, self._n_cells(self.n_run))
        rows, states = self._next(text, n, "all" if self.later else "last")
        left = self.head.decode(rows, states, head, among)
        del self.waiting[:-1]
        if self.later:
            self.later.start(left)
        return left[-1:], len(rows) - 1

    def follow(
        self,
        text: Sequence[int],
        drafted: Sequence[int],
        states: NDArray[np.float32],
        head: Head = "logits",
        among: ShortList | None = None,
    ) -> tuple[NDArray[np.float32], int]:
        """Run the row after draft tokens; return what ``lead`` does.

        states: after the row that drafted the last of them. Each token is drafted by a block of its
        own, and those beyond the last block by that one again, from the states that it leaves.
        """
        k = len(drafted)
        if k <= len(self.later):
            return self.later.run(k, [*text, *drafted], head, among)
        block = len(self.later)
        pos = len(text) - 1 + self.head.n_first + k - 1 - block
        rows = Rows.of(self.seq.seq_id, pos, drafted[-1:], "last")
        return self.head.decode(rows, states, head, among, block=block), 0

    def undo(self) -> None:
        """Remove the K/V of draft tokens."""
        if self.later:
            self.truncate(len(self.tokens))
        self.seq.rollback_if_open(self._n_cells(self.n_run))

    @property
    def _n_most(self) -> int:
        """The most rows of a pass besides those without states."""
        n = min(self.head.n_batch, N_ROWS) if self.later else self.head.n_batch
        return n - self.head.n_first

    def _n_cells(self, n_run: int) -> int:
        """Return the number of K/V cells of n_run rows and of the rows without states before
        them."""
        return n_run + self.head.n_first if n_run else 0

    def _next(
        self, text: Sequence[int], n: int, outputs: Outputs
    ) -> tuple[Rows, NDArray[np.float32]]:
        """Return the next rows to run, up to n in all, after those without states at the
        beginning."""
        first, end = self.n_run, min(n, self.n_run + self._n_most)
        states = self.head.fuse(np.stack(self.waiting[: end - first]))
        n_bare = 0 if first else self.head.n_first
        bare = np.zeros((n_bare, states.shape[1]), np.float32)
        tokens = text[first + 1 - n_bare : end + 1]
        pos = self._n_cells(first)
        return Rows.of(self.seq.seq_id, pos, tokens, outputs), np.vstack([bare, states])
