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
from ..second_model import SecondModelDrafter, opened
from ..types import DraftLimit


@dataclass(frozen=True, slots=True)
class Options:
    """path: of the GGUF file that drafts."""

    path: Path


def make(context: Context, options: Options) -> Drafter:
    """Raises ArgumentError for a model of another vocabulary or of more bytes than the one it
    drafts for, and what ``second_model.opened`` raises."""

    def check(model: Model) -> None:
        require_smaller(context.model, model)
        require_same_vocabulary(context.model, model)

    return Drafter(context, opened(context, options.path, check))


def require_smaller(target: Model, model: Model) -> None:
    """Raise ArgumentError for a model of which a token reads more bytes."""
    own, other = model.file.weight_bytes(), target.file.weight_bytes()
    if own > other:
        raise ArgumentError(
            f"{model.path.name} is no help: a token of it reads {size_text(own)}, more than the "
            f"{size_text(other)} of {target.path.name}, for which it would draft"
        )


def require_same_vocabulary(target: Model, model: Model) -> None:
    """Raise ArgumentError for a model whose tokens are others."""
    differs = difference(target, model)
    if differs is not None:
        raise ArgumentError(
            f"{differs}; with a vocabulary of its own it can draft as universal:{model.path}"
        )


class Drafter(SecondModelDrafter):
    """Greedy drafts of the second model. Its K/V of the text is kept from step to step: what was
    drafted and turned out right is not read again, and the token of a right draft that went
    through no pass comes along with the next."""

    name = "model"

    def _reading(self, text: Sequence[int]) -> tuple[Sequence[int], int]:
        return text, self._n_read

    def _guesses(self, text: Sequence[int], limit: DraftLimit) -> Iterator[tuple[int, float]]:
        reader = self._reader
        tokens, n_same = list(text), self._n_read
        while True:
            reader.read(tokens, n_same)
            token, p = reader.likeliest()
            if token >= self._context.model.n_vocab:
                return  # one that only the second model has
            yield token, p
            n_same = len(tokens)
            tokens.append(token)
