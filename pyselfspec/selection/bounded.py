"""An objective for masks up to a bound on their cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..costs.expected import PassCosts
from ..errors import ArgumentError
from ..masks.layer_mask import LayerMask
from ..masks.score import Score
from .objectives import About, Objective


@dataclass(frozen=True, slots=True)
class Bounded:
    """The objective, but with values below 0 for masks that cost too much: the lower, the more they
    exceed the bound, so that a search finds its way back.

    Without a bound an objective that does not weigh costs prefers masks that skip next to nothing.

    objective: one with values from 0 to 1.
    max_cost: of a token through the mask, over that of one through the full model.
    """

    objective: Objective
    costs: PassCosts
    max_cost: float

    def __post_init__(self) -> None:
        if not 0 < self.max_cost <= 1:
            raise ArgumentError(
                f"a bound on the cost is above 0 and at most 1, got {self.max_cost:g}"
            )

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
