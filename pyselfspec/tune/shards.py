"""What a head learns from, on disk: texts, the states that the model's passes over them left, and
its likeliest next tokens. Many files of some texts each, complete or not there at all.

Features are float16, so values beyond 65504 are cut off; the few states that large are those of a
text's first token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ..util.files import replacing

N_BEST = 16  # tokens of the model's distribution that are kept
F16_MAX = 65504.0


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of one text, as a head sees them: row i has the states at token i, knows token
    i + 1, and guesses what follows that. Fields are as in Shard, one entry per row; scored: whether
    the guess is one of the model's own text."""

    features: NDArray[np.float16]
    tokens: NDArray[np.int32]
    best: NDArray[np.int32]
    probs: NDArray[np.float16]
    scored: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, rows: slice) -> Rows:
        return Rows(*(getattr(self, field.name)[rows] for field in fields(self)))


@dataclass(frozen=True, slots=True)
class Shard:
    """Texts, one after the other.

    tokens: int32 [n]. lengths: of the texts, int32. prompts: tokens at the beginning of each that
        the model was given, int32.
    features: float16 [n, n_features], the states of three blocks at each token, side by side.
    best: int32 [n, N_BEST], the likeliest tokens to follow it. probs: float16, their probabilities.
    """

    tokens: NDArray[np.int32]
    lengths: NDArray[np.int32]
    prompts: NDArray[np.int32]
    features: NDArray[np.float16]
    best: NDArray[np.int32]
    probs: NDArray[np.float16]

    def __len__(self) -> int:
        return len(self.tokens)

    @classmethod
    def joined(cls, shards: Sequence[Self]) -> Self:
        return cls(
            *(np.concatenate([getattr(s, each.name) for s in shards]) for each in fields(cls))
        )

    @classmethod
    def load(cls, path: Path) -> Self:
        with np.load(path) as data:
            return cls(**{each.name: data[each.name] for each in fields(cls)})

    @staticmethod
    def n_tokens_of(path: Path) -> int:
        """Tokens of a file, without reading their states."""
        with np.load(path) as data:
            return int(data["lengths"].sum())

    def save(self, path: Path) -> None:
        arrays: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        with replacing(path) as unfinished:
            np.savez(unfinished, **arrays)

    def texts(self) -> list[Rows]:
        """The rows of each text."""
        found, start = [], 0
        for length, prompt in zip(self.lengths.tolist(), self.prompts.tolist(), strict=True):
            rows = slice(start, start + length - 1)
            later = slice(start + 1, start + length)
            scored = np.arange(2, length + 1) >= prompt
            found.append(
                Rows(
                    self.features[rows],
                    self.tokens[later],
                    self.best[later],
                    self.probs[later],
                    scored,
                )
            )
            start += length
        return found

    def prompts_of(self) -> list[tuple[int, ...]]:
        """What the model was given, by text."""
        starts = np.cumsum(self.lengths) - self.lengths
        return [
            tuple(self.tokens[start : start + n].tolist())
            for start, n in zip(starts.tolist(), self.prompts.tolist(), strict=True)
        ]
