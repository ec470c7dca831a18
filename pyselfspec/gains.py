"""What drafting with a mask can be expected to gain, from a match score and what passes cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from .costs import Costs, guessed_costs
from .gguf_file import GgufFile
from .score import DEPTH, Score
from .types import LayerMask


class PassCosts(Protocol):
    """Times over that of a plain one-token pass."""

    def draft(self, mask: LayerMask) -> float:
        """One token through a masked pass."""

    def step(self, mask: LayerMask, n_draft: int) -> float:
        """So many drafted tokens and their check."""

    def wide(self, mask: LayerMask, n_tokens: int) -> float:
        """So many tokens through one masked pass."""


@dataclass(frozen=True, slots=True)
class ByteCosts:
    """Masked passes by the bytes of the weights they read; wide ones as measured, where they were.

    A table measured for each mask would be better, but takes longer than most masks are worth.

    shares: whether draft and check run the blocks below the first skip only once.
    widths: times of full passes over 1, 2, ... tokens over that of one, see
        calibration.width_costs.
    """

    file: GgufFile
    shares: bool = False
    widths: tuple[float, ...] | None = None

    def draft(self, mask: LayerMask) -> float:
        costs = self._costs(mask)
        return costs.guess_us / costs.plain_us

    def step(self, mask: LayerMask, n_draft: int) -> float:
        costs = self._costs(mask)
        check_us = costs.verify_us(n_draft, n_draft)
        if self.widths is not None:
            check_us *= self.widths[n_draft] * costs.plain_us / costs.full_us[n_draft]
        return (costs.draft_us(n_draft, n_draft) + check_us) / costs.plain_us

    def wide(self, mask: LayerMask, n_tokens: int) -> float:
        costs = self._costs(mask)
        times = self.widths or [us / costs.plain_us for us in costs.full_us]
        return times[n_tokens - 1] * costs.guess_us / costs.plain_us

    def _costs(self, mask: LayerMask) -> Costs:
        return guessed_costs(self.file, mask, self.shares).levels[0]


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
