"""Expected speed over plain decoding, from agreement with the full model and costs of passes.

Scores are those of agreement.py; costs/speedup.py has the formula.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

from ...costs.speedup import gain
from ...errors import ArgumentError
from ...masks.layer_mask import LayerMask
from ...masks.score import Score
from . import About, Setting, agreement


class Objective:
    """The value is the expected speed over plain decoding: 1.2 is 20 % faster."""

    about: ClassVar[About] = About(
        label="expected speed", lost="agreement lost", n_chunks=4, weighs_cost=True
    )

    def __init__(self, setting: Setting) -> None:
        if setting.costs is None:
            raise ArgumentError("the objective expected-speed needs the costs of passes")
        self._costs = setting.costs
        self._agreement = agreement.Objective(setting)

    @property
    def n_chunks(self) -> int:
        return self._agreement.n_chunks

    @property
    def n_sublayers(self) -> int:
        return self._agreement.n_sublayers

    def scores(self, chunk: int, base: LayerMask, masks: Sequence[LayerMask]) -> Iterator[Score]:
        return self._agreement.scores(chunk, base, masks)

    def value(self, mask: LayerMask, score: Score) -> float:
        return gain(score, mask, self._costs).speed

    def shown(self, mask: LayerMask, score: Score) -> float:
        return self.value(mask, score)

    def error(self, score: Score) -> float | None:
        return None
