"""Limits that a controller sets for the next draft. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from ..runtime.pass_result import Distribution
from .types import Draft

EVEN = 0.5  # probability of a token that is as likely accepted as rejected


class DraftDecision(Enum):
    """A decision about the token that was drafted last."""

    DROP = "drop"  # leave it out and stop
    STOP = "stop"  # verify it and stop
    GO_ON = "go on"  # verify it and draft another


class Pick(NamedTuple):
    """A draft token selected from the logits of a draft pass.

    p: probability of the most likely token, or the head's confidence, by which drafting goes on or
        stops. It does not depend on what was drawn: dropping tokens by their own probability would
        change the distribution of the tokens that are kept.
    likeliest: the most likely token.
    distribution: the distribution that the token was drawn from; None: it is the most likely one.
    """

    token: int
    p: float
    likeliest: int
    distribution: Distribution | None = None


class HasLogits(Protocol):
    """The result of a pass, in tokens of the target; see ``runtime.PassResult``.

    logits_of: float32 [n_vocab], -inf for tokens that the pass cannot draft.
    """

    def argmax(self, row: int) -> tuple[int, float]: ...

    def logits_of(self, row: int) -> NDArray[np.float32]: ...


@dataclass(frozen=True, slots=True)
class DraftLimit:
    """How much the next step may draft.

    n_max: most tokens; 0: decode plainly.
    p_min: tokens of lower probability are dropped, 0..1.
    draw: draws a token from the distribution of a row of a pass, which needs logits; None: the most
        likely token is taken.
    chance_min: looked-up tokens are of no use where the probability that all so far are accepted is
        less.
    rests: whether the drafter is not even asked, since looking tokens up takes time too.
    """

    n_max: int
    p_min: float = 0.0
    chance_min: float = field(default=0.0, kw_only=True)
    rests: bool = field(default=False, kw_only=True)
    draw: Callable[[HasLogits, int], Pick] | None = field(default=None, kw_only=True)

    @property
    def max_lookup(self) -> int:
        """Most tokens that are worth looking up, see ``truncate``."""
        return self.n_max

    def select(self, result: HasLogits, row: int) -> Pick:
        """Return the token to draft after a row of a pass."""
        if self.draw is not None:
            return self.draw(result, row)
        token, p = result.argmax(row)
        return Pick(token, p, token)

    def capped(self, n_max: int) -> Self:
        """Return this limit with at most n_max tokens, never fewer than 0."""
        return self if n_max >= self.n_max else replace(self, n_max=max(0, n_max))

    def after(self, probs: Sequence[float]) -> DraftDecision:
        """Decide about the last of the tokens drafted so far; probs: of all of them."""
        if probs[-1] < self.p_min:
            return DraftDecision.DROP
        return DraftDecision.STOP if len(probs) >= self.n_max else DraftDecision.GO_ON

    def truncate(self, found: Draft) -> Draft:
        """Return the part of a chain of looked-up tokens that is worth verifying."""
        if self.n_max == 0:
            return Draft()
        probs = found.probs
        if not probs:
            return found.first(self.n_max)
        for n in range(1, len(probs) + 1):
            after = self.after(probs[:n])
            if after is DraftDecision.DROP:
                return replace(found, tokens=found.tokens[: n - 1], dropped=found.tokens[n - 1])
            if after is DraftDecision.STOP:
                return found.first(n)
        return found

    def split(self, found: Draft) -> tuple[Draft, Self]:
        """Return the part of a chain of looked-up tokens to start a draft with, and the limit for
        draft passes after it.

        Here it is one or the other: draft passes are allowed where the first looked-up token is
        more likely rejected than accepted.
        """
        sure = replace(self, p_min=max(self.p_min, EVEN)).truncate(found)
        return found.first(len(sure.tokens)), self.capped(0 if sure.tokens else self.n_max)
