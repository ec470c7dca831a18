"""Acceptance rates of copied tokens by the kind of match that they were copied from. Pure."""

from __future__ import annotations

LENGTHS = (1, 2, 3, 4, 6, 8, 12)  # tokens of the n-grams that are matched
Match = tuple[int, int]  # index of the length in LENGTHS, and how far the matches agree: 0..3

N_SURENESS = 4
N_PRIOR = 4.0  # outcomes that the prior counts as, see speculate/controllers/_acceptance.py
FORGET = 0.995  # weight of an outcome relative to the next one of its kind
PRIOR = (0.2, 0.35, 0.45, 0.55, 0.65, 0.75, 0.85)  # acceptance rates by length


Counts = tuple[tuple[tuple[float, float], ...], ...]  # right, all; by length and sureness
N_KEPT = 50.0  # outcomes of a kind that are stored for another run, whose text may differ


class Chances:
    """Acceptance rates of copied tokens by the kind of match, learned while generating.

    prior: rates without outcomes, relative to those of matches in the same text.
    counts: initial counts, see ``counts``.
    """

    def __init__(self, prior: float = 1.0, counts: Counts | None = None) -> None:
        if counts is None:
            counts = tuple(((N_PRIOR * prior * p, N_PRIOR),) * N_SURENESS for p in PRIOR)
        self._right = [[right for right, _ in row] for row in counts]
        self._all = [[n for _, n in row] for row in counts]

    def of(self, match: Match) -> float:
        i, sureness = match
        return self._right[i][sureness] / self._all[i][sureness]

    def observe(self, match: Match, right: bool) -> None:
        i, sureness = match
        self._right[i][sureness] = FORGET * self._right[i][sureness] + right
        self._all[i][sureness] = FORGET * self._all[i][sureness] + 1

    @property
    def counts(self) -> Counts:
        """Counts for another run, at most N_KEPT of a kind."""
        return tuple(
            tuple(_kept(right, n) for right, n in zip(*row, strict=True))
            for row in zip(self._right, self._all, strict=True)
        )


def _kept(right: float, n: float) -> tuple[float, float]:
    kept = min(N_KEPT, n)
    return min(kept, kept / n * right), kept
