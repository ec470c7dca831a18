"""A text that a mask writes by itself is the text of the model that is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import NewContext

from pyselfspec import GREEDY, Completion, LayerMask, Model, SamplingParams
from pyselfspec.convert.relayer import relayer
from pyselfspec.convert.stream import read_model
from pyselfspec.errors import ArgumentError

N_LAYER = 4
PROMPT = [5, 40, 9, 61, 12, 7]
SEEDED = SamplingParams(temperature=0.9, seed=4)


def text(context: Any, sampling: SamplingParams, **options: Any) -> list[int]:
    completion = Completion(context, PROMPT, n_predict=20, sampling=sampling, **options)
    list(completion)
    return completion.tokens


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
@pytest.mark.parametrize("n_blocks", [1, 3])
@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_an_exit_writes_what_the_first_blocks_write(
    sampling: SamplingParams,
    n_blocks: int,
    arch: str,
    tiny: Any,
    tiny_path: Any,
    new_context: NewContext,
    tmp_path: Path,
) -> None:
    """Against a model file of these blocks; before and after texts of the whole model in the same
    sequence, which take over nothing of it."""
    file = tmp_path / "first.gguf"
    relayer(read_model(tiny_path(arch, n_layer=N_LAYER)), range(n_blocks)).write(file)
    with Model(file) as first, first.context(n_ctx=256, n_threads=1) as context:
        wanted = text(context, sampling, draft=None)
    context = new_context(tiny(arch, n_layer=N_LAYER), n_ctx=256, n_threads=1)
    mask = LayerMask.early_exit(N_LAYER, n_blocks)
    whole = text(context, sampling, draft=None)
    assert text(context, sampling, mask=mask, unverified=True) == wanted != whole
    assert text(context, sampling, draft=None) == whole


def test_bad_combinations(tiny: Any, new_context: NewContext) -> None:
    context = new_context(tiny(n_layer=N_LAYER), n_ctx=256, n_threads=1)
    mask = LayerMask.early_exit(N_LAYER, 2)
    with pytest.raises(ArgumentError, match="needs a mask"):
        Completion(context, PROMPT, unverified=True)
    for options in ({"draft": "ngram"}, {"verify": "residual"}):
        with pytest.raises(ArgumentError, match="not drafted"):
            Completion(context, PROMPT, mask=mask, unverified=True, **options)
