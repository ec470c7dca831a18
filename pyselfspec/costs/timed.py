"""A table of costs that is corrected by timings of passes while generating. Pure."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from statistics import median

from .table import N_WIDTH, Costs, CostTable

N_RECENT = 9  # timings of one kind of pass that count
N_KEPT = 64  # wide passes after which a width that was not used is forgotten
N_SURE = 3  # timings of a width from which it has its own correction
N_UNTIMED = 3  # longest draft before any draft was timed
N_NEAR = 32  # tokens over which costs count as equal
SPEED_SMOOTHING = 0.3  # weight of one pass in the estimate of the machine's speed, in logarithms
MAX_SPEED_STEP = 1.6  # single jumps that are larger are other programs, not clock changes
N_JUMPS, JUMP = 3, 1.4  # passes in a row that are so much slower or faster: the machine is
N_TIMED = 4  # passes of one kind in a row of which one is timed, where learning would take too long
N_FORGET = 128  # timed plain passes after which the oldest timing of a wider pass is dropped


def _recent() -> deque[float]:
    return deque(maxlen=N_RECENT)


class Widths:
    """Recent ratios of measured to expected time, by the draft tokens of a pass.

    n_kept: passes after which a width without another one is forgotten.
    """

    def __init__(self, n_kept: int) -> None:
        self.ratios: dict[int, deque[float]] = {}
        self._n_kept = n_kept
        self._n = 0  # passes
        self._last: dict[int, int] = {}  # by width, the one used last at the end

    def __len__(self) -> int:
        return sum(map(len, self.ratios.values()))

    def add(self, n: int, ratio: float) -> None:
        self._n += 1
        self.ratios.setdefault(n, _recent()).append(ratio)
        self._last.pop(n, None)
        self._last[n] = self._n
        while self._last[oldest := next(iter(self._last))] <= self._n - self._n_kept:
            del self.ratios[oldest], self._last[oldest]

    def forget_one(self) -> None:
        """Forget a timing of the width that was not used for longest."""
        if self._last:
            oldest = next(iter(self._last))
            self.ratios[oldest].popleft()
            if not self.ratios[oldest]:
                del self.ratios[oldest], self._last[oldest]

    def all(self) -> list[float]:
        return [ratio for ratios in self.ratios.values() for ratio in ratios]


@dataclass(slots=True)
class TimedCosts:
    """A table of costs corrected by timings of steps, for one drafter in one context.

    For plain passes, drafts and verification passes of each width, it keeps recent ratios of
    measured to expected time and uses their median, so outliers do not count. Widths with few
    timings are corrected like their neighbours. The first passes of a kind do not count, see
    Context.n_preparing.

    Ratios are relative to the machine's current speed, which is estimated separately: a processor
    that is slower for a while, for example after a long prompt, is slower at all widths.

    n_kept: passes after which a width without another timing is forgotten.
    n_preparing: first passes of each kind that do not count.
    """

    table: CostTable
    n_kept: int = N_KEPT
    n_preparing: int = 1
    _plain: deque[float] = field(default_factory=_recent)
    _draft: deque[float] = field(default_factory=_recent)
    _removal: deque[float] = field(default_factory=_recent)
    _full: Widths = field(init=False)
    _rest: Widths = field(init=False)  # the blocks that drafts leave
    _made: Counter[str] = field(default_factory=Counter)  # passes by kind
    _n_plain: int = 0
    _slowness: float = 0.0  # measured over expected time of all passes, 0 before the first timing
    _changes: deque[float] = field(default_factory=lambda: deque(maxlen=N_JUMPS))
    _expected: Costs = field(init=False)

    def __post_init__(self) -> None:
        self._full, self._rest = Widths(self.n_kept), Widths(self.n_kept)
        # a width that seems to cost too much would never be tried and never be corrected
        self._expected = self.table.at(0).rising()

    def at(self, n_past: int) -> Costs:
        """Return the costs at a length of the text."""
        costs = self._table_at(n_past)
        slowness = self._slowness or 1.0
        plain = median(self._plain or self._full.all() or [1.0])
        draft = slowness * median([plain, *self._draft])

        def corrected(us: Sequence[float], sure: dict[int, float]) -> tuple[float, ...]:
            ratios = _between(sure, len(us))
            return tuple([slowness * r * each for r, each in zip(ratios, us, strict=True)])

        full = corrected(costs.full_us, {0: plain} | _sure(self._full))
        rest = _sure(self._rest) or {0: median([plain, *self._rest.all()])}
        verify = corrected(costs.verify_us, rest) if costs.shares else full
        removal_us = slowness * median(self._removal) if self._removal else costs.removal_us
        return Costs(
            n_past, full, verify, draft * costs.token_us, draft * costs.last_us, removal_us
        )

    @property
    def n_known(self) -> int:
        """Longest draft to try: not much longer than those that were timed, as a table may be
        wrong."""
        return _reach(self._rest if self._expected.shares else self._full)

    @property
    def n_copies_known(self) -> int:
        """Longest draft of copied tokens to try, likewise."""
        return _reach(self._full)

    def _table_at(self, n_past: int) -> Costs:
        """Return the table's costs, cached over N_NEAR tokens."""
        if not 0 <= n_past - self._expected.n_past < N_NEAR:
            self._expected = self.table.at(n_past).rising()
        return self._expected

    @property
    def knows_plain(self) -> bool:
        """Whether a plain pass was made."""
        return "plain" in self._made

    @property
    def knows_widths(self) -> bool:
        """Whether plain passes and at least N_SURE full passes over copied tokens were timed."""
        return self.knows_plain and len(self._full) >= N_SURE

    def observe(
        self,
        n_past: int,
        n_proposed: int,
        n_drafted: int,
        draft_us: float,
        verify_us: float,
        n_copied: int = 0,
        removal_us: float = 0.0,
    ) -> None:
        """Learn from the times of a step.

        n_past: tokens before the step. n_proposed: draft tokens that took passes. n_drafted: those
        of them that were verified. n_copied: verified tokens that took no passes. removal_us: of
        rejected tokens; 0 if there were none.
        """
        costs = self._table_at(n_past)
        kinds = _kinds(n_proposed, n_drafted, n_copied, costs.shares)
        new = {kind for kind in kinds if self._made[kind] < self.n_preparing}
        self._made.update(kinds)
        if not new & DRAFT_KINDS and n_proposed:
            expected_us = costs.drafting_us(n_proposed, n_drafted, n_copied)
            self._draft.append(draft_us / expected_us / (self._slowness or 1.0))
        if new - DRAFT_KINDS:
            return
        if removal_us:
            self._removal.append(removal_us / (self._slowness or 1.0))
        n = n_copied + n_drafted
        ratio = verify_us / costs.verifying_us(n_proposed, n_drafted, n_copied)
        if n_proposed and costs.shares:
            self._add(self._rest, n, ratio)
        elif n:
            self._add(self._full, n, ratio)
        else:
            self._plain.append(self._relative(ratio, self._plain))
            self._n_plain += 1
            if self._n_plain % N_FORGET == 0:
                self._full.forget_one()  # else a width timed badly would never be tried again

    def _add(self, timed: Widths, n: int, ratio: float) -> None:
        """Add a timing of a pass with n draft tokens."""
        timed.add(n, self._relative(ratio, timed.ratios.get(n, ())))

    def _relative(self, ratio: float, earlier: Sequence[float]) -> float:
        """Return the ratio relative to the machine's speed; kinds with N_SURE timings update it."""
        if not self._slowness:
            self._slowness = ratio
        elif len(earlier) >= N_SURE:
            change = ratio / (self._slowness * median(earlier))
            self._changes.append(change)
            if len(self._changes) == N_JUMPS and (
                min(self._changes) > JUMP or max(self._changes) < 1 / JUMP
            ):
                self._slowness *= median(self._changes)
                self._changes.clear()
            elif 1 / MAX_SPEED_STEP < change < MAX_SPEED_STEP:
                self._slowness *= change**SPEED_SMOOTHING
        return ratio / self._slowness


