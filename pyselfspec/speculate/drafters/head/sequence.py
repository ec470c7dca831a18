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

N_WAITING = 32  # most rows that may wait; a draft runs all of them in one pass


@dataclass(slots=True)
class HeadSequence:
    """A draft head's tokens and states for the text in one sequence.

    tokens: the beginning of the text, as far as its states have been read.
    waiting: states of the last of them, whose rows have not run yet, float32 [n_features] each.
    pos, left: position of the last row of a draft, and the states after it, float32 [1, n_state].
    confidence: predicted probabilities that the tokens of the last block are accepted, by row,
        float32 [n_block]; None for heads that predict none.
    """

    head: DraftHead
    seq: KVSequence  # the head's
    tokens: list[int] = field(default_factory=list)
    waiting: list[NDArray[np.float32]] = field(default_factory=list)
    pos: int = 0
    left: NDArray[np.float32] = field(default_factory=lambda: np.empty((1, 0), np.float32))
    confidence: NDArray[np.float32] | None = None

    @property
    def n_run(self) -> int:
        """The number of rows that have run."""
        return len(self.tokens) - len(self.waiting)

    def n_seen(self, history: Sequence[int]) -> int:
        """Return the number of tokens at the beginning of a text, its last one left out, from which
        the head can go on."""
        n = n_common(self.tokens, history[:-1])
        # the last one's row has run with another next token, and its states are gone
        return n - 1 if 0 < n <= self.n_run else n

    def truncate(self, n: int) -> None:
        """Forget all but the first n tokens."""
        self.seq.rollback_if_open(self._n_cells(min(self.n_run, n)))
        del self.waiting[max(0, n - self.n_run) :]
        del self.tokens[n:]

    def append(self, tokens: Sequence[int], states: NDArray[np.float32]) -> None:
        """Add the next tokens and their states, float32 [n_tokens, n_features]."""
        self.tokens += tokens
        self.waiting += list(states)

    def catch_up(self, text: Sequence[int], n: int) -> None:
        """Run the rows of the first n tokens of a text."""
        while self.n_run < n:
            rows, states = self._next(text, n, "none")
            self.head.decode(rows, states)
            n_run = rows.pos[-1] + 1 - self.head.kind.n_first  # by now
            del self.waiting[: n_run - self.n_run]

    def lead(
        self, text: Sequence[int], head: Head = "logits", among: ShortList | None = None
    ) -> int:
        """Run the rows of all tokens but the last. Return the index of the last of these rows in
        the pass: its logits are those of the first draft token.

        The last row goes on waiting, and ``undo`` removes its K/V.

        head, among: see DraftHead.decode.
        """
        n = len(text) - 1
        self.catch_up(text, n - self._n_most)
        rows, states = self._next(text, n, "last")
        self.left = self.head.decode(rows, states, head, among)
        self.pos = rows.pos[-1]
        del self.waiting[:-1]
        return len(rows) - 1

    def follow(
        self, token: int, head: Head = "logits", among: ShortList | None = None
    ) -> int | None:
        """Run the row of a draft token after the row before it. Return its index in the pass, None
        where the head drafts no further token."""
        self.pos += 1
        return self._run(token, head, among)

    def _run(self, token: int, head: Head, among: ShortList | None, block: int = 0) -> int:
        rows = Rows.of(self.seq.seq_id, self.pos, [token], "last")
        self.left = self.head.decode(rows, self.left, head, among, block=block)
        return 0

    def undo(self) -> None:
        """Remove the K/V of draft tokens."""
        self.seq.rollback_if_open(self._n_cells(self.n_run))

    @property
    def _n_most(self) -> int:
        """The most rows of a pass besides those without states."""
        return self.head.n_batch - self.head.kind.n_first

    def _n_cells(self, n_run: int) -> int:
        """Return the number of K/V cells of n_run rows and of the rows without states before
        them."""
        return n_run + self.head.kind.n_first if n_run else 0

    def _next(
        self, text: Sequence[int], n: int, outputs: Outputs
    ) -> tuple[Rows, NDArray[np.float32]]:
        """Return the next rows to run, up to n in all, after those without states at the
        beginning."""
        first, end = self.n_run, min(n, self.n_run + self._n_most)
        states = self.head.fuse(np.stack(self.waiting[: end - first]))
        n_bare = 0 if first else self.head.kind.n_first
        bare = np.zeros((n_bare, states.shape[1]), np.float32)
        tokens = text[first + 1 - n_bare : end + 1]
        pos = self._n_cells(first)
        return Rows.of(self.seq.seq_id, pos, tokens, outputs), np.vstack([bare, states])


class SharedSequence(HeadSequence):
    """The state of a head that attends to the model's K and V. It needs the last token's states
    only, and all rows of a draft are at the position of the token that the model evaluates next:
    such heads are trained that way, since the model has no K and V of draft tokens yet."""

    def truncate(self, n: int) -> None:
        del self.waiting[max(0, n - self.n_run) :]
        del self.tokens[n:]

    def catch_up(self, text: Sequence[int], n: int) -> None:
        """Drop the states of the first n tokens."""
        del self.waiting[: max(0, n - self.n_run)]

    def lead(
        self, text: Sequence[int], head: Head = "logits", among: ShortList | None = None
    ) -> int:
        self.catch_up(text, len(text) - 2)
        self.pos = len(text) - 1
        self.left = self.head.fuse(np.stack(self.waiting))
        return self._run(text[-1], head, among)

    def follow(self, token: int, head: Head = "logits", among: ShortList | None = None) -> int:
        return self._run(token, head, among)

    def undo(self) -> None:
        """Do nothing: no row has K/V."""


class BlockSequence(HeadSequence):
    """The state of a head that keeps K and V of the model's states, and drafts a block of tokens in
    one pass over them. A row of this pass depends on no other draft token; its logits may, see
    ``DraftHead.score``."""

    def n_seen(self, history: Sequence[int]) -> int:
        return n_common(self.tokens, history[:-1])  # nor does a state need the next token

    def catch_up(self, text: Sequence[int], n: int) -> None:
        """Keep K and V of the first n tokens of a text."""
        while self.n_run < n:
            first, end = self.n_run, min(n, self.n_run + self.head.n_batch)
            rows = Rows.of(self.seq.seq_id, first, text[first:end], "none")
            self.head.keep(rows, np.stack(self.waiting[: end - first]))
            del self.waiting[: end - first]

    def lead(
        self, text: Sequence[int], head: Head = "logits", among: ShortList | None = None
    ) -> int:
        kind = self.head.kind
        self.catch_up(text, len(text) - 1)
        block = [text[-1], *[kind.mask_token] * (kind.n_block - 1)]
        rows = Rows.of(self.seq.seq_id, self.n_run, block)
        self.confidence = self.head.draft_block(rows, head, among)
        self.pos = self.n_run + kind.first_row
        return self._scored(kind.first_row, text[-1])

    def follow(
        self, token: int, head: Head = "logits", among: ShortList | None = None
    ) -> int | None:
        self.pos += 1
        row = self.pos - self.n_run
        return self._scored(row, token) if row < self.head.kind.n_block else None

    def _scored(self, row: int, previous: int) -> int:
        if self.head.kind.scores_candidates:
            self.head.score(row, previous)
        return row
