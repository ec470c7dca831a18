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
from ...runtime.context import Context
from ...runtime.kv import KVSequence
from ..ngrams import LENGTHS, Chances, Guess, NgramIndex
from ..types import Draft, DraftLimit, Verdict


@dataclass(frozen=True, slots=True)
class Options:
    """chance_min: a draft ends before a token that is expected to be right less often."""

    chance_min: float = 0.1

    def __post_init__(self) -> None:
        if not 0.0 <= self.chance_min <= 1.0:
            raise ArgumentError(f"chance_min is 0 to 1, got {self.chance_min:g}")


def make(context: Context, options: Options) -> Drafter:
    return Drafter(context, options)


class Drafter:
    """Copies, with the chances that it has learned. They outlive a text, its n-grams do not."""

    mask = None

    def __init__(self, context: Context, options: Options) -> None:
        self._context = context
        self._options = options
        self._index = NgramIndex()
        self._chances = context.once(("ngram chances",), Chances)
        self._guesses: list[Guess] = []
        self._next: Guess | None = None  # what would have been drafted first

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"drafter": "ngram"}

    def costs(self) -> CostTable:
        return costs_of_copies(self._context, self.identity)

    def begin(self, seq: KVSequence, history: Sequence[int]) -> None:
        self._index = NgramIndex()
        self._guesses = []

    def draft(self, history: Sequence[int], limit: DraftLimit) -> Draft:
        self._learn(history)
        self._guesses = []
        context = list(history[-LENGTHS[-1] :])
        probs: list[float] = []
        while len(self._guesses) < max(1, limit.n_max):
            guess = self._index.following(context)
            if guess is None:
                break
            chance = self._chances.of(guess.match)
            if self._guesses and chance < self._options.chance_min:
                break
            self._guesses.append(guess)
            probs.append(chance)
            context.append(guess.token)
        if limit.n_max == 0:
            return Draft()
        return limit.cut([guess.token for guess in self._guesses], probs)

    def _learn(self, history: Sequence[int]) -> None:
        """From the tokens that have come by, whether they had been drafted or only expected."""
        n = len(self._index)
        came = history[n:]
        for guess, token in zip(self._guesses, came, strict=False):
            self._chances.observe(guess.match, guess.token == token)
            if guess.token != token:
                break
        self._index.extend(came)

    def accept(self, verdict: Verdict) -> None:
        pass

    def close(self) -> None:
        pass
