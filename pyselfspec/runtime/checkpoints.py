"""Checkpoints of recurrent states, with which a sequence goes back where its memory cannot remove
tokens. Pure.

An attention cache keeps K/V of every token, so that a sequence can be cut anywhere. A recurrent
state holds all tokens at once: it goes back only to a copy that was made in time.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

N_CHECKPOINTS = 32  # of a context, as llama.cpp's server keeps
MAX_BYTES = 1 << 30  # of all checkpoints of a context


@dataclass(frozen=True, eq=False, slots=True)
class Checkpoint:
    """The state of a sequence when it held n_tokens tokens, uint8 [n_bytes]."""

    n_tokens: int
    state: NDArray[np.uint8]


class Checkpoints:
    """The checkpoints of a context's sequences; the oldest make room for new ones.

    n_max, max_bytes: most checkpoints, and most bytes of all together. One is kept whatever its
        size. 0 checkpoints: none.
    """

    def __init__(self, n_max: int = N_CHECKPOINTS, max_bytes: int = MAX_BYTES) -> None:
        self._n_max = n_max
        self._max_bytes = max_bytes
        # by sequence id and number of tokens, oldest first
        self._kept: OrderedDict[tuple[int, int], Checkpoint] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def n_bytes(self) -> int:
        """The bytes of all checkpoints; a shared checkpoint counts once for each sequence."""
        return sum(each.state.nbytes for each in self._kept.values())

    def add(self, seq_id: int, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint of a sequence, in place of one with as many tokens."""
        key = seq_id, checkpoint.n_tokens
        self._kept.pop(key, None)
        self._kept[key] = checkpoint
        while len(self._kept) > max(self._n_max, 1) or (
            len(self._kept) > 1 and self.n_bytes > self._max_bytes
        ):
            self._kept.popitem(last=False)

    def has(self, seq_id: int, n: int) -> bool:
        """Return whether a sequence has a checkpoint of exactly n tokens."""
        return (seq_id, n) in self._kept

    def longest(self, seq_id: int, n: int) -> Checkpoint | None:
        """Return the checkpoint of a sequence with the most tokens, at most n."""
        found = (each for (i, _), each in self._kept.items() if i == seq_id)
        return max(
            (each for each in found if each.n_tokens <= n),
            key=lambda each: each.n_tokens,
            default=None,
        )

    def of(self, seq_id: int) -> tuple[Checkpoint, ...]:
        """Return the checkpoints of a sequence, oldest first."""
        return tuple(each for (i, _), each in self._kept.items() if i == seq_id)

    def truncate(self, seq_id: int, n: int) -> None:
        """Forget the checkpoints of a sequence with more than n tokens."""
        for key in [key for key in self._kept if key[0] == seq_id and key[1] > n]:
            del self._kept[key]

    def remove(self, seq_id: int, checkpoint: Checkpoint) -> None:
        """Forget this checkpoint, if it is still kept."""
        key = seq_id, checkpoint.n_tokens
        if self._kept.get(key) is checkpoint:
            del self._kept[key]

    def copy(self, seq_id: int, other: int) -> None:
        """Give another sequence the checkpoints of this one."""
        self.truncate(other, -1)
        for (i, _), each in list(self._kept.items()):
            if i == seq_id:
                self.add(other, each)
