"""A table of costs corrected by the timings of the passes that are made. Pure."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from functools import cache
from statistics import median

from .table import Costs, CostTable

N_RECENT = 9  # timings of one kind that count
N_NEAR = 32  # tokens over which costs are taken as equal


def _recent() -> deque[float]:
    return deque(maxlen=N_RECENT)


@dataclass(slots=True)
class TimedCosts:
    """A table corrected by the timings of the steps that are made.

    Keeps, for plain passes, drafts and checks of each width, recent ratios of measured to expected
    time, and takes their median: it forgets, and one hiccup does not count. What was hardly timed
    yet is expected to be as wrong as its next of kin. The first time of anything does not count:
    its graph is built then.
    """

    table: CostTable
    _plain: deque[float] = field(default_factory=_recent)
    _draft: deque[float] = field(default_factory=_recent)
    _checks: deque[float] = field(default_factory=_recent)
    _check: defaultdict[int, deque[float]] = field(default_factory=lambda: defaultdict(_recent))
    _made: set[str] = field(default_factory=set)  # kinds of passes
    _expected: Costs = field(init=False)

    def __post_init__(self) -> None:
        self._expected = self.table.at(0)

    def at(self, n_past: int) -> Costs:
        costs = self._table_at(n_past)
        plain = median(self._plain) if self._plain else 1.0
        draft = median([plain, *self._draft])
        checks = median([plain, *self._checks])
        return Costs(
            n_past,
            tuple(plain * us for us in costs.full_us),
            tuple(
                median([checks, *self._check.get(n, ())]) * us
                for n, us in enumerate(costs.check_us)
            ),
            draft * costs.guess_us,
            draft * costs.last_us,
        )

    def _table_at(self, n_past: int) -> Costs:
        """The table's costs, not looked up anew for every token: they hardly change."""
        if not 0 <= n_past - self._expected.n_past < N_NEAR:
            self._expected = self.table.at(n_past)
        return self._expected

    def n_new(self, n_guesses: int, n_drafted: int) -> int:
        """Kinds of passes in such a step that were not made before."""
        return len(_kinds(n_guesses, n_drafted) - self._made)

    def observe(
        self, n_past: int, n_guesses: int, n_drafted: int, draft_us: float, verify_us: float
    ) -> None:
        if self.n_new(n_guesses, n_drafted):
            self._made |= _kinds(n_guesses, n_drafted)
            return
        costs = self._table_at(n_past)
        ratio = verify_us / costs.verify_us(n_guesses, n_drafted)
        if n_guesses == 0:
            self._plain.append(ratio)
            return
        self._draft.append(draft_us / costs.draft_us(n_guesses, n_drafted))
        self._checks.append(ratio)
        self._check[n_drafted].append(ratio)


@cache
def _kinds(n_guesses: int, n_drafted: int) -> frozenset[str]:
    if n_guesses == 0:
        return frozenset({"plain"})
    last = {"last"} if n_guesses == n_drafted else set()
    return frozenset({"guess", f"check {n_drafted}"} | last)
