"""How often the target agrees with a guess: estimated while generating, by the guess's probability
and its place in the draft."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

from ..types import Step

EDGES = (0.3, 0.5, 0.65, 0.8, 0.9, 0.96, 0.99)  # of the bins of probability
MIDDLES = np.array([(a + b) / 2 for a, b in zip((0.0, *EDGES), (*EDGES, 1.0), strict=True)])
N_BIN = len(MIDDLES)
N_PLACE = 4  # the first three guesses of a draft, and all later ones
FORGET = 0.98  # weight of an outcome when the next one comes: 50 count
N_PRIOR = 2.0  # outcomes that an expectation without outcomes is worth
CAUTION = 0.8  # drafts think too well of themselves
N_DOUBT = 2.0  # wrong guesses that the pessimist adds

Rates = NDArray[np.float64]


def bin_of(p: float) -> int:
    return bisect_right(EDGES, p)


def place_of(n_before: int) -> int:
    return min(n_before, N_PLACE - 1)


class Acceptance:
    def __init__(self) -> None:
        self._right = np.zeros((N_BIN, N_PLACE))
        self._all = np.zeros((N_BIN, N_PLACE))
        self.n_outcomes = 0

    def observe(self, step: Step) -> None:
        outcomes = step.outcomes
        if not outcomes:
            return
        self.n_outcomes += len(outcomes)
        self._right *= FORGET ** len(outcomes)
        self._all *= FORGET ** len(outcomes)
        for place, (p, right) in enumerate(outcomes):
            at = bin_of(0.5 if p is None else p), place_of(place)
            self._right[at] += right
            self._all[at] += 1

    def rates(self) -> Rates:
        """Acceptance, [N_BIN, N_PLACE]. Few outcomes of a place lean on those of the bin, and few
        of the bin on the drafter's own probability."""
        n_right, n_all = self._right.sum(1), self._all.sum(1)
        of_bin = (n_right + N_PRIOR * CAUTION * MIDDLES) / (n_all + N_PRIOR)
        rates: Rates = (self._right + N_PRIOR * of_bin[:, None]) / (self._all + N_PRIOR)
        return rates

    def shares(self) -> Rates:
        """How many guesses fall into each bin, [N_BIN], sum 1."""
        n_all: Rates = self._all.sum(1) + N_PRIOR / N_BIN
        return n_all / float(n_all.sum())

    def lowest(self) -> Rates:
        """A pessimist's acceptance of guesses in each bin and above, [N_BIN]; 0 without any."""
        n_right, n_all = self._right.sum(1), self._all.sum(1)
        lowest: Rates = upwards(n_right) / (upwards(n_all) + N_DOUBT)
        return lowest


def upwards(values: Rates) -> Rates:
    """Sums of each bin and those above, [N_BIN, ...]."""
    sums: Rates = values[::-1].cumsum(axis=0)[::-1]
    return sums