def _sure(timed: Widths) -> dict[int, float]:
    """Return the median ratio of each width with N_SURE timings."""
    return {n: median(found) for n, found in timed.ratios.items() if len(found) >= N_SURE}


def _between(sure: dict[int, float], n_width: int) -> list[float]:
    """Return ratios for 0 to n_width - 1 draft tokens: linear between known ones.

    Without numpy: after a pass its code is in no cache, and reading it again takes longer than
    sixteen numbers do.
    """
    (low, at_low), *_ = pairs = sorted(sure.items())
    ratios = [at_low] * low
    for n, at in pairs:
        step = (at - at_low) / (n - low) if n > low else 0.0
        ratios += [at_low + step * (i - low) for i in range(len(ratios), n)] + [at]
        low, at_low = n, at
    return ratios + [at_low] * (n_width - len(ratios))


def _reach(timed: Widths) -> int:
    return min(N_WIDTH - 1, 2 * max(timed.ratios, default=0) + N_UNTIMED)


DRAFT_KINDS = frozenset({"draft token", "last"})


@cache
def _kinds(n_proposed: int, n_drafted: int, n_copied: int, shares: bool) -> frozenset[str]:
    n = n_copied + n_drafted
    if n_proposed == 0:
        return frozenset({f"full {n}" if n else "plain"})
    last = {"last"} if n_proposed == n_drafted else set()
    # drafts after copies have their own graph, not distinguished here: the median tolerates it
    return frozenset({"draft token", f"rest {n}" if shares else f"full {n}"} | last)
