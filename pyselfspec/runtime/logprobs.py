"""Log probabilities of a text's tokens, before any sampler has changed them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import ArgumentError
from .sampling import Sampler, SamplingParams

if TYPE_CHECKING:
    from .context import Context
    from .model import Model


class LogProbs(NamedTuple):
    """Natural logarithms of the probabilities of a drawn token and of the most likely tokens, in
    descending order."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def logprobs_of(logits: NDArray[np.float32], token: int, n_top: int) -> LogProbs:
    """Return the log probabilities of a token and of the n_top most likely tokens.

    logits: float32 [n_vocab]. Equally likely tokens are ordered by id.
    """
    logits = logits.astype(np.float64)
    shifted = logits - logits.max()
    found = shifted - np.log(np.exp(shifted).sum())
    top = tuple((int(i), float(found[i])) for i in _likeliest(found, min(n_top, len(found))))
    return LogProbs(token, float(found[token]), top)


def _likeliest(found: NDArray[np.float64], n: int) -> NDArray[np.intp]:
    """Return the n most likely tokens without sorting the vocabulary, which would be slow."""
    if n == 0:
        return np.empty(0, np.intp)
    candidates = np.flatnonzero(found >= np.partition(found, -n)[-n])
    return candidates[np.argsort(-found[candidates], kind="stable")][:n]


class WatchedSampler(Sampler):
    """A sampler that records the log probabilities of every token that it draws or takes.

    n_top: number of most likely tokens to record. found: the list that gets one entry per token.

    Raises ArgumentError for a negative n_top, and as Sampler does.
    """

    def __init__(
        self, model: Model, params: SamplingParams, n_top: int, found: list[LogProbs]
    ) -> None:
        if n_top < 0:
            raise ArgumentError(f"logprobs is 0 tokens or more, got {n_top}")
        super().__init__(model, params)
        self._n_top = n_top
        self._found = found

    @property
    def n_best(self) -> int:
        return 0  # it reads the logits

    def sample(self, context: Context, row: int) -> int:
        logits = context.logits(row)
        token = super().sample(context, row)
        self._found.append(logprobs_of(logits, token, self._n_top))
        return token

    def take(self, context: Context, row: int, token: int) -> None:
        super().take(context, row, token)
        self._found.append(logprobs_of(context.logits(row), token, self._n_top))
