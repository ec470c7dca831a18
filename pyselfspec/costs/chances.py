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
    outcomes: doubles [len(LENGTHS), N_SURENESS, 2], those that were right and all. C++ reads them
        and learns, too.
    """

    def __init__(self, prior: float = 1.0, counts: Counts | None = None) -> None:
        if counts is None:
            counts = tuple(((N_PRIOR * prior * p, N_PRIOR),) * N_SURENESS for p in PRIOR)
        self.outcomes = array("d", [n for row in counts for pair in row for n in pair])

    def of(self, match: Match) -> float:
        i = _place(match)
        return self.outcomes[i] / self.outcomes[i + 1]

    def observe(self, match: Match, right: bool) -> None:
        i = _place(match)
        self.outcomes[i] = FORGET * self.outcomes[i] + right
        self.outcomes[i + 1] = FORGET * self.outcomes[i + 1] + 1

    @property
    def counts(self) -> Counts:
        """Counts for another run, at most N_KEPT of a kind."""
        kept = [_kept(right, n) for right, n in zip(*[iter(self.outcomes)] * 2, strict=True)]
        return tuple(tuple(kept[i : i + N_SURENESS]) for i in range(0, len(kept), N_SURENESS))


def _place(match: Match) -> int:
    """Return where the outcomes of a kind of match are."""
    length, sureness = match
    return 2 * (length * N_SURENESS + sureness)


def _kept(right: float, n: float) -> tuple[float, float]:
    kept = min(N_KEPT, n)
    return min(kept, kept / n * right), kept
