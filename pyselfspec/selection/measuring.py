"""Scores many masks chunk by chunk, and gives up early those that cannot matter any more.

All masks of a pass see the first chunk, then those still of interest the second, and so on: a
ranking of everything is there early, and no order of masks is better than another. What has been
measured before, in this run or in an earlier one, is not measured again.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ..errors import ArgumentError
from ..masks.layer_mask import LayerMask, entry
from ..masks.score import Score
from .results import Results


class Objective(Protocol):
    """What a mask is judged by, see perplexity.py and match.py."""

    @property
    def n_chunks(self) -> int: ...

    def scores(
        self, chunk: int, base: LayerMask, masks: Sequence[LayerMask]
    ) -> Iterator[Score]: ...


@dataclass(frozen=True, slots=True)
class Pass:
    """Masks to score together. They differ little from `base`, what they share runs once.

    best_only: only the best one counts, so others may be given up.
    n_later: masks that later passes will bring, for a guess of the time left.
    """

    base: LayerMask
    masks: tuple[LayerMask, ...]
    best_only: bool
    n_later: int = 0


@dataclass(frozen=True, slots=True)
class Scored:
    """A mask with its score over the chunks it has seen; complete: over all of them."""

    mask: LayerMask
    score: Score
    complete: bool

    @property
    def rank(self) -> tuple[bool, float]:
        """Sorts the best first."""
        return not self.complete, self.score.mean_excess


class GiveUp(Protocol):
    """Which masks of a pass need not see another chunk."""

    def hopeless(self, scored: Sequence[Scored], n_chunks: int, best_only: bool) -> set[LayerMask]:
        """Of masks that have all seen n_chunks chunks."""


@dataclass(frozen=True, slots=True)
class Never:
    """Every mask sees every chunk."""

    def hopeless(self, scored: Sequence[Scored], n_chunks: int, best_only: bool) -> set[LayerMask]:
        return set()


@dataclass(frozen=True, slots=True)
class AbortRatio:
    """Give up a mask whose perplexity is so many times the full model's, after a few chunks.

    With 30 and 3 the rule of llama.cpp's pull request 3565.
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
    """Where only the best counts, give up a mask that is worse than the best by so many standard
    errors of the difference, see Score.behind."""

    z: float = 2.5

    def hopeless(self, scored: Sequence[Scored], n_chunks: int, best_only: bool) -> set[LayerMask]:
        if not best_only:
            return set()
        best = min(scored, key=lambda s: s.rank).score
        return {s.mask for s in scored if s.score.behind(best) > self.z}


@dataclass(frozen=True, slots=True)
class Progress:
    """Scores of one mask on one chunk, done and expected."""

    n_done: int
    n_total: int


class Measuring:
    """n_chunks: of the objective's chunks, from the first on."""

    def __init__(
        self, objective: Objective, results: Results, n_chunks: int, give_up: GiveUp
    ) -> None:
        if not 1 <= n_chunks <= objective.n_chunks:
            raise ArgumentError(
                f"the text has {objective.n_chunks} chunks, {n_chunks} are asked for; "
                "give a longer text, a smaller -c or fewer --chunks"
            )
        self._objective = objective
        self._results = results
        self._n_chunks = n_chunks
        self._give_up = give_up
        self._n_done = 0
        self._n_possible = 0  # what it would have been without giving up

    def scores(self, request: Pass) -> Generator[Progress, None, list[Scored]]:
        """Measure; returns the masks with their scores, in the order of the request."""
        scores = dict.fromkeys(request.masks, Score())
        seen = dict.fromkeys(request.masks, 0)
        live = sorted(scores, key=lambda mask: entry(request.base, mask))
        for chunk in range(self._n_chunks):
            for i, (mask, score) in enumerate(self._on_chunk(chunk, request.base, live)):
                scores[mask] += score
                seen[mask] = chunk + 1
                self._n_done += 1
                n_left = len(live) * (self._n_chunks - chunk) - i - 1
                yield Progress(self._n_done, self._n_done + n_left + self._guess(request.n_later))
            self._n_possible += len(scores)
            scored = [Scored(mask, scores[mask], True) for mask in live]
            out = self._give_up.hopeless(scored, chunk + 1, request.best_only)
            live = [mask for mask in live if mask not in out]
            if not live:
                break
        return [Scored(m, scores[m], seen[m] == self._n_chunks) for m in request.masks]

    def _guess(self, n_masks: int) -> int:
        share = self._n_done / self._n_possible if self._n_possible else 1.0
        return round(n_masks * self._n_chunks * min(share, 1.0))

    def _on_chunk(
        self, chunk: int, base: LayerMask, masks: Sequence[LayerMask]
    ) -> Iterator[tuple[LayerMask, Score]]:
        known = {mask: self._results.score(mask, chunk) for mask in masks}
        unknown = [mask for mask in masks if known[mask] is None]
        if unknown:
            fresh = self._objective.scores(chunk, base, unknown)
        for mask in masks:
            score = known[mask]
            if score is None:
                score = next(fresh)
                self._results.add_score(mask, chunk, score)
            yield mask, score
