"""A table of costs corrected by the timings of the passes that are made. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import cache
from statistics import median

import numpy as np
from numpy.typing import NDArray

from .table import N_WIDTH, Costs, CostTable

N_RECENT = 9  # timings of one kind that count
N_VERIFIED = 64  # verification passes that do: a width not used for long is tried again
N_SURE = 3  # of one width, for them to tell it from the others
N_UNTIMED = 3  # tokens to draft before any draft was timed
N_NEAR = 32  # tokens over which costs are taken as equal


def _recent() -> deque[float]:
    return deque(maxlen=N_RECENT)


@dataclass(slots=True)
class TimedCosts:
    """A table corrected by the timings of the steps that are made.

    Keeps, for plain passes, drafts and verification passes of each width, recent ratios of measured
    to expected time, and takes their median: it forgets, and one hiccup does not count. A width
    that was hardly timed is expected to be as wrong as those next to it. The first time of a pass
    does not count: its graph is built then.

    What it learns is true of one drafter in one context, whatever the text.
    """

    table: CostTable
    _plain: deque[float] = field(default_factory=_recent)
    _draft: deque[float] = field(default_factory=_recent)
    _verified: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=N_VERIFIED))
    _made: set[str] = field(default_factory=set)  # kinds of passes
    _expected: Costs = field(init=False)

    def __post_init__(self) -> None:
        # left alone, a width that seems to cost too much would never be tried, and never corrected
        self._expected = self.table.at(0).rising()

    def at(self, n_past: int) -> Costs:
        costs = self._table_at(n_past)
        plain = median(self._plain) if self._plain else 1.0
        draft = median([plain, *self._draft])
        ratios = self._ratios(plain, len(costs.verify_us))
        return Costs(
            n_past,
            tuple(plain * us for us in costs.full_us),
            tuple((ratios * costs.verify_us).tolist()),
            draft * costs.token_us,
            draft * costs.last_us,
        )

    def _ratios(self, plain: float, n_width: int) -> NDArray[np.float64]:
        """Measured to expected times of verification passes, by draft tokens."""
        by_width: dict[int, list[float]] = {}
        for n, ratio in self._verified:
            by_width.setdefault(n, []).append(ratio)
        sure = sorted(n for n, ratios in by_width.items() if len(ratios) >= N_SURE)
        if not sure:
            return np.full(n_width, median([plain, *(ratio for _, ratio in self._verified)]))
        return np.interp(range(n_width), sure, [median(by_width[n]) for n in sure])

    @property
    def n_known(self) -> int:
        """The longest draft whose cost is known well enough to try it: a table may be wrong, so
        not much longer than those that were timed."""
        longest = max((n for n, _ in self._verified), default=0)
        return min(N_WIDTH - 1, 2 * longest + N_UNTIMED)

    def _table_at(self, n_past: int) -> Costs:
        """The table's costs, not looked up anew for every token: they hardly change."""
        if not 0 <= n_past - self._expected.n_past < N_NEAR:
            self._expected = self.table.at(n_past).rising()
        return self._expected

    def n_new(self, n_proposed: int, n_drafted: int) -> int:
        """Kinds of passes in such a step that were not made before."""
        return len(_kinds(n_proposed, n_drafted) - self._made)

    def observe(
        self, n_past: int, n_proposed: int, n_drafted: int, draft_us: float, verify_us: float
    ) -> None:
        """A step behind n_past tokens that proposed so many tokens, verified n_drafted of them, and
        took so long for each."""
        new = _kinds(n_proposed, n_drafted) - self._made
        self._made |= new
        costs = self._table_at(n_past)
        if not new & DRAFT_KINDS and n_proposed:
            self._draft.append(draft_us / costs.drafting_us(n_proposed, n_drafted))
        if new - DRAFT_KINDS:
            return
        ratio = verify_us / costs.verifying_us(n_proposed, n_drafted)
        if n_proposed == 0:
            self._plain.append(ratio)
            return
        self._verified.append((n_drafted, ratio))


DRAFT_KINDS = frozenset({"draft token", "last"})


@cache
def _kinds(n_proposed: int, n_drafted: int) -> frozenset[str]:
    if n_proposed == 0:
        return frozenset({"plain"})
    last = {"last"} if n_proposed == n_drafted else set()
    return frozenset({"draft token", f"verify {n_drafted}"} | last)
