"""Beginnings of texts kept in RAM beyond the context, and on disk: a prompt that continues one is
not read again. For the engine's thread."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...runtime.saved import SavedSequence
from .prefix_files import PrefixFiles

N_TOKENS_MIN = 64  # tokens; shorter texts are read as quickly


class Prefixes:
    """Saved sequences; the least recently used make room for new ones.

    max_bytes: of all in RAM, 0 for none. files: those on disk; None: none.
    """

    def __init__(self, max_bytes: int, files: PrefixFiles | None = None) -> None:
        self._max_bytes = max_bytes
        self._files = files
        self._kept: OrderedDict[int, SavedSequence] = OrderedDict()  # by number, oldest first
        self._n_added = 0
        self.n_bytes = 0
        self.n_restored = 0  # texts that began with a saved sequence

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def has_files(self) -> bool:
        return self._files is not None

    def is_worth(self, n_tokens: int) -> bool:
        """Return whether to save a text of this length."""
        return n_tokens >= N_TOKENS_MIN and (self._max_bytes > 0 or self.has_files)

    def holds(self, tokens: Sequence[int]) -> bool:
        """Return whether a text that begins with all of these tokens is kept in RAM or on disk."""
        given = np.array(tokens, np.int32)
        in_ram = any(_begins(each.tokens, given) for each in self._kept.values())
        return in_ram or (self._files is not None and self._files.holds(given))

    def add(self, saved: SavedSequence, *, waits: bool = False) -> None:
        """Keep a sequence, in place of its beginnings. waits: whether to wait where
        many others are still being written."""
        if self._files is not None:
            self._files.add(saved, waits=waits)
        for number, each in list(self._kept.items()):
            if _begins(saved.tokens, each.tokens) and saved.can_cut:
                self._drop(number)
        if saved.n_bytes > self._max_bytes:
            return
        self._n_added += 1
        self._kept[self._n_added] = saved
        self.n_bytes += saved.n_bytes
        while self.n_bytes > self._max_bytes:
            self._drop(next(iter(self._kept)))

    def _drop(self, number: int) -> None:
        self.n_bytes -= self._kept.pop(number).n_bytes

    def longest(self, prompt: Sequence[int], n_least: int) -> SavedSequence | None:
        """Return the sequence of which a prompt can use the most tokens, more than n_least; None
        without one."""
        given = np.array(prompt, np.int32)
        best, n_best = None, max(n_least, N_TOKENS_MIN)
        for number, each in self._kept.items():
            n = each.n_usable(given)
            if n > n_best:
                best, n_best = number, n
        if self._files is not None:
            found = self._files.longest(given, n_best)
            if found is not None:
                return found
        if best is None:
            return None
        self._kept.move_to_end(best)
        return self._kept[best]

    def close(self) -> None:
        """Finish writing files."""
        if self._files is not None:
            self._files.close()


def _begins(tokens: NDArray[np.int32], beginning: NDArray[np.int32]) -> bool:
    n = len(beginning)
    return len(tokens) >= n and bool(np.array_equal(tokens[:n], beginning))
