"""Passes of a context with the weights of another model of the same sizes."""

from __future__ import annotations

import numpy as np
import pytest
from fixture_types import NewContext, TinyModel
from numpy.typing import NDArray

from pyselfspec import Context
from pyselfspec.errors import UnsupportedError
from pyselfspec.runtime.passes import Pass, Rows

TEXT, NEXT = (5, 6, 7, 8, 5, 6), (9, 10, 11)
ARCHS = ["llama", "gemma3", "qwen3moe"]


def logits(
    context: Context, tokens: tuple[int, ...], seq_id: int = 0, weights: int | None = None
) -> NDArray[np.float32]:
    """Return the logits after tokens that continue a sequence."""
    rows = Rows.of(seq_id, context.sequence(seq_id).n_past, tokens)
    return context.run(rows, Pass(weights=weights)).logits


@pytest.mark.parametrize("arch", ARCHS)
def test_logits_are_those_of_the_other_model(
    arch: str, tiny: TinyModel, new_context: NewContext
) -> None:
    other = tiny(arch=arch, seed=2, qtype="Q8_0")
    context, own = new_context(tiny(arch=arch, seed=1, qtype="F16")), new_context(other)
    for tokens in (TEXT, NEXT[:1], NEXT[1:]):
        found = logits(context, tokens, weights=other.handle)
        np.testing.assert_array_equal(found, logits(own, tokens))


@pytest.mark.parametrize("arch", ARCHS)
def test_a_fork_with_other_weights_leaves_the_text_as_it_was(
    arch: str, tiny: TinyModel, new_context: NewContext
) -> None:
    """It reads the K/V that the model has of the text."""
    model, other = tiny(arch=arch, seed=1, qtype="F16"), tiny(arch=arch, seed=2, qtype="Q8_0")
    plain, context, own = new_context(model), new_context(model), new_context(other)
    own_logits = logits(own, TEXT + NEXT)[len(TEXT) :]
    logits(plain, TEXT)
    logits(context, TEXT)
    for _ in range(2):
        with context.spare_sequence() as fork:
            context.sequence().fork(fork.seq_id)
            drafted = logits(context, NEXT, fork.seq_id, other.handle)
        assert not np.array_equal(drafted, own_logits)
        np.testing.assert_array_equal(logits(context, NEXT), logits(plain, NEXT))


def test_weights_of_other_sizes_are_refused(tiny: TinyModel, new_context: NewContext) -> None:
    context = new_context(tiny())
    for other in (tiny(n_layer=2), tiny(n_embd=128), tiny(arch="qwen2")):
        with pytest.raises(UnsupportedError, match="another architecture or other sizes"):
            logits(context, TEXT, weights=other.handle)
