"""What a mask is worth to a search: expected speed, agreement at a cost, or measured speed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..costs.expected import PassCosts, gain
from ..masks.layer_mask import LayerMask
from ..masks.score import Score
from ..runtime.context import Context
from ..runtime.sampling import SamplingParams
from ..speculate.completion import Completion
from ..speculate.controllers.fixed import Fixed
from .measuring import Measuring, Pass
from .search import Trial


@dataclass(frozen=True, slots=True)
class Expected:
    """Speed over plain decoding, expected from a match score and costs."""

    measuring: Measuring
    costs: PassCosts

    def __call__(self, mask: LayerMask) -> Trial:
        score = _score(self.measuring, mask)
        return Trial(mask, gain(score, mask, self.costs).speed, score)


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement with the full model, of masks whose cost is at most so much.

    What a dearer mask exceeds it by is taken off, so that a search finds its way back. Without a
    bound on the cost the best mask would be the one that skips next to nothing.
    """

    measuring: Measuring
    costs: PassCosts
    max_cost: float

    def __call__(self, mask: LayerMask) -> Trial:
        score = _score(self.measuring, mask)
        excess = max(0.0, self.costs.draft(mask) - self.max_cost)
        return Trial(mask, score.agreement - (1 + excess if excess else 0.0), score)


@dataclass(frozen=True, slots=True)
class Measured:
    """Tokens per second of generating after these prompts, drafts of a fixed length."""

    context: Context
    prompts: Sequence[Sequence[int]]
    n_predict: int
    controller: Fixed
    sampling: SamplingParams

    def __call__(self, mask: LayerMask) -> Trial:
        n_tokens = us = 0
        for prompt in self.prompts:
            completion = Completion(
                self.context,
                prompt,
                n_predict=self.n_predict,
                draft="layer-skip",
                mask=mask,
                controller=self.controller,
                sampling=self.sampling,
            )
            for _piece in completion:
                pass
            n_tokens += completion.stats.n_generated
            us += completion.stats.total_us - completion.stats.prefill_us
        return Trial(mask, n_tokens * 1e6 / us if us else -math.inf)


def _score(measuring: Measuring, mask: LayerMask) -> Score:
    steps = measuring.scores(Pass(LayerMask.full(mask.n_layer), (mask,), best_only=False))
    while True:
        try:
            next(steps)
        except StopIteration as end:
            score: Score = end.value[0].score
            return score
