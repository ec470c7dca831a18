"""What the model gave the tokens of a text: probabilities before any sampler has changed them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import ArgumentError
from . import _lib
from .sampling import Sampler, SamplingParams

if TYPE_CHECKING:
    from .context import Context
    from .model import Model


class LogProbs(NamedTuple):
    """Natural logarithms of the probabilities of a token that was drawn, and of the likeliest ones,
    from the first down."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def logprobs_of(logits: NDArray[np.float32], token: int, n_top: int) -> LogProbs:
    """logits: float32 [n_vocab]. Of equally likely tokens the lowest comes first."""
    logits = logits.astype(np.float64)
    shifted = logits - logits.max()
    found = shifted - np.log(np.exp(shifted).sum())
    top = tuple((int(i), float(found[i])) for i in _likeliest(found, min(n_top, len(found))))
    return LogProbs(token, float(found[token]), top)


def _likeliest(found: NDArray[np.float64], n: int) -> NDArray[np.intp]:
    """Sorts these alone: to sort a large vocabulary takes longer than a pass over a small model."""
    if n == 0:
        return np.empty(0, np.intp)
    candidates = np.flatnonzero(found >= np.partition(found, -n)[-n])
    return candidates[np.argsort(-found[candidates], kind="stable")][:n]


class WatchedSampler(Sampler):
    """A sampler that keeps what the model gave every token that it draws.

    n_top: of the likeliest tokens. found: where it goes, oldest first.

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

    def sample(self, context: Context, row: int) -> int:
        with context.alone:
            logits = _lib.logits_row(context.handle, row, context.model.n_vocab)
        token = super().sample(context, row)
        self._found.append(logprobs_of(logits, token, self._n_top))
        return token
