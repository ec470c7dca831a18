"""What drafting with a mask can be expected to gain, from a match score and what passes cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ..masks.layer_mask import LayerMask
from ..masks.score import DEPTH, Score


class PassCosts(Protocol):
    """Times over that of a plain one-token pass."""

    def draft(self, mask: LayerMask) -> float:
        """One token through a masked pass."""

    def step(self, mask: LayerMask, n_draft: int) -> float:
        """So many drafted tokens and their check."""

    def wide(self, mask: LayerMask, n_tokens: int) -> float:
        """So many tokens through one masked pass."""


@dataclass(frozen=True, slots=True)
class Gain:
    """Expected speed over plain decoding with drafts of this length."""

    speed: float
    n_draft: int


def gains(score: Score, mask: LayerMask, costs: PassCosts) -> list[Gain]:
    """For every draft length that the score tells about, from 1 on.

    Tokens per step over the time of a step (Leviathan et al., https://arxiv.org/abs/2211.17192,
    theorem 3.8), with runs that were counted instead of a rate that is assumed to be constant.
    """
    lengths = range(1, min(DEPTH, len(score.n_runs)) + 1)
    return [Gain(score.tokens_per_check(n) / costs.step(mask, n), n) for n in lengths]


def gain(score: Score, mask: LayerMask, costs: PassCosts) -> Gain:
    """At the best draft length."""
    return max(gains(score, mask, costs), key=lambda gain: gain.speed)
