"""What a controller expects of drafts that take passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ...costs.table import Costs


class Rule(NamedTuple):
    """Draft up to n_max tokens, dropping the first of a probability below p_min; and what is
    expected of a step."""

    n_max: int  # 0: plain decoding
    p_min: float
    tokens: float
    us: float

    @property
    def speed(self) -> float:
        """Tokens per microsecond."""
        return self.tokens / self.us


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether drafting is expected to pay, and why. Times in microseconds."""

    rule: Rule  # to follow
    best: Rule | None  # the fastest that drafts, whether it pays or not; None: no passes draft
    costs: Costs

    @property
    def drafts(self) -> bool:
        return self.rule.n_max > 0

    @property
    def speedup(self) -> float | None:
        """Expected of the best rule, over plain decoding; below 1 when drafting would lose."""
        return None if self.best is None else self.best.speed * self.costs.plain_us
