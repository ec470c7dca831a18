"""The blocks after the first one of a head in a model's own file: block k drafts the token k + 1
after the next one, counted from 0.

DeepSeek-AI, "DeepSeek-V3 Technical Report", section 2.2, https://arxiv.org/abs/2412.19437:

- Row j of block 0 reads token j of the text and the model's state of the token before it; row 0,
  as in llama.cpp, has zeros in place of a state.
- Row j of block k reads token j + k of the text, and the state that block k - 1 left in row j.
- So block k lags k rows behind: its last rows of a text need draft tokens, and run while drafting.
- All blocks share cells: row j is at position j for each of them, and each writes its own K/V. The
  first block takes the cells, the later ones write in place. Rows that have read draft tokens run
  again in the next draft, by then with tokens of the text.
- llama.cpp's own speculation runs rows that are not shifted, with the model's states, in all
  blocks. The two agree in the last row of a block, and differ in the K/V before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ....runtime.draft_head import DraftHead
from ....runtime.passes import Head, Rows
from ....runtime.short_list import ShortList

N_ROWS = 32  # most rows of a pass: all of them have outputs, which need memory
N_BEHIND = 8  # rows of a later block that a draft pass runs along; more take passes of their own


@dataclass(slots=True)
class Block:
    """A later block's state for a text.

    n_run: number of rows that have run with tokens of the text only.
    waiting: states that the rows after them read, as far as they are known for good.
    """

    n_run: int = 0
    waiting: list[NDArray[np.float32]] = field(default_factory=list)


class LaterBlocks:
    """The blocks 1, 2, ... of a head, for the text of one sequence.

    The rows of the first block are run elsewhere; their states are given to ``read``, or to
    ``start`` if a draft follows at once.
    """

    def __init__(self, head: DraftHead, seq_id: int) -> None:
        self._head, self._seq_id = head, seq_id
        self._blocks = [Block() for _ in range(head.kind.n_chained - 1)]
        self._left = np.empty((0, 0), np.float32)  # states that the next block reads in this draft

    @property
    def unused(self) -> tuple[Head, ShortList | None]:
        """The cheapest way of a pass whose states are wanted and whose logits are not."""
        head = self._head
        return ("best", ShortList(1, head.n_vocab)) if head.can_shorten else (head.best_head, None)

    def __len__(self) -> int:
        return len(self._blocks)

    def truncate(self, n_rows: int) -> None:
        """Forget all but the first n_rows rows, which is how many of block 0 are left."""
        for block in self._blocks:
            block.n_run = min(block.n_run, n_rows)
            del block.waiting[n_rows - block.n_run :]
            n_rows = block.n_run

    def read(self, text: Sequence[int], n_rows: int, states: NDArray[np.float32]) -> None:
        """Run the rows that do not need draft tokens.

        text: up to the token of block 0's last row, or further. n_rows: rows that block 0 has run.
        states: those that it left in the rows since the last call, float32 [n, n_embd].
        """
        self._blocks[0].waiting += list(states)
        for k, block in enumerate(self._blocks, 1):
            while block.n_run < n_rows - k:
                end = min(n_rows - k, block.n_run + min(N_ROWS, self._head.n_batch))
                given = np.stack(block.waiting[: end - block.n_run])
                left = self._run(k, text, end, given, *self.unused)
                self._settle(k, end, left)

    def catch_up(self, text: Sequence[int], n_rows: int) -> None:
        """Run rows as ``read`` does if they are too many for a draft pass."""
        most = min(N_BEHIND, self._head.n_batch // 2)
        if any(len(block.waiting) > most for block in self._blocks):
            self.read(text, n_rows, self._left[:0])

    def start(self, states: NDArray[np.float32]) -> None:
        """Begin a draft. states: left by block 0 in the rows since the last call, up to the row of
        the text's last token, float32 [n, n_embd]."""
        self._blocks[0].waiting += list(states[:-1])
        self._left = states[-1:]

    def run(
        self, k: int, text: Sequence[int], what: Head, among: ShortList | None
    ) -> tuple[NDArray[np.float32], int]:
        """Run block k up to the row whose state drafts. Return this state, float32 [1, n_embd], and
        the index of the row in the pass.

        text: with k draft tokens at its end, for which block k - 1 and those before it have run.
        """
        block, n_rows = self._blocks[k - 1], len(text) - k
        given = np.vstack([*block.waiting, self._left])
        left = self._run(k, text, n_rows, given, what, among)
        self._left = left[self._settle(k, n_rows - 1 - k, left) :]
        return left[-1:], len(left) - 1

    def _settle(self, k: int, end: int, left: NDArray[np.float32]) -> int:
        """Keep what rows before ``end`` have left for the next block; return their number."""
        block = self._blocks[k - 1]
        n = max(0, end - block.n_run)
        del block.waiting[:n]
        block.n_run += n
        if k < len(self._blocks):
            self._blocks[k].waiting += list(left[:n])
        return n

    def _run(
        self,
        k: int,
        text: Sequence[int],
        end: int,
        states: NDArray[np.float32],
        what: Head,
        among: ShortList | None,
    ) -> NDArray[np.float32]:
        """Run the next rows of block k before ``end``; return the states that they leave."""
        first = self._blocks[k - 1].n_run
        rows = Rows.of(self._seq_id, first, text[first + k : end + k])
        return self._head.decode(rows, states, what, among, block=k, in_place=True)
