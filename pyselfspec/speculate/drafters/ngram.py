"""Draft what followed the same tokens before, in the prompt or in the text so far.

It costs nothing but look-ups, so it pays wherever a text repeats anything, whatever the model; see
ngrams.py for the papers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...costs.calibration import costs_of_copies
from ...costs.table import CostTable
from ...errors import ArgumentError
from ...masks.layer_mask import LayerMask
from ...runtime.context import Context
from ...runtime.kv import KVSequence
from ..ngrams import LENGTHS, Chances, Copy, NgramIndex
from ..types import Draft, DraftLimit, Verdict
from . import Guesses


@dataclass(frozen=True, slots=True)
class Options:
    """chance_min: a draft ends before a token that is expected to be right less often."""

    chance_min: float = 0.1

    def __post_init__(self) -> None:
        if not 0.0 <= self.chance_min <= 1.0:
            raise ArgumentError(f"chance_min is 0 to 1, got {self.chance_min:g}")


def suggested(context: Context, mask: LayerMask | None) -> Options | None:
    """Wherever tokens can be taken back: what is looked up costs nothing."""
    return Options() if context.can_rollback else None


def make(context: Context, options: Options) -> Drafter:
    return Drafter(context, options)


class Drafter:
    """Copies, with the chances that it has learned. They outlive a text, its n-grams do not."""

    mask = None

    def __init__(self, context: Context, options: Options) -> None:
        self._context = context
        self._options = options
        self._index = NgramIndex()
        self._n_seen = 0  # tokens of the text
        self._chances = context.once(("ngram chances",), Chances)
        self._copies: list[Copy] = []

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"drafter": "ngram"}

    def costs(self) -> CostTable:
        return costs_of_copies(self._context, self.identity)

    def begin(self, seq: KVSequence, history: Sequence[int]) -> None:
        self._index = NgramIndex()
        self._n_seen = 0
        self._copies = []

    def draft(self, history: Sequence[int], limit: DraftLimit) -> Draft:
        return limit.cut(*self.guesses(history, limit.n_looked_up))

    def guesses(self, history: Sequence[int], n_max: int) -> Guesses:
        """At least one is looked up, to learn from."""
        self._learn(history)
        self._copies = []
        context = list(history[-LENGTHS[-1] :])
        chances: list[float] = []
        while len(self._copies) < max(1, n_max):
            copy = self._index.following(context)
            if copy is None:
                break
            chance = self._chances.of(copy.match)
            if self._copies and chance < self._options.chance_min:
                break
            self._copies.append(copy)
            chances.append(chance)
            context.append(copy.token)
        return Guesses(tuple(copy.token for copy in self._copies[:n_max]), tuple(chances[:n_max]))

    def _learn(self, history: Sequence[int]) -> None:
        """From the tokens that have come by, whether they had been drafted or only expected."""
        came = history[self._n_seen :]
        self._n_seen = len(history)
        for copy, token in zip(self._copies, came, strict=False):
            self._chances.observe(copy.match, copy.token == token)
            if copy.token != token:
                break
        self._index.extend(came)

    def accept(self, verdict: Verdict) -> None:
        pass

    def close(self) -> None:
        pass
