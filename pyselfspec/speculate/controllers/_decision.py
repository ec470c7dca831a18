"""The expected gain of drafts that take passes.

Without numpy: after a pass its code is in no cache, and reading it again takes longer than a
hundred numbers do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import NamedTuple

from ...costs.speedup import GAIN_MIN, speedup
from ...costs.table import Costs
from ._acceptance import EDGES, Acceptance

P_KEEP_MIN = 0.2  # least share of draft tokens that a rule keeps


class Rule(NamedTuple):
    """A rule: draft up to n_max tokens, drop the first with a probability below p_min.

    tokens, us: expected tokens and microseconds of a step.
    """

    n_max: int  # 0: plain decoding
    p_min: float
    tokens: float
    us: float

    @property
    def speed(self) -> float:
        """Tokens per microsecond."""
        return speedup(self.tokens, self.us)


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether drafting is expected to pay, and why. Times are in microseconds.

    rule: the one to follow.
    best: the fastest rule that drafts, even if it does not pay; None: there are no draft passes.
    """

    rule: Rule
    best: Rule | None
    costs: Costs

    @property
    def drafts(self) -> bool:
        return self.rule.n_max > 0

    @property
    def speedup(self) -> float | None:
        """The expected speed of the best rule over that of plain decoding; below 1 if slower."""
        if self.best is None:
            return None
        return speedup(self.best.tokens, self.best.us, self.costs.plain_us)


def decide(costs: Costs, acceptance: Acceptance, n_most: int) -> Decision:
    """Return the best rule of all that draft up to n_most tokens, or plain decoding."""
    plain = Rule(0, 0.0, 1.0, costs.plain_us)
    if costs.only_copies:
        return Decision(plain, None, costs)
    best = best_rule(costs, acceptance, n_most)
    pays = best.speed >= (1 + GAIN_MIN) * plain.speed
    return Decision(best if pays else plain, best, costs)


def best_rule(costs: Costs, acceptance: Acceptance, n_most: int, n_copied: int = 0) -> Rule:
    """Return the best rule of all that draft up to n_most tokens after n_copied accepted ones.

    Treats the tokens of a draft as independent: each is kept if its probability allows, then
    accepted at the rate of its bin.
    """
    share, rate = acceptance.rows()
    bounds = zip(_at_least(share), _at_least(map(mul, share, rate)), (0.0, *EDGES), strict=True)
    rules = (
        rule
        for kept, right, p_min in bounds
        if kept >= P_KEEP_MIN
        for rule in _rules(costs, kept, right, p_min, n_most, n_copied)
    )
    return max(rules, key=lambda rule: speedup(n_copied + rule.tokens, rule.us))


def _rules(
    costs: Costs, kept: float, right: float, p_min: float, n_most: int, n_copied: int
) -> Iterable[Rule]:
    """Yield the rules for 1, 2, ... n_most tokens of which a share is kept, and a share right."""
    draft_us = costs.drafting_us(1, 0, n_copied) - costs.token_us  # the first token costs more
    all_kept = all_right = tokens = 1.0
    short_us = short_right = 0.0  # of drafts that ended before
    for n, before_us in enumerate(costs.verify_us[n_copied : n_copied + n_most], 1):
        draft_us += costs.token_us
        short_us += all_kept * (1 - kept) * (draft_us + before_us)
        short_right += all_right * (1 - kept)
        all_kept *= kept
        all_right *= right
        tokens += all_right
        us = short_us + all_kept * (draft_us + costs.last_us + costs.verify_us[n_copied + n])
        us += (1 - short_right - all_right) * costs.removal_us
        yield Rule(n, p_min, tokens, us)


def _at_least(bins: Iterable[float]) -> list[float]:
    """Return the sum of each bin of probabilities and all above."""
    return list(accumulate(reversed(list(bins))))[:0:-1]
