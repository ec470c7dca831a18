"""The expected gain of drafts that take passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ...costs.speedup import speedup
from ...costs.table import Costs


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
