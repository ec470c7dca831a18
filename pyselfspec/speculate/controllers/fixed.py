"""The same length for every draft."""

from __future__ import annotations

from dataclasses import dataclass

from ...costs.table import CostTable
from ...errors import ArgumentError
from ..types import DraftLimit, Step
from ._memory import Memory


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always draft the same number of tokens, but stop before one of lower probability than p_min.

    The default p_min stops where a draft token is no better than even: it hardly shortens good
    drafts and keeps bad ones from growing.
    """

    n_max: int = 4
    p_min: float = 0.5

    def __post_init__(self) -> None:
        if self.n_max < 1:
            raise ArgumentError(f"a draft has 1 token or more, got {self.n_max}")
        if not 0.0 <= self.p_min <= 1.0:
            raise ArgumentError(f"p_min is 0 to 1, got {self.p_min:g}")

    def limit(self, n_past: int) -> DraftLimit:
        return DraftLimit(self.n_max, self.p_min)

    def observe(self, step: Step) -> None:
        pass


def make(costs: CostTable, memory: Memory | None = None) -> Fixed:
    return Fixed()
