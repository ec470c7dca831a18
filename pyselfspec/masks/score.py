"""What a masked pass is worth on some text: sums over tokens, from which everything is derived.

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

OVERFLOW = 1e3  # nats, for a token of a pass whose logits overflowed
N_PIECES = 8  # of the text that one score is of
DEPTH = 15  # longest draft that scores of agreement tell about; its verification is 16 tokens wide


@dataclass(frozen=True, slots=True)
class Score:
    """Losses of a masked pass, token by token, and how far they exceed those of the full model.

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
    # agreement only: of so many runs of 1, 2, ... tokens, so many were right throughout
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
        """From the losses of a masked and of the full pass, float64 [n_tokens] each."""
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
        """From what a masked pass got right, bool [n_windows, n_tokens]."""
        misses = float((~right).sum())
        n_runs, n_right = [], []
        whole = np.ones_like(right)
        for length in range(1, min(DEPTH, right.shape[1]) + 1):
            # from every token on: the run so far, and one more
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
        """Loss per token."""
        return self.loss / self.n

    @property
    def stderr(self) -> float:
        """Standard error of the mean, as llama.cpp's perplexity program computes it."""
        return _stderr(self.n, self.loss, self.loss_sq)

    @property
    def mean_excess(self) -> float:
        return self.excess / self.n

    @property
    def stderr_excess(self) -> float:
        return _stderr(self.n, self.excess, self.excess_sq)

    def behind(self, other: Score) -> float:
        """By how many standard errors this score is worse than another one on the same text.

        Of the differences piece by piece: what both lose against the full model, since much the
        same is skipped, is no difference. 0 for too few pieces to tell.
        """
        if len(self.pieces) < N_PIECES:
            return 0.0
        gaps = np.subtract(self.pieces, other.pieces)
        gap, error = float(gaps.mean()), float(gaps.std(ddof=1)) / math.sqrt(len(gaps))
        return gap / error if error else math.copysign(math.inf, gap) if gap else 0.0

    @property
    def perplexity(self) -> float:
        """Of a score in nats; infinite where it is beyond what a float can hold."""
        return math.exp(self.mean) if self.mean < 700 else math.inf

    @property
    def agreement(self) -> float:
        """Share of tokens that are the full model's, of a score of agreement."""
        return 1 - self.mean

    def tokens_per_check(self, n_draft: int) -> float:
        """Tokens that a draft of this length (DEPTH at most) and its verification yield on average,
        of a score of agreement."""
        pairs = zip(self.n_right_runs, self.n_runs, strict=True)
        return 1 + sum(right / n for right, n in list(pairs)[:n_draft])


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
    """Nats that the token costs under softmax; logits float32 [n_vocab]. As llama.cpp rounds it."""
    top = logits.max()
    return float(np.log(np.exp(logits - top).sum(dtype=np.float64)) - (logits[token] - top))
