"""Rows of texts packed into batches of one size, as tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .shards import Rows

Embed = Callable[[NDArray[np.int32]], NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows, [n_lines, n_rows] of each; texts lie one after the other, each within one line.

    features: float [..., n_features]. embedded: of the tokens that the rows know, float [...,
        n_embd].
    texts: which one a row is of. before: how many of its rows come before it.
    best: tokens to guess, likeliest first, as the head numbers them, -1 for those that it has not,
        [..., N_BEST]. probs: the model's, 0 for those.
    scored: rows that guess the model's own text.
    """

    features: Tensor
    embedded: Tensor
    texts: Tensor
    before: Tensor
    best: Tensor
    probs: Tensor
    scored: Tensor


class Packer:
    """own: the model's ids of the head's tokens. embed: the model's embeddings of tokens."""

    def __init__(
        self, own: NDArray[np.int64], n_vocab: int, embed: Embed, *, n_lines: int, n_rows: int,
        device: str,
    ) -> None:  # fmt: skip
        self._number = np.full(n_vocab, -1, np.int64)
        self._number[own] = np.arange(len(own))
        self._embed = embed
        self._shape = (n_lines, n_rows)
        self._device = device

    def batches(self, texts: Iterable[Rows]) -> Iterator[Batch]:
        """All that these texts fill; what is left over is left out."""
        n_wanted = self._shape[0] * self._shape[1]
        waiting: list[Rows] = []
        n = 0
        for text in texts:
            waiting.append(text)
            n += len(text)
            while n >= n_wanted:
                taken = _take(waiting, n_wanted)
                n -= n_wanted
                yield self._packed(taken)

    def _packed(self, parts: list[Rows]) -> Batch:
        shape = self._shape

        def joined(name: str) -> NDArray[Any]:
            found = np.concatenate([getattr(part, name) for part in parts])
            return found.reshape(*shape, *found.shape[1:])

        lengths = [len(part) for part in parts]
        before = np.concatenate([np.arange(n) for n in lengths]).reshape(shape)
        best = self._number[joined("best")]
        made = (
            joined("features").astype(np.float32),
            self._embed(joined("tokens").ravel()).reshape(*shape, -1),
            np.repeat(np.arange(len(parts)), lengths).reshape(shape),
            np.minimum(before, np.arange(shape[1])),  # a text that goes on in a new line begins
            best,
            np.where(best >= 0, joined("probs").astype(np.float32), 0),
            joined("scored"),
        )
        return Batch(*(torch.from_numpy(each).to(self._device) for each in made))


def _take(waiting: list[Rows], n: int) -> list[Rows]:
    """The first n rows, taken off."""
    taken = []
    while n:
        part = waiting.pop(0)
        taken.append(part[:n])
        if len(part) > n:
            waiting.insert(0, part[n:])
        n -= len(taken[-1])
    return taken
