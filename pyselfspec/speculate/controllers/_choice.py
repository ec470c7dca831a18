"""The decision made after tokens were looked up: how many of them to take, and whether to run draft
passes after them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul
from typing import Self

from ...costs.speedup import GAIN_MIN, expected_tokens, speedup
from ...costs.table import Costs
from ...util.pass_width import MAX_DRAFT
from ..limits import DraftLimit
from ..types import NO_DRAFT, Draft
from ._decision import Rule

N_BEFORE = 4  # most copied tokens after which draft passes are considered
# Numbers of copies to take. Not every number, since each width of a pass needs a prepared graph,
# and there is room for a dozen.
COPY_LENGTHS = (0, 1, 2, 3, 4, 5, 7, 10, MAX_DRAFT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice(DraftLimit):
    """A limit that weighs looked-up tokens against draft passes.

    n_max, p_min: for drafts that take passes; with n_max 0 tokens may still be copied.
    n_copies: most tokens to copy.
    offers: whether so many are offered to a pass that several texts share, which decides.
    costs: of passes.
    rule_after: returns the best rule for draft passes after a number of copied tokens; None: draft
        passes do not pay.
    """

    n_copies: int
    costs: Costs
    rule_after: Callable[[int], Rule] | None = None
    offers: bool = False

    def capped(self, n_max: int) -> Self:
        if n_max >= max(self.n_max, self.n_copies):
            return self
        n = max(0, n_max)
        return replace(self, n_max=min(self.n_max, n), n_copies=min(self.n_copies, n))

    @property
    def max_lookup(self) -> int:
        return self.n_copies

    def truncate(self, found: Draft) -> Draft:
        if self.offers:
            chances = found.survival[: self.n_copies]  # without any, nothing is known of the tokens
            n = sum(chance >= self.chance_min for chance in chances)
            return replace(found, tokens=found.tokens[:n], is_offer=True) if n else NO_DRAFT
        return found.first(self._best(found.probs, None)[0])

    def split(self, found: Draft) -> tuple[Draft, Self]:
        n, rule = self._best(found.probs, self.rule_after)
        start = found.first(n)
        if self.offers and rule is None:
            return self.truncate(found), self.capped(0)
        if rule is not None:
            n_max = min(rule.n_max, max(self.n_max, self.n_copies) - n)
            return start, replace(self, n_max=n_max, p_min=rule.p_min)
        # a draft that does not pay may be a probe, but replaces no copies
        is_probe = n == 0 and self.rule_after is None
        return start, self if is_probe else self.capped(0)

    def _best(
        self, probs: Sequence[float], rule_after: Callable[[int], Rule] | None
    ) -> tuple[int, Rule | None]:
        """Return how many tokens to copy, and the rule for draft passes after them, with the most
        expected tokens per time.

        probs: probability that each token is accepted if those before it are.
        """
        costs = self.costs
        best: tuple[int, Rule | None] = (0, None)
        fastest = speedup(1 + GAIN_MIN, costs.plain_us)
        survival = list(accumulate(probs[: self.n_copies], mul, initial=1.0))
        for n, n_tokens in enumerate(expected_tokens(survival[1:])):
            us = costs.full_us[n] + (1 - survival[n]) * costs.removal_us
            if n in COPY_LENGTHS and (speed := speedup(n_tokens, us)) > fastest:
                best, fastest = (n, None), speed
            if rule_after is not None and n <= N_BEFORE:
                rule = rule_after(n)
                n_expected = n_tokens + survival[n] * (rule.tokens - 1)
                if (speed := speedup(n_expected, rule.us)) > fastest:
                    best, fastest = (n, rule), speed
        return best
