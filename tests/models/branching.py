"""Drafters of trees for tests: they know the text that plain decoding writes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from drafts import draft_of

from pyselfspec.speculate.limits import DraftLimit
from pyselfspec.speculate.types import Draft
from pyselfspec.testing.fake_drafter import FakeDrafter

KINDS = ("random", "last", "first", "wrong")


class Trees(FakeDrafter):
    """plain: the whole text, prompt included. kind: random trees; the right branch in the last
    place, or in the first one; or all branches wrong."""

    name = "trees"

    def __init__(self, plain: Sequence[int], kind: str, seed: int, n_vocab: int) -> None:
        super().__init__(None)  # type: ignore[arg-type]
        self._plain = list(plain)
        self._kind = kind
        self._n_vocab = n_vocab
        self._rng = np.random.default_rng(seed)
        self.drafts: list[Draft] = []

    def draft(self, history: Sequence[int], limit: DraftLimit) -> Draft:
        right = self._plain[len(history) :]
        draft = self._tree(right, limit.n_max) if limit.n_max else Draft()
        self.drafts.append(draft)
        return draft

    def _tree(self, right: Sequence[int], n: int) -> Draft:
        tokens: list[int] = []
        parents: list[int] = []
        depths: list[int] = []

        def add(parent: int, *, is_right: bool) -> int:
            depth = depths[parent] + 1 if parent >= 0 else 0
            good = right[depth] if depth < len(right) else 1
            taken = {tokens[i] for i, p in enumerate(parents) if p == parent}
            token = good
            while not is_right and (token == good or token in taken):
                token = int(self._rng.integers(1, self._n_vocab))
            if token not in taken:
                tokens.append(token)
                parents.append(parent)
                depths.append(depth)
            return len(tokens) - 1

        if self._kind == "random":
            while len(tokens) < n:
                parent = int(self._rng.integers(-1, len(tokens)))
                n_before = len(tokens)
                add(parent, is_right=bool(self._rng.integers(2)))
                if len(tokens) == n_before:
                    add(parent, is_right=False)
        else:
            for start in range(0, n, 2):  # branches of two; the right one goes on to the end
                node, is_last = -1, start + 2 >= n
                here = (self._kind == "last" and is_last) or (self._kind == "first" and start == 0)
                for _ in range(min(2, n - start)):
                    node = add(node, is_right=here)
        return draft_of(tokens, parents=parents)
