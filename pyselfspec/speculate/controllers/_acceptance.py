"""How often the target agrees with a draft token, by the drafter's probability: learned while
generating."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

EDGES = (0.3, 0.5, 0.65, 0.8, 0.9, 0.96, 0.99)  # between the rows, by probability
N_PROB = len(EDGES) + 1  # rows by probability; one more for drafters that state none
MIDDLES = [(a + b) / 2 for a, b in zip((0.0, *EDGES), (*EDGES, 1.0), strict=True)]
PRIOR = np.array([*MIDDLES, 0.5])  # acceptance of a row without outcomes: take the drafter's word
N_PRIOR = 1.0  # outcomes that the prior is worth
FORGET = 0.98  # weight of an outcome when the next one comes: the last 50 count

Rows = NDArray[np.float64]  # [N_PROB + 1]


class Acceptance:
    """Belongs to a conversation, whose next text is much like its last."""

    def __init__(self) -> None:
        self._n_right = [0.0] * len(PRIOR)
        self._n_all = [0.0] * len(PRIOR)
        self._weight = 1.0  # of the latest outcome: it grows, so that the others need not shrink

    def observe(self, outcomes: Iterable[tuple[float | None, bool]]) -> None:
        """Of draft tokens, oldest first, see ``Step.outcomes``."""
        for p, right in outcomes:
            row = N_PROB if p is None else bisect_right(EDGES, p)
            self._weight /= FORGET
            self._n_all[row] += self._weight
            self._n_right[row] += self._weight * right

    def rows(self) -> tuple[Rows, Rows]:
        """Of each row, the share of draft tokens that fall into it, and their acceptance."""
        n_right, n_all = np.array([self._n_right, self._n_all]) / self._weight
        share = n_all.copy()
        share[:N_PROB] += N_PRIOR / N_PROB
        return share / share.sum(), (n_right + N_PRIOR * PRIOR) / (n_all + N_PRIOR)
