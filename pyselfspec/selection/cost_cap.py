"""An objective with a limit on the cost of masks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..costs.speedup import PassCosts
from ..errors import ArgumentError
from ..masks.layer_mask import LayerMask
from ..masks.score import Score
from .objectives import About, Objective


@dataclass(frozen=True, slots=True)
class CostCap:
    """An objective with negative values for masks that cost more than max_cost, lower the more they
    exceed it, which leads a search back.

    An objective that does not weigh costs would otherwise prefer masks that skip hardly anything.

    objective: has values from 0 to 1.
    max_cost: most time of a draft token, over that of a token of plain decoding.
    """

    objective: Objective
    costs: PassCosts
    max_cost: float

    def __post_init__(self) -> None:
        if not 0 < self.max_cost <= 1:
            raise ArgumentError(f"max_cost is above 0 and at most 1, got {self.max_cost:g}")

    @property
    def about(self) -> About:
        return self.objective.about

    @property
    def n_sublayers(self) -> int:
        return self.objective.n_sublayers

    @property
    def n_chunks(self) -> int:
        return self.objective.n_chunks

    def scores(self, chunk: int, base: LayerMask, masks: Sequence[LayerMask]) -> Iterator[Score]:
        return self.objective.scores(chunk, base, masks)

    def value(self, mask: LayerMask, score: Score) -> float:
        value = self.objective.value(mask, score)
        excess = self.costs.draft(mask) - self.max_cost
        return value - (1 + excess) if excess > 0 else value

    def shown(self, mask: LayerMask, score: Score) -> float:
        return self.objective.shown(mask, score)

    def error(self, score: Score) -> float | None:
        return self.objective.error(score)
