"""A table of costs corrected by the timings of the passes that are made. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
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
PACE = 0.3  # of a change of the machine's speed that one pass tells, in logarithms
JUMP = 1.6  # and more: a hiccup, or another program, which is no matter of the processor's
N_FORGET = 128  # plain passes after which the oldest timing of a wider one is given up


def _recent() -> deque[float]:
    return deque(maxlen=N_RECENT)


Verified = deque[tuple[int, float]]  # draft tokens of a pass, and measured over expected time


def _verified() -> Verified:
    return deque(maxlen=N_VERIFIED)


@dataclass(slots=True)
class TimedCosts:
    """A table corrected by the timings of the steps that are made.

    Keeps, for plain passes, drafts and verification passes of each width, recent ratios of measured
    to expected time, and takes their median: it forgets, and one hiccup does not count. A width
    that was hardly timed is expected to be as wrong as those next to it. The first time of a pass
    does not count: its graph is built then.

    The machine's speed is followed by itself, and ratios are over it: a processor that is slow for
    a while, as many are after a long prompt, is slow for passes of all widths.

    What it learns is true of one drafter in one context, whatever the text.
    """

    table: CostTable
    _plain: deque[float] = field(default_factory=_recent)
    _draft: deque[float] = field(default_factory=_recent)
    _full: Verified = field(default_factory=_verified)
    _rest: Verified = field(default_factory=_verified)  # the blocks that drafts leave
    _made: set[str] = field(default_factory=set)  # kinds of passes
    _n_plain: int = 0
    _pace: float = 0.0  # measured to expected time of all that is known, 0 before the first timing
    _expected: Costs = field(init=False)

    def __post_init__(self) -> None:
        # left alone, a width that seems to cost too much would never be tried, and never corrected
        self._expected = self.table.at(0).rising()

    def at(self, n_past: int) -> Costs:
        costs = self._table_at(n_past)
        pace = self._pace or 1.0
        plain = median(self._plain or [ratio for _, ratio in self._full] or [1.0])
        draft = pace * median([plain, *self._draft])
        full = pace * _ratios([(0, plain)] * N_SURE + [*self._full], plain) * costs.full_us
        verify = full
        if costs.shares:
            verify = pace * _ratios(self._rest, plain) * costs.verify_us
        return Costs(
            n_past,
            tuple(full.tolist()),
            tuple(verify.tolist()),
            draft * costs.token_us,
            draft * costs.last_us,
        )

    @property
    def n_known(self) -> int:
        """The longest draft whose cost is known well enough to try it: a table may be wrong, so
        not much longer than those that were timed."""
        return _reach(self._rest if self._expected.shares else self._full)

    @property
    def n_copies_known(self) -> int:
        """The same for copies."""
        return _reach(self._full)

    def _table_at(self, n_past: int) -> Costs:
        """The table's costs, not looked up anew for every token: they hardly change."""
        if not 0 <= n_past - self._expected.n_past < N_NEAR:
            self._expected = self.table.at(n_past).rising()
        return self._expected

    @property
    def knows_plain(self) -> bool:
        """Whether plain passes were made before."""
        return "plain" in self._made

    @property
    def knows_widths(self) -> bool:
        """Whether several passes over copies were timed besides plain ones."""
        return self.knows_plain and len(self._full) >= N_SURE

    def observe(
        self,
        n_past: int,
        n_proposed: int,
        n_drafted: int,
        draft_us: float,
        verify_us: float,
        n_copied: int = 0,
        n_siblings: int = 0,
    ) -> None:
        """A step behind n_past tokens that proposed so many tokens, verified n_drafted of them
        behind n_copied free ones, and took so long for each. With n_siblings of those verified
        besides the proposed ones, the pass was a full one."""
        costs = self._table_at(n_past)
        if n_siblings:
            n_copied, n_drafted, n_proposed = n_copied + n_drafted, 0, 0
        new = _kinds(n_proposed, n_drafted, n_copied, costs.shares) - self._made
        self._made |= new
        if not new & DRAFT_KINDS and n_proposed:
            expected_us = costs.drafting_us(n_proposed, n_drafted, n_copied)
            self._draft.append(draft_us / expected_us / (self._pace or 1.0))
        if new - DRAFT_KINDS:
            return
        n = n_copied + n_drafted
        ratio = verify_us / costs.verifying_us(n_proposed, n_drafted, n_copied)
        if n_proposed and costs.shares:
            self._rest.append((n, self._paced(ratio, [r for m, r in self._rest if m == n])))
        elif n:
            self._full.append((n, self._paced(ratio, [r for m, r in self._full if m == n])))
        else:
            self._plain.append(self._paced(ratio, self._plain))
            self._n_plain += 1
            if self._n_plain % N_FORGET == 0 and self._full:
                self._full.popleft()  # or a width timed badly would never be tried again

    def _paced(self, ratio: float, known: Sequence[float]) -> float:
        """The ratio over the machine's speed, which passes of a kind that is known tell."""
        if not self._pace:
            self._pace = ratio
        elif len(known) >= N_SURE:
            change = ratio / (self._pace * median(known))
            if 1 / JUMP < change < JUMP:
                self._pace *= change**PACE
        return ratio / self._pace


def _ratios(verified: Iterable[tuple[int, float]], plain: float) -> NDArray[np.float64]:
    """Measured to expected times of verification passes, by draft tokens."""
    by_width: dict[int, list[float]] = {}
    for n, ratio in verified:
        by_width.setdefault(n, []).append(ratio)
    sure = sorted(n for n, ratios in by_width.items() if len(ratios) >= N_SURE)
    if not sure:
        return np.full(N_WIDTH, median([plain, *(ratio for _, ratio in verified)]))
    return np.interp(range(N_WIDTH), sure, [median(by_width[n][-N_RECENT:]) for n in sure])


def _reach(verified: Verified) -> int:
    longest = max((n for n, _ in verified), default=0)
    return min(N_WIDTH - 1, 2 * longest + N_UNTIMED)


DRAFT_KINDS = frozenset({"draft token", "last"})


@cache
def _kinds(n_proposed: int, n_drafted: int, n_copied: int, shares: bool) -> frozenset[str]:
    n = n_copied + n_drafted
    if n_proposed == 0:
        return frozenset({f"full {n}" if n else "plain"})
    last = {"last"} if n_proposed == n_drafted else set()
    # a pass behind copies has a graph of its own, which is not told apart: the median bears that
    return frozenset({"draft token", f"rest {n}" if shares else f"full {n}"} | last)
