"""Acceptance rates of copied tokens by the kind of match that they were copied from. Pure."""

from __future__ import annotations

from array import array

LENGTHS = (1, 2, 3, 4, 6, 8, 12)  # tokens of the n-grams that are matched
# Index of the length in LENGTHS, and how far the matches agree. 0: there is one match, 1: they
# differ, 2: most agree, 3: all agree.
Match = tuple[int, int]

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
    rates: doubles [len(LENGTHS), N_SURENESS], which C++ reads.
    """

    def __init__(self, prior: float = 1.0, counts: Counts | None = None) -> None:
        if counts is None:
            counts = tuple(((N_PRIOR * prior * p, N_PRIOR),) * N_SURENESS for p in PRIOR)
        self._counts = [pair for row in counts for pair in row]
        self.rates = array("d", [right / n for right, n in self._counts])

    def of(self, match: Match) -> float:
        return self.rates[_kind(match)]

    def observe(self, match: Match, right: bool) -> None:
        kind = _kind(match)
        n_right, n = self._counts[kind]
        n_right, n = FORGET * n_right + right, FORGET * n + 1
        self._counts[kind] = n_right, n
        self.rates[kind] = n_right / n

    @property
    def counts(self) -> Counts:
        """Counts for another run, at most N_KEPT of a kind."""
        kept = [_kept(right, n) for right, n in self._counts]
        return tuple(tuple(kept[i : i + N_SURENESS]) for i in range(0, len(kept), N_SURENESS))


def _kind(match: Match) -> int:
    length, sureness = match
    return length * N_SURENESS + sureness


def _kept(right: float, n: float) -> tuple[float, float]:
    kept = min(N_KEPT, n)
    return min(kept, kept / n * right), kept
