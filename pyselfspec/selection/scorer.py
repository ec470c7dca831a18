"""Scores rounds of masks chunk by chunk, and abandons masks that cannot matter any more.

All masks of a round are scored on the first chunk, the remaining ones on the second, and so on, so
the order of masks has no influence. Scores of this run and of earlier ones are not measured again.
Pure: only the objective uses the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..errors import ArgumentError
from ..masks.layer_mask import LayerMask, entry
from ..masks.score import Score
from ..util.progress import OnProgress, Progress, ignore_progress
from .objectives import Objective
from .results import Results
from .rounds import GiveUp, Never, Round, Scored


class Scorer:
    """Scores masks by an objective.

    n_chunks: number of the objective's chunks to use, from the first on; None: all.
    Raises ArgumentError for more chunks than the text has.
    """

    def __init__(
        self,
        objective: Objective,
        results: Results | None = None,
        n_chunks: int | None = None,
        give_up: GiveUp | None = None,
    ) -> None:
        n_chunks = objective.n_chunks if n_chunks is None else n_chunks
        if not 1 <= n_chunks <= objective.n_chunks:
            raise ArgumentError(
                f"the text has {objective.n_chunks} chunks, but n_chunks is {n_chunks}; "
                "give a longer text, a smaller n_ctx (--chunk-size) or fewer chunks"
            )
        self.n_chunks = n_chunks
        self._objective = objective
        self._results = Results() if results is None else results
        self._give_up = Never() if give_up is None else give_up
        self._n_done = 0
        self._n_possible = 0  # scores without abandoning any mask

    def score(self, request: Round, progress: OnProgress = ignore_progress) -> list[Scored]:
        """Return the masks with their scores, in the order of the round."""
        scores = dict.fromkeys(request.masks, Score())
        seen = dict.fromkeys(request.masks, 0)
        live = sorted(scores, key=lambda mask: entry(request.base, mask))
        for chunk in range(self.n_chunks):
            for i, (mask, score) in enumerate(self._on_chunk(chunk, request.base, live)):
                scores[mask] += score
                seen[mask] = chunk + 1
                self._n_done += 1
                n_left = len(live) * (self.n_chunks - chunk) - i - 1
                n_total = self._n_done + n_left + self._later(request.n_later)
                progress(Progress("scoring chunks", self._n_done, n_total))
            self._n_possible += len(scores)
            scored = [self._scored(mask, scores[mask], True) for mask in live]
            out = self._give_up.hopeless(scored, chunk + 1, request.best_only)
            live = [mask for mask in live if mask not in out]
            if not live:
                break
        return [self._scored(m, scores[m], seen[m] == self.n_chunks) for m in request.masks]

    def one(self, mask: LayerMask) -> Scored:
        """Score one mask."""
        return self.score(Round.of_one(mask))[0]

    def _scored(self, mask: LayerMask, score: Score, complete: bool) -> Scored:
        return Scored(mask, score, self._objective.value(mask, score), complete)

    def _later(self, n_masks: int) -> int:
        """Estimate the number of scores for n_masks from the share not abandoned so far."""
        share = self._n_done / self._n_possible if self._n_possible else 1.0
        return round(n_masks * self.n_chunks * min(share, 1.0))

    def _on_chunk(
        self, chunk: int, base: LayerMask, masks: Sequence[LayerMask]
    ) -> Iterator[tuple[LayerMask, Score]]:
        stored = {mask: self._results.score(mask, chunk) for mask in masks}
        missing = [mask for mask in masks if stored[mask] is None]
        if missing:
            fresh = self._objective.scores(chunk, base, missing)
        for mask in masks:
            score = stored[mask]
            if score is None:
                score = next(fresh)
                self._results.add_score(mask, chunk, score)
            yield mask, score
