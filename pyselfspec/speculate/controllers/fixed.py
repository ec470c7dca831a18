"""A fixed length for all drafts."""

from __future__ import annotations

from dataclasses import dataclass

from ...costs.table import CostTable
from ...errors import ArgumentError
from ..limits import DraftLimit
from ..types import Step
from ._acceptance import Learned


@dataclass(frozen=True, slots=True)
class Fixed:
    """Draft n_max tokens in each step, but stop before one with a probability below p_min.

    The default p_min stops before tokens that are more likely rejected than accepted: it hardly
    shortens good drafts and keeps bad ones short.
    """

    n_max: int = 4
    p_min: float = 0.5

    def __post_init__(self) -> None:
        if self.n_max < 1:
            raise ArgumentError(f"n_max is 1 token or more, got {self.n_max}")
        if not 0.0 <= self.p_min <= 1.0:
            raise ArgumentError(f"p_min is 0 to 1, got {self.p_min:g}")

    def limit(self, n_past: int) -> DraftLimit:
        return DraftLimit(self.n_max, self.p_min)

    def observe(self, step: Step) -> None:
        pass


def make(costs: CostTable, memory: Learned | None = None) -> Fixed:
    return Fixed()
