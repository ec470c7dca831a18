"""Acceptance rates of draft tokens by the drafter's probability, learned while generating.

Counts of outcomes decay and start from a prior. The constants of all such counters are reasoned,
not tuned; no experiment on them is recorded:

    FORGET 0.98   weighs the last 50 outcomes: rates that change within a text (this file, jacobi,
                  lookahead)
    FORGET 0.995  weighs the last 200: kinds of matches, of which most are rare (costs/chances.py)
    N_PRIOR 1     prior from the drafter's own probability, which outcomes soon correct (this file)
    N_PRIOR 4     prior from measured rates by kind (costs/chances.py, jacobi)
    N_PRIOR 8     a single rate for a whole context (lookahead)
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field

from ...costs.timed import TimedCosts

EDGES = (0.3, 0.5, 0.65, 0.8, 0.9, 0.96, 0.99)  # between bins of probabilities
N_PROB = len(EDGES) + 1  # bins; one more is for drafters without probabilities
MIDDLES = [(a + b) / 2 for a, b in zip((0.0, *EDGES), (*EDGES, 1.0), strict=True)]
PRIOR = (*MIDDLES, 0.5)  # rates without outcomes: the drafter's probabilities
N_PRIOR = 1.0  # outcomes that the prior counts as
FORGET = 0.98  # weight of an outcome relative to the next one


class Acceptance:
    """Acceptance rates of one conversation, whose next text resembles its last."""

    def __init__(self) -> None:
        self._n_right = [0.0] * len(PRIOR)
        self._n_all = [0.0] * len(PRIOR)
        self._weight = 1.0  # of the latest outcome; it grows instead of the others shrinking

    def observe(self, outcomes: Iterable[tuple[float | None, bool]]) -> None:
        """Add outcomes of draft tokens, oldest first: probability, and whether it was accepted."""
        for p, right in outcomes:
            row = N_PROB if p is None else bisect_right(EDGES, p)
            self._weight /= FORGET
            self._n_all[row] += self._weight
            self._n_right[row] += self._weight * right

    def rows(self) -> tuple[list[float], list[float]]:
        """Return (share, acceptance) of draft tokens by bin, each N_PROB + 1 numbers."""
        n_all = [n / self._weight for n in self._n_all]
        total = sum(n_all) + N_PRIOR
        share = [(n + N_PRIOR / N_PROB) / total for n in n_all[:N_PROB]] + [n_all[-1] / total]
        rate = [
            (right / self._weight + N_PRIOR * prior) / (n + N_PRIOR)
            for right, n, prior in zip(self._n_right, n_all, PRIOR, strict=True)
        ]
        return share, rate


@dataclass(frozen=True, slots=True)
class Learned:
    """Timings and acceptance rates that controllers pass from one text to the next. Kept by the
    caller, and updated one text at a time.

    timings: of one drafter in one context.
    acceptance: of one conversation; for another one use ``Learned(memory.timings)``.
    """

    timings: TimedCosts
    acceptance: Acceptance = field(default_factory=Acceptance)
