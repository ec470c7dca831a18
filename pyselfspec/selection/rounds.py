"""What strategies and scorers tell each other: rounds of masks, their scores, how far they are.
Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..errors import ArgumentError
from ..masks.layer_mask import LayerMask
from ..masks.score import Score


@dataclass(frozen=True, slots=True)
class Round:
    """Masks to score together. They differ little from `base`; what they share with it runs once.

    best_only: only the best one counts, so others may be given up.
    n_later: masks that later rounds will bring, to estimate the time left; 0 where nobody knows.
    """

    base: LayerMask
    masks: tuple[LayerMask, ...]
    best_only: bool
    n_later: int = 0

    @classmethod
    def of_one(cls, mask: LayerMask) -> Round:
        """One mask, for its own sake."""
        return cls(LayerMask.full(mask.n_layer), (mask,), best_only=False)


@dataclass(frozen=True, slots=True)
class Scored:
    """A mask that was tried.

    score: over the chunks of text that it has seen.
    value: what the objective makes of the score; the higher, the better.
    complete: it has seen all chunks; what was given up has not.
    """

    mask: LayerMask
    score: Score
    value: float
    complete: bool = True

    @property
    def rank(self) -> tuple[bool, float]:
        """Sorts the best first."""
        return not self.complete, -self.value


def best_of(scored: Sequence[Scored]) -> Scored:
    """The first of the best. Raises ArgumentError where there are none."""
    if not scored:
        raise ArgumentError("no mask was tried in so short a time; give it more minutes")
    return min(scored, key=lambda s: s.rank)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a measurement is: scores of one mask on one chunk of text, done and expected in all;
    or chunks, while the model writes the text."""

    n_done: int
    n_total: int
    doing: str = "scoring masks"


# Called with every score. What it raises ends the measurement; scores made so far are kept.
Follow = Callable[[Progress], None]


def ignore(progress: Progress) -> None:
    """For those who do not want to follow."""


class GiveUp(Protocol):
    """A rule that saves work: which masks of a round need not see another chunk of text."""

    def hopeless(self, scored: Sequence[Scored], n_chunks: int, best_only: bool) -> set[LayerMask]:
        """The masks to give up, asked after every chunk.

        scored: the masks of the round that are still in; each has seen the same n_chunks chunks.
        best_only: of the round, see Round.
        """


@dataclass(frozen=True, slots=True)
class Never:
    """Every mask sees every chunk."""

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
    """Where only the best counts, give up a mask whose excess loss is above that of the best by
    more than z standard errors of the difference, see Score.behind.

    For objectives that rank masks by their excess loss only.
    """

    z: float = 2.5

    def hopeless(self, scored: Sequence[Scored], n_chunks: int, best_only: bool) -> set[LayerMask]:
        if not best_only:
            return set()
        best = best_of(scored).score
        return {s.mask for s in scored if s.score.behind(best) > self.z}
