"""The choice that is left until it is known what can be copied: how much of it to take, and whether
to draft behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul
from typing import Self

from ...costs.table import N_WIDTH, Costs
from ..types import Draft, DraftLimit, copied
from ._decision import Rule

GAIN_MIN = 0.02  # expected gain that makes drafting worth the trouble
N_BEHIND = 4  # copied tokens behind which drafts are considered
# Copies to take: not every number, since each width of a pass has a graph that is kept prepared,
# and there is room for a dozen.
LENGTHS = (0, 1, 2, 3, 4, 5, 7, 10, 15)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice(DraftLimit):
    """n_max, p_min: of a draft behind nothing.

    n_copies: tokens to copy at most.
    costs: of passes.
    behind: the best rule for a draft behind so many copied tokens; None where drafts do not pay.
    """

    n_copies: int
    costs: Costs
    behind: Callable[[int], Rule] | None = None

    def capped(self, n_max: int) -> Self:
        n = max(0, n_max)
        return replace(self, n_max=min(self.n_max, n), n_copies=min(self.n_copies, n))

    @property
    def n_looked_up(self) -> int:
        return self.n_copies

    def cut(self, tokens: Sequence[int], probs: Sequence[float] | None = None) -> Draft:
        n = 0 if probs is None else self._best(probs, None)[0]
        return copied(tokens[:n], probs or ())

    def n_siblings(self, chain: Draft, chances: Sequence[float]) -> int:
        """The most expected tokens for the time. A draft with branches is verified as a whole, from
        the first block on."""
        n, costs = len(chain.tokens), self.costs
        n_passes = chain.n_proposed - chain.n_copied
        of_chain = 1 + sum(accumulate(chain.probs or (), mul))
        of_trees = list(accumulate(chances[: max(0, N_WIDTH - 1 - n)], initial=of_chain))[1:]
        chain_us = costs.step_us(n_passes, n - chain.n_copied, chain.n_copied)
        tree_us = chain_us - costs.verifying_us(n_passes, n - chain.n_copied, chain.n_copied)
        speeds = [of_chain / chain_us]
        speeds += [x / (tree_us + costs.full_us[n + i]) for i, x in enumerate(of_trees, 1)]
        return max(range(len(speeds)), key=speeds.__getitem__)

    def choose(self, probs: Sequence[float]) -> tuple[int, Self]:
        n, rule = self._best(probs, self.behind)
        if rule is not None:
            n_max = min(rule.n_max, max(self.n_max, self.n_copies) - n)
            return n, replace(self, n_max=n_max, p_min=rule.p_min)
        # a draft that does not pay may be a probe, but no copy is given up for it
        is_probe = n == 0 and self.behind is None
        return n, self if is_probe else self.capped(0)

    def _best(
        self, probs: Sequence[float], behind: Callable[[int], Rule] | None
    ) -> tuple[int, Rule | None]:
        """The most expected tokens for the time: how many to copy, and the rule to draft by behind
        them. Chances are those of tokens whose predecessors are right."""
        costs = self.costs
        best: tuple[int, Rule | None] = (0, None)
        fastest = (1 + GAIN_MIN) / costs.plain_us
        n_tokens = all_right = 1.0
        for n in range(min(len(probs), self.n_copies) + 1):
            if n:
                all_right *= probs[n - 1]
                n_tokens += all_right
                if n in LENGTHS and n_tokens > fastest * costs.full_us[n]:
                    best, fastest = (n, None), n_tokens / costs.full_us[n]
            if behind is not None and n <= N_BEHIND:
                rule = behind(n)
                expected = n_tokens + all_right * (rule.tokens - 1)
                if expected > fastest * rule.us:
                    best, fastest = (n, rule), expected / rule.us
        return best
