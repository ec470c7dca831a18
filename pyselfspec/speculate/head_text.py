"""What a draft head knows of a text: it follows the passes of the model over it, reading the states
that they leave.

A row of the head is the state of one token and the token behind it, so the last token that a pass
has seen waits until the next one is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..runtime.draft_head import DraftHead
from ..runtime.kv import KVSequence
from ..runtime.ledger import n_common
from ..runtime.passes import Head, Outputs, Rows
from ..runtime.short_list import ShortList

N_WAITING = 32  # rows that may wait; those that a draft finds waiting go through one pass


@dataclass(slots=True)
class HeadText:
    """Of the text in one sequence.

    tokens: whose states have been seen, from the beginning of the text.
    waiting: states of the last of them, whose rows have not run yet.
    """

    head: DraftHead
    seq: KVSequence  # the head's
    tokens: list[int] = field(default_factory=list)
    waiting: list[NDArray[np.float32]] = field(default_factory=list)

    @property
    def n_run(self) -> int:
        """Rows that have run."""
        return len(self.tokens) - len(self.waiting)

    def known(self, history: Sequence[int]) -> int:
        """Of how many tokens at the beginning of a text, its last one left out, the head has what
        it needs to go on from there."""
        n = n_common(self.tokens, history[:-1])
        # the last one's row has run with another token behind it, and its states are gone
        return n - 1 if 0 < n <= self.n_run else n

    def cut(self, n: int) -> None:
        """Forget all but the first n tokens."""
        self.seq.undo(self._n_cells(min(self.n_run, n)))
        del self.waiting[max(0, n - self.n_run) :]
        del self.tokens[n:]

    def saw(self, tokens: Sequence[int], states: NDArray[np.float32]) -> None:
        """A pass over the next tokens left these states, float32 [n_tokens, n_features]."""
        self.tokens += tokens
        self.waiting += list(states)

    def catch_up(self, text: Sequence[int], n: int) -> None:
        """Run the rows of the first n tokens of a text."""
        while self.n_run < n:
            rows, states = self._next(text, n, "none")
            self.head.decode(rows, states)
            n_run = rows.pos[-1] + 1 - self.head.n_first  # by now
            del self.waiting[: n_run - self.n_run]

    def lead(
        self, text: Sequence[int], head: Head = "logits", among: ShortList | None = None
    ) -> tuple[NDArray[np.float32], int]:
        """Run the rows of all tokens but the last, and return the states that the last of these
        rows leaves, float32 [1, n_embd], and its number in the pass.

        The last row goes on waiting, and ``back`` takes it out again.

        head, among: see DraftHead.decode.
        """
        n = len(text) - 1
        self.catch_up(text, n - self.head.n_batch + self.head.n_first)
        rows, states = self._next(text, n, "last")
        left = self.head.decode(rows, states, head, among)
        del self.waiting[:-1]
        return left, len(rows) - 1

    def back(self) -> None:
        """Forget what was run behind the rows that have run for good."""
        self.seq.undo(self._n_cells(self.n_run))

    def _n_cells(self, n_run: int) -> int:
        """K/V of so many rows, and of those before them that have no states."""
        return n_run + self.head.n_first if n_run else 0

    def _next(
        self, text: Sequence[int], n: int, outputs: Outputs
    ) -> tuple[Rows, NDArray[np.float32]]:
        """The rows that run next, up to n in all, and before the first those without states."""
        first, end = self.n_run, min(n, self.n_run + self.head.n_batch - self.head.n_first)
        states = self.head.fuse(np.stack(self.waiting[: end - first]))
        n_bare = 0 if first else self.head.n_first
        bare = np.zeros((n_bare, states.shape[1]), np.float32)
        tokens = text[first + 1 - n_bare : end + 1]
        pos = self._n_cells(first)
        return Rows.of(self.seq.seq_id, pos, tokens, outputs), np.vstack([bare, states])
