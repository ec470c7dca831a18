"""The reasoning budget: when it is spent, the reasoning is closed, and the answer follows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..errors import ArgumentError
from ..runtime.context import Context
from ..runtime.pass_result import Distribution
from ..runtime.sampling import Sampler


@dataclass(frozen=True, slots=True)
class ReasoningBudget:
    """The most tokens that a completion has for reasoning, at least one, and what closes it.

    open, close: markers around reasoning. is_open: whether the prompt has opened it. closing: the
    tokens that close it.
    """

    n_tokens: int
    open: str
    close: str
    is_open: bool
    closing: tuple[int, ...]

    def is_within(self, text: str) -> bool:
        """Return whether a completion that begins with this text is within its reasoning."""
        opened, closed = text.rfind(self.open), text.rfind(self.close)
        return self.is_open if opened == closed == -1 else opened > closed


class BudgetSampler:
    """Draws as another sampler does until a budget is spent. If the completion is within its
    reasoning then, the tokens that close it come next, without a draw, so that the random numbers
    go on behind them.

    piece: returns the bytes that a token adds to the completion.
    """

    def __init__(
        self, sampler: Sampler, budget: ReasoningBudget, piece: Callable[[int], bytes]
    ) -> None:
        self._sampler, self._budget, self._piece = sampler, budget, piece
        self._n_left = budget.n_tokens
        self._written = b""
        self._closing: list[int] = []  # tokens that come next

    @property
    def n_best(self) -> int:
        return self._sampler.n_best

    def begin(self, prompt: Sequence[int]) -> None:
        self._sampler.begin(prompt)

    def sample(self, context: Context, row: int) -> int:
        if self._closing:
            try:
                self._sampler.take(context, row, self._closing[0])
                return self._closing.pop(0)
            except ArgumentError:  # a grammar is within a call of a tool, which goes on
                self._closing = []
        token = self._sampler.sample(context, row)
        self._count(token)
        return token

    def distribution_of(self, logits: NDArray[np.float32]) -> Distribution:
        if self._closing:
            certain: Distribution = np.eye(1, len(logits), self._closing[0])[0]
            return certain
        return self._sampler.distribution_of(logits)

    def accept(self, token: int) -> None:
        self._sampler.accept(token)
        if self._closing:
            del self._closing[0]
        else:
            self._count(token)

    def _count(self, token: int) -> None:
        """Count a drawn token; after the last of the budget, decide whether to close."""
        if self._n_left > 0:
            self._n_left -= 1
            self._written += self._piece(token)
            if not self._n_left and self._budget.is_within(self._written.decode(errors="replace")):
                self._closing = list(self._budget.closing)
