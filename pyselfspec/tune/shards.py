"""Training data: files of texts with the model's states and likeliest next tokens, and batches of
their rows as tensors.

Features are stored as float16; values beyond 65504, which only first tokens of texts reach, are
clipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..util.files import replacing

N_BEST = 16  # likeliest next tokens that are stored per row
F16_MAX = 65504.0

Embed = Callable[[NDArray[np.int32]], NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class TextRows:
    """Consecutive rows of one text, as a head reads them.

    Row i has the features of token i, ``tokens`` holds token i + 1, and ``best`` and ``probs``
    describe token i + 2, see Shard. scored: whether token i + 2 is the model's own, not the
    prompt's.
    """

    features: NDArray[np.float16]
    tokens: NDArray[np.int32]
    best: NDArray[np.int32]
    probs: NDArray[np.float16]
    scored: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, rows: slice) -> TextRows:
        return TextRows(*(getattr(self, field.name)[rows] for field in fields(self)))


@dataclass(frozen=True, slots=True)
class Shard:
    """Several texts, concatenated; one file of training data.

    tokens: int32 [n].
    lengths: tokens of each text, int32 [n_texts].
    prompts: prompt tokens of each text, int32 [n_texts].
    features: input states of three blocks at each token, concatenated, float16 [n, n_features].
    best: likeliest next tokens, int32 [n, N_BEST]. probs: their probabilities, float16.
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
    def concatenate(cls, shards: Sequence[Self]) -> Self:
        return cls(
            *(np.concatenate([getattr(s, each.name) for s in shards]) for each in fields(cls))
        )

    @classmethod
    def load(cls, path: Path) -> Self:
        with np.load(path) as data:
            return cls(**{each.name: data[each.name] for each in fields(cls)})

    @staticmethod
    def count_tokens(path: Path) -> int:
        """Return the number of tokens in a file without reading its features."""
        with np.load(path) as data:
            return int(data["lengths"].sum())

    def save(self, path: Path) -> None:
        arrays: dict[str, Any] = {each.name: getattr(self, each.name) for each in fields(self)}
        with replacing(path) as unfinished:
            np.savez(unfinished, **arrays)

    def texts(self) -> list[TextRows]:
        """Return the rows of each text; a text of n tokens has n - 1."""
        texts, start = [], 0
        for length, prompt in zip(self.lengths.tolist(), self.prompts.tolist(), strict=True):
            rows = slice(start, start + length - 1)
            later = slice(start + 1, start + length)
            texts.append(
                TextRows(
                    self.features[rows],
                    self.tokens[later],
                    self.best[later],
                    self.probs[later],
                    scored=np.arange(2, length + 1) >= prompt,
                )
            )
            start += length
        return texts

    def prompt_tokens(self) -> list[tuple[int, ...]]:
        """Return the prompt of each text."""
        starts = np.cumsum(self.lengths) - self.lengths
        return [
            tuple(self.tokens[start : start + n].tolist())
            for start, n in zip(starts.tolist(), self.prompts.tolist(), strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of texts packed into lines; all tensors are [n_lines, n_rows, ...].

    features: float [..., n_features]. embedded: embeddings of the rows' tokens, [..., n_embd].
    texts: number of the text that a row belongs to.
    before: rows of that text that precede it in the line.
    best: likeliest next tokens as indices into the draft vocabulary, -1 for tokens outside it,
        [..., N_BEST]. probs: their probabilities, 0 for tokens outside it.
    scored: rows that predict the model's own text.
    """

    features: Tensor
    embedded: Tensor
    texts: Tensor
    before: Tensor
    best: Tensor
    probs: Tensor
    scored: Tensor


class Packer:
    """Packs texts into batches of one shape.

    draft_vocab: the model's ids of the tokens that the head can draft.
    embed: returns the model's embeddings of tokens.
    """

    def __init__(
        self, draft_vocab: NDArray[np.int64], n_vocab: int, embed: Embed, *,
        n_lines: int, n_rows: int, device: str,
    ) -> None:  # fmt: skip
        self._draft_index = np.full(n_vocab, -1, np.int64)
        self._draft_index[draft_vocab] = np.arange(len(draft_vocab))
        self._embed = embed
        self._shape = (n_lines, n_rows)
        self._device = device

    def batches(self, texts: Iterable[TextRows]) -> Iterator[Batch]:
        """Yield full batches; rows that do not fill the last one are dropped."""
        n_batch = self._shape[0] * self._shape[1]
        waiting: list[TextRows] = []
        n = 0
        for text in texts:
            waiting.append(text)
            n += len(text)
            while n >= n_batch:
                yield self._pack(_take(waiting, n_batch))
                n -= n_batch

    def _pack(self, parts: list[TextRows]) -> Batch:
        shape = self._shape

        def joined(name: str) -> NDArray[Any]:
            values = np.concatenate([getattr(part, name) for part in parts])
            return values.reshape(*shape, *values.shape[1:])

        lengths = [len(part) for part in parts]
        before = np.concatenate([np.arange(n) for n in lengths]).reshape(shape)
        best = self._draft_index[joined("best")]
        arrays = (
            joined("features").astype(np.float32),
            self._embed(joined("tokens").ravel()).reshape(*shape, -1),
            np.repeat(np.arange(len(parts)), lengths).reshape(shape),
            np.minimum(before, np.arange(shape[1])),  # attention does not cross lines
            best,
            np.where(best >= 0, joined("probs").astype(np.float32), 0),
            joined("scored"),
        )
        return Batch(*(torch.from_numpy(array).to(self._device) for array in arrays))


def _take(waiting: list[TextRows], n: int) -> list[TextRows]:
    """Remove the first n rows from the list and return them."""
    taken = []
    while n:
        part = waiting.pop(0)
        taken.append(part[:n])
        if len(part) > n:
            waiting.insert(0, part[n:])
        n -= len(taken[-1])
    return taken
