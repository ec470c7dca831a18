"""Scores: the quality of a mask on a text, as sums over tokens.

Pure. Scores of disjoint pieces of text add up.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ..errors import ArgumentError
from ..util.pass_width import MAX_DRAFT

OVERFLOW = 1e3  # nats, for a token of a pass whose logits overflowed
N_PIECES = 8  # pieces of the text of one score


@dataclass(frozen=True, slots=True)
class Score:
    """The loss of a masked pass and its excess over the loss of the full model, summed over tokens.

    Loss: nats (perplexity), microseconds (measured speed), or 1 for a token that is not the full
    model's and 0 for one that is (agreement). The excess is taken per token, so its spread is much
    smaller than that of the losses. All numbers are finite.
    """

    n: int = 0  # tokens
    loss: float = 0.0
    loss_sq: float = 0.0
    excess: float = 0.0
    excess_sq: float = 0.0
    pieces: tuple[float, ...] = ()  # mean excess of pieces of the text, for scores on the same text
    # agreement only: numbers of all runs of 1, 2, ... tokens, and of runs that agree in every token
    n_runs: tuple[int, ...] = ()
    n_right_runs: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        sums = (self.loss, self.loss_sq, self.excess, self.excess_sq, *self.pieces)
        if self.n < 0 or not all(map(math.isfinite, sums)):
            raise ArgumentError("a score is of 0 or more tokens, and its numbers are finite")
        runs = itertools.zip_longest(self.n_right_runs, self.n_runs, fillvalue=-1)
        if not all(0 <= right <= n != 0 for right, n in runs):
            raise ArgumentError("a score has as many n_right_runs as n_runs, none larger")

    @classmethod
    def of(cls, losses: NDArray[np.float64], full: NDArray[np.float64]) -> Self:
        """Return the score from the losses of a masked and of the full pass, float64 [n_tokens]."""
        losses, full = (np.nan_to_num(x, nan=OVERFLOW, posinf=OVERFLOW) for x in (losses, full))
        excess = losses - full
        return cls(
            len(losses),
            float(losses.sum()),
            float((losses**2).sum()),
            float(excess.sum()),
            float((excess**2).sum()),
            _means(excess),
        )

    @classmethod
    def of_drafts(cls, right: NDArray[np.bool_]) -> Self:
        """Return the score from the agreement of a masked pass, bool [n_windows, n_tokens]."""
        misses = float((~right).sum())
        n_runs, n_right = [], []
        whole = np.ones_like(right)
        for length in range(1, min(MAX_DRAFT, right.shape[1]) + 1):
            # for each first token: the run so far, extended by one token
            whole = whole[:, : right.shape[1] - length + 1] & right[:, length - 1 :]
            n_runs.append(whole.size)
            n_right.append(int(whole.sum()))
        pieces = _means((~right).ravel().astype(np.float64))
        sums = (misses, misses, misses, misses)
        return cls(right.size, *sums, pieces, tuple(n_runs), tuple(n_right))

    def __add__(self, other: Score) -> Score:
        return Score(
            self.n + other.n,
            self.loss + other.loss,
            self.loss_sq + other.loss_sq,
            self.excess + other.excess,
            self.excess_sq + other.excess_sq,
            self.pieces + other.pieces,
            _added(self.n_runs, other.n_runs),
            _added(self.n_right_runs, other.n_right_runs),
        )

    @property
    def mean(self) -> float:
        """The mean loss per token."""
        return self.loss / self.n

    @property
    def stderr(self) -> float:
        """The standard error of the mean, as llama.cpp's perplexity program computes it."""
        return _stderr(self.n, self.loss, self.loss_sq)

    @property
    def mean_excess(self) -> float:
        return self.excess / self.n

    @property
    def stderr_excess(self) -> float:
        return _stderr(self.n, self.excess, self.excess_sq)

    def z_score(self, other: Score) -> float:
        """Return by how many standard errors this score is worse than another one on this text.

        The standard error is that of the differences by piece, in which losses common to both
        masks cancel. Returns 0 for too few pieces.
        """
        if len(self.pieces) < N_PIECES:
            return 0.0
        gaps = np.subtract(self.pieces, other.pieces)
        gap, error = float(gaps.mean()), float(gaps.std(ddof=1)) / math.sqrt(len(gaps))
        return gap / error if error else math.copysign(math.inf, gap) if gap else 0.0

    @property
    def perplexity(self) -> float:
        """Return the perplexity of a score in nats; infinity where a float overflows."""
        return math.exp(self.mean) if self.mean < 700 else math.inf

    @property
    def agreement(self) -> float:
        """Return the share of tokens that equal the full model's, from a score of agreement."""
        return 1 - self.mean

    @property
    def survival(self) -> tuple[float, ...]:
        """Return the share of drafts of 1, 2, ... MAX_DRAFT tokens that are accepted as a whole."""
        pairs = zip(self.n_right_runs, self.n_runs, strict=True)
        return tuple(right / n for right, n in pairs)


def _means(excess: NDArray[np.float64]) -> tuple[float, ...]:
    pieces = np.array_split(excess, min(N_PIECES, len(excess)))
    return tuple(float(piece.mean()) for piece in pieces)


def _added(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(x + y for x, y in itertools.zip_longest(a, b, fillvalue=0))


def _stderr(n: int, total: float, total_sq: float) -> float:
    if n < 2:
        return math.inf
    variance = total_sq / n - (total / n) ** 2
    return math.sqrt(max(variance, 0.0) / (n - 1))


def token_loss(logits: NDArray[np.float32], token: int) -> float:
    """Return the loss of a token in nats, rounded as in llama.cpp; logits: float32 [n_vocab]."""
    top = logits.max()
    return float(np.log(np.exp(logits - top).sum(dtype=np.float64)) - (logits[token] - top))
