"""The speed-up by drafting: the one formula by which strategies, controllers and reports compare
drafts. Pure.

A step yields one token more than are accepted, and a draft token is accepted only if those before
it are. With n draft tokens and s_i, the probability that the first i tokens are accepted,

    speed-up = (1 + s_1 + ... + s_n) * (time of a plain pass) / (time of draft and verification)

For a constant acceptance rate a, s_i = a^i, and this is theorem 3.8 of Leviathan et al., "Fast
Inference from Transformers via Speculative Decoding", 2023, https://arxiv.org/abs/2211.17192, with
measured times in place of its cost coefficient.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..masks.layer_mask import LayerMask
from ..masks.score import Score
from ..util.pass_width import MAX_DRAFT
from .table import Costs

GAIN_MIN = 0.02  # least expected gain for which to draft

Number = TypeVar("Number", float, NDArray[np.float64])


def expected_tokens(survival: Iterable[float], first: float = 1.0) -> list[float]:
    """Return the expected tokens of steps that draft 0, 1, 2, ... tokens.

    survival: probabilities that the first 1, 2, ... draft tokens are accepted.
    first: expected tokens without them: 1, or those of the draft that they extend.
    """
    return list(accumulate(survival, initial=first))


def speedup(tokens: Number, us: Number, plain_us: float = 1.0) -> Number:
    """Return the speed of a step over plain decoding, elementwise for arrays.

    tokens: expected tokens. us: time of draft and verification. plain_us: time of a plain pass in
    the same unit; 1 returns tokens per unit of time.
    """
    return tokens * plain_us / us


def best_length(costs: Costs, acceptance: float) -> tuple[float, int]:
    """Return the speed-up at the best draft length and that length, for a constant acceptance rate;
    (1.0, 0) if no length is faster than plain decoding."""
    lengths = range(len(costs.verify_us))
    tokens = expected_tokens(acceptance**n for n in lengths[1:])
    speeds = [speedup(tokens[n], costs.step_us(n, n), costs.plain_us) for n in lengths[1:]]
    best, n = max(zip(speeds, lengths[1:], strict=True), key=lambda pair: pair[0])
    return (best, n) if best > 1.0 else (1.0, 0)


def least_chance(costs: Costs) -> float:
    """Return the probability of acceptance below which a draft token does not pay, alone or after
    others."""
    added = ((us - costs.plain_us) / n for n, us in enumerate(costs.full_us[1:], 1))
    return min(added) / costs.plain_us


#
# drafts with masks
#


class PassCosts(Protocol):
    """Costs of masked passes, as multiples of the time of a plain pass over one token."""

    def draft(self, mask: LayerMask) -> float:
        """Return the cost of a masked pass over one token."""

    def step(self, mask: LayerMask, n_draft: int) -> float:
        """Return the cost of n_draft draft tokens and their verification pass."""

    def wide(self, mask: LayerMask, n_tokens: int) -> float:
        """Return the cost of one masked pass over n_tokens tokens."""


@dataclass(frozen=True, slots=True)
class Gain:
    """Expected speed over plain decoding with drafts of n_draft tokens."""

    speed: float
    n_draft: int


def gains(score: Score, mask: LayerMask, costs: PassCosts) -> list[Gain]:
    """Return the expected speed for every draft length from 1 on that the score has runs of; their
    shares of accepted runs are the survival probabilities."""
    tokens = expected_tokens(score.survival[:MAX_DRAFT])
    return [Gain(speedup(tokens[n], costs.step(mask, n)), n) for n in range(1, len(tokens))]


def gain(score: Score, mask: LayerMask, costs: PassCosts) -> Gain:
    """Return the expected speed at the best draft length."""
    return max(gains(score, mask, costs), key=lambda gain: gain.speed)
