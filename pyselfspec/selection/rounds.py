"""Data that strategies and scorers exchange: rounds of masks and their scores. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..errors import ArgumentError
from ..masks.layer_mask import LayerMask
from ..masks.score import Score


@dataclass(frozen=True, slots=True)
class Round:
    """Masks to score together. They differ little from `base`; blocks they share with it run once.

    best_only: only the best mask counts, so others may be abandoned early.
    n_later: number of masks in later rounds, to estimate the time left; 0 if unknown.
    """

    base: LayerMask
    masks: tuple[LayerMask, ...]
    best_only: bool
    n_later: int = 0

    @classmethod
    def of_one(cls, mask: LayerMask) -> Round:
        """Return a round of one mask."""
        return cls(LayerMask.full(mask.n_layer), (mask,), best_only=False)


@dataclass(frozen=True, slots=True)
class Scored:
    """A mask with its score.

    score: over the chunks that it was scored on.
    value: the objective's value of the score; higher is better.
    complete: whether it was scored on all chunks, not abandoned before.
    """

    mask: LayerMask
    score: Score
    value: float
    complete: bool = True

    @property
    def rank(self) -> tuple[bool, float]:
        """Sort key: best first."""
        return not self.complete, -self.value


def best_of(scored: Sequence[Scored]) -> Scored:
    """Return the best mask, the first if several are equal. Raises ArgumentError for no masks."""
    if not scored:
        raise ArgumentError(
            "the time budget ended before the first mask was scored; give more minutes"
        )
    return min(scored, key=lambda s: s.rank)


class GiveUp(Protocol):
    """A rule that saves time: which masks of a round need not be scored on another chunk."""

    def hopeless(self, scored: Sequence[Scored], n_chunks: int, best_only: bool) -> set[LayerMask]:
        """Return the masks to abandon; called after every chunk.

        scored: the remaining masks of the round, all scored on the same n_chunks chunks.
        best_only: see Round.
        """


@dataclass(frozen=True, slots=True)
class Never:
    """Score every mask on every chunk."""

    def hopeless(self, scored: Sequence[Scored], n_chunks: int, best_only: bool) -> set[LayerMask]:
        return set()


@dataclass(frozen=True, slots=True)
class AbortRatio:
    """Give up a mask whose perplexity is so many times the full model's, after a few chunks.

    With 30 and 3 the rule of llama.cpp's pull request 3565,
    https://github.com/ggml-org/llama.cpp/pull/3565.
    """

    ratio: float = 30.0
    after: int = 3

    def __post_init__(self) -> None:
        if not self.ratio > 1:
            raise ArgumentError(f"an abort ratio is above 1, got {self.ratio:g}")

    def hopeless(self, scored: Sequence[Scored], n_chunks: int, best_only: bool) -> set[LayerMask]:
        if n_chunks < self.after:
            return set()
        return {s.mask for s in scored if s.score.mean_excess > math.log(self.ratio)}


@dataclass(frozen=True, slots=True)
class Confident:
    """If only the best mask counts, abandon masks whose excess loss exceeds that of the best by
    more than z standard errors of the difference, see Score.z_score.

    For objectives that rank masks by their excess loss only.
    """

    z: float = 2.5

    def hopeless(self, scored: Sequence[Scored], n_chunks: int, best_only: bool) -> set[LayerMask]:
        if not best_only:
            return set()
        best = best_of(scored).score
        return {s.mask for s in scored if s.score.z_score(best) > self.z}
