"""A text that a mask writes by itself is the text of the model that is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fixture_types import NewContext

from pyselfspec import GREEDY, Completion, LayerMask, Model, SamplingParams
from pyselfspec.convert.relayer import relayer
from pyselfspec.convert.stream import read_model
from pyselfspec.errors import MaskError
from pyselfspec.lab.unverified import UnverifiedCompletion

N_LAYER = 4
PROMPT = [5, 40, 9, 61, 12, 7]
SEEDED = SamplingParams(temperature=0.9, seed=4)


def text(context: Any, sampling: SamplingParams, **options: Any) -> list[int]:
    mask = options.pop("mask", None)
    options |= {"n_predict": 20, "sampling": sampling}
    if mask is None:
        completion = Completion(context, PROMPT, **options)
    else:
        completion = UnverifiedCompletion(context, PROMPT, mask, **options)
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
    assert text(context, sampling, mask=mask) == wanted != whole
    assert text(context, sampling, draft=None) == whole


def test_the_mask_of_another_model_is_refused(tiny: Any, new_context: NewContext) -> None:
    context = new_context(tiny(n_layer=N_LAYER), n_ctx=256, n_threads=1)
    with pytest.raises(MaskError, match="for 6 blocks, not for 4"):
        UnverifiedCompletion(context, PROMPT, LayerMask.early_exit(6, 2))
