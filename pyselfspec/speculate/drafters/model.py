"""Draft with a second, smaller model of the same vocabulary.

Leviathan et al., "Fast Inference from Transformers via Speculative Decoding",
https://arxiv.org/abs/2211.17192; Chen et al., "Accelerating Large Language Model Decoding with
Speculative Sampling", https://arxiv.org/abs/2302.01318. Drafts are greedy, or drawn from the second
model's distribution if the limit has ``draw``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import ArgumentError
from ...runtime.context import Context
from ...runtime.model import Model
from ...runtime.passes import Head
from ...runtime.vocabulary import difference
from ...util.sizes import size_text
from ..limits import DraftLimit, Pick
from ._second_model.reader import SecondModelDrafter, TextReader, opened


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the drafter.

    path: the GGUF file of the second model.
    """

    path: Path


def make(context: Context, options: Options) -> ModelDrafter:
    """Return a drafter. Raises ArgumentError for a model with another vocabulary or with more bytes
    than the model that it drafts for, and what ``reader.opened`` raises."""

    def check(model: Model) -> None:
        require_smaller(context.model, model)
        require_same_vocabulary(context.model, model)

    return ModelDrafter(context, opened(context, options.path, check))


def require_smaller(target: Model, model: Model) -> None:
    """Raise ArgumentError for a model that reads more bytes per token."""
    own, other = model.file.weight_bytes(), target.file.weight_bytes()
    if own > other:
        raise ArgumentError(
            f"{model.path.name} is too large to draft: it reads {size_text(own)} per token, "
            f"{target.path.name} {size_text(other)}; give a smaller model"
        )


def require_same_vocabulary(target: Model, model: Model) -> None:
    """Raise ArgumentError for a model with another vocabulary."""
    differs = difference(target, model)
    if differs is not None:
        raise ArgumentError(
            f"{differs}; to draft with another vocabulary, use universal:{model.path}"
        )


class _Read:
    """The result of a reader's last pass, in tokens of the target. The target's vocabulary may have
    more or fewer tokens at its end."""

    def __init__(self, reader: TextReader, n_vocab: int) -> None:
        self._reader = reader
        self._n_vocab = n_vocab

    def argmax(self, row: int) -> tuple[int, float]:
        return self._reader.likeliest()

    def logits_of(self, row: int) -> NDArray[np.float32]:
        own = self._reader.logits()[: self._n_vocab]
        found = np.full(self._n_vocab, -np.inf, np.float32)
        found[: len(own)] = own
        return found


class ModelDrafter(SecondModelDrafter):
    """Drafts with the second model. It keeps its K/V from step to step: accepted draft
    tokens are not read again, and the last of them, which went through no pass, is read with the
    next draft."""

    name = "model"

    def _reading(self, text: Sequence[int]) -> tuple[Sequence[int], int]:
        return text, self._n_read

    def _picks(self, text: Sequence[int], limit: DraftLimit) -> Iterator[Pick]:
        reader, n_vocab = self._reader, self._context.model.n_vocab
        result = _Read(reader, n_vocab)
        head: Head | None = None if limit.draw is None else "logits"
        tokens, n_same = list(text), self._n_read
        while True:
            reader.read(tokens, n_same, head=head)
            pick = limit.select(result, 0)
            if pick.token >= n_vocab:
                return  # a token that only the second model has, which is never drawn
            yield pick
            n_same = len(tokens)
            tokens.append(pick.token)
