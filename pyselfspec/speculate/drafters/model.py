"""Draft with a second, smaller model of the same vocabulary.

Leviathan et al., "Fast Inference from Transformers via Speculative Decoding",
https://arxiv.org/abs/2211.17192; Chen et al., "Accelerating Large Language Model Decoding with
Speculative Sampling", https://arxiv.org/abs/2302.01318. Drafts are greedy here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...errors import ArgumentError
from ...runtime.context import Context
from ...runtime.model import Model
from ...runtime.vocabulary import difference
from ...util.sizes import size_text
from ..limits import DraftLimit
from ._second_model.reader import SecondModelDrafter, opened


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the drafter.

    path: the GGUF file of the second model.
    """

    path: Path


def make(context: Context, options: Options) -> Drafter:
    """Return a drafter. Raises ArgumentError for a model with another vocabulary or with more bytes
    than the model that it drafts for, and what ``reader.opened`` raises."""

    def check(model: Model) -> None:
        require_smaller(context.model, model)
        require_same_vocabulary(context.model, model)

    return Drafter(context, opened(context, options.path, check))


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


class Drafter(SecondModelDrafter):
    """Drafts greedily with the second model. It keeps its K/V from step to step: accepted draft
    tokens are not read again, and the last of them, which went through no pass, is read with the
    next draft."""

    name = "model"

    def _reading(self, text: Sequence[int]) -> tuple[Sequence[int], int]:
        return text, self._n_read

    def _candidates(self, text: Sequence[int], limit: DraftLimit) -> Iterator[tuple[int, float]]:
        reader = self._reader
        tokens, n_same = list(text), self._n_read
        while True:
            reader.read(tokens, n_same)
            token, p = reader.likeliest()
            if token >= self._context.model.n_vocab:
                return  # a token that only the second model has
            yield token, p
            n_same = len(tokens)
            tokens.append(token)
