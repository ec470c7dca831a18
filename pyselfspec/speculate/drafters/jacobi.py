"""Draft what the full model itself said behind tokens that turned out wrong.

Jacobi decoding: Santilli et al., "Accelerating Transformer Inference for Translation via Parallel
Decoding", algorithm 1, https://arxiv.org/abs/2305.10427; Song et al., "Accelerating Feedforward
Computation via Parallel Nonlinear Equation Solving", https://arxiv.org/abs/2002.03629. All tokens
of a draft are guessed at once. The pass that verifies them also says what the model would have
written behind each, and what it says behind the first wrong one is the next draft, one position on:
every pass verifies and refines. Guesses that no longer change are often right.

The first guess, and what the refined ones do not reach, is the last token again and again. Joined
with a drafter that looks tokens up, that one's draft is refined as well.

SmolLM2 135M on nine kinds of everyday tasks, 3 or 7 tokens drafted in every step: alone 1.04 tokens
per pass, 1.08 at temperature 0.7; joined with ngram 0.2 to 0.7 % more than that alone, at
temperature 0.7 2 to 4 %.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from ...costs.table import CostTable
from ...runtime.context import Context
from ...runtime.kv import KVSequence
from .. import learned
from ..types import Draft, DraftLimit, Verdict
from . import Guesses

N_PRIOR = 4.0  # outcomes that the expectation without outcomes is worth
FORGET = 0.98  # weight of an outcome when the next one of its kind comes


class Kind(Enum):
    """Where a guess comes from, and how often it is right before anything is known."""

    REPEATED = 0.1  # the token before it again
    CHANGED = 0.2  # said by the model, where another one was drafted
    SAME = 0.6  # said by the model, just as drafted


class Guess(NamedTuple):
    token: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class Options:
    """None: the limit says how many tokens to guess."""


def make(context: Context, options: Options) -> Drafter:
    return Drafter(context)


class Drafter:
    mask = None

    def __init__(self, context: Context) -> None:
        self._context = context
        self._refined: list[Guess] = []
        self._begin = 0  # length of the text that the first of them follows
        self._offered: list[Guess] = []
        self._n_seen = 0  # tokens of the text
        self._right = {kind: N_PRIOR * kind.value for kind in Kind}
        self._all = dict.fromkeys(Kind, N_PRIOR)

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"drafter": "jacobi"}

    def costs(self) -> CostTable:
        return learned.costs(self._context, self.identity)

    def begin(self, seq: KVSequence, history: Sequence[int]) -> None:
        self._refined, self._offered = [], []
        self._begin = self._n_seen = len(history)

    def draft(self, history: Sequence[int], limit: DraftLimit) -> Draft:
        return limit.cut(*self.guesses(history, limit.n_looked_up))

    def guesses(self, history: Sequence[int], n_max: int) -> Guesses:
        self._learn(history)
        guesses = self._refined[len(history) - self._begin :][:n_max]
        last = guesses[-1].token if guesses else history[-1]
        if not self._context.model.is_eog(last):
            guesses += [Guess(last, Kind.REPEATED)] * (n_max - len(guesses))
        self._offered = guesses
        return Guesses(
            tuple(guess.token for guess in guesses),
            tuple(self._right[guess.kind] / self._all[guess.kind] for guess in guesses),
        )

    def _learn(self, history: Sequence[int]) -> None:
        """From the tokens that have come by, up to the first that was guessed wrong."""
        came = history[self._n_seen :]
        self._n_seen = len(history)
        for (guess, kind), token in zip(self._offered, came, strict=False):
            self._right[kind] = FORGET * self._right[kind] + (guess == token)
            self._all[kind] = FORGET * self._all[kind] + 1
            if guess != token:
                break

    def hear(self, draft: Draft, verdict: Verdict, rows: range, best: Callable[[int], int]) -> None:
        n = verdict.n_accepted
        self._begin = self._n_seen + n + 1
        self._refined = []
        for row in range(max(n + 1, rows.start), rows.stop) if draft.is_chain else ():
            token = best(row)
            same = draft.tokens[row : row + 1] == (token,)
            self._refined.append(Guess(token, Kind.SAME if same else Kind.CHANGED))
            if self._context.model.is_eog(token):
                break

    def accept(self, verdict: Verdict) -> None:
        pass

    def close(self) -> None:
        pass
