"""Texts of 256 tokens per type of weights: the same with drafts as without, token for token.

Only where the kernels in pyselfspec/native/kernels run, which make logits independent of the width
of a pass; tests/native/test_widths.py insists on that for logits.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fixture_types import NewContext

from pyselfspec import GREEDY, Completion, Context, Fixed, LayerMask, Model, SamplingParams
from tools.models import random_gguf, tiny_vocab

TYPES = ("Q4_0", "Q4_K", "Q4_K_M", "Q5_K", "Q6_K", "Q8_0", "F16", "BF16")
N_TEXTS = 10
N_PREDICT = 256
SHAPE = random_gguf.Shape(n_layer=4, n_embd=256, n_ff=512, n_vocab=519)
MASK = LayerMask.early_exit(SHAPE.n_layer, 2)


def text(
    context: Context, prompt: list[int], sampling: SamplingParams, draft: str | None
) -> Completion:
    context.sequence().drop()
    completion = Completion(
        context,
        prompt,
        n_predict=N_PREDICT,
        sampling=sampling,
        draft=draft,
        mask=None if draft is None else MASK,
        controller=Fixed(4, p_min=0),
    )
    for _piece in completion:
        pass
    return completion


@pytest.mark.slow
@pytest.mark.parametrize("type_name", TYPES)
def test_texts(type_name: str, tmp_path: Path, new_context: NewContext) -> None:
    path = tmp_path / "model.gguf"
    recipe = random_gguf.Recipe(SHAPE, type_name, seed=0, late_scale=0.1, late_from=2)
    random_gguf.write(path, recipe, 4096, lambda _: None)
    rng = np.random.default_rng(0)
    n_drafted = n_accepted = 0
    with Model(path) as model:
        context = new_context(model, n_ctx=512)
        for seed in range(N_TEXTS):
            n = int(rng.integers(1, 40))
            prompt = rng.integers(tiny_vocab.N_CONTROL, tiny_vocab.N_VOCAB_MIN, n).tolist()
            sampling = GREEDY if seed % 2 else SamplingParams(temperature=0.8, seed=seed)
            plain = text(context, prompt, sampling, None)
            drafted = text(context, prompt, sampling, "layer-skip")
            assert drafted.tokens == plain.tokens, f"text {seed}"
            n_drafted += drafted.stats.n_drafted
            n_accepted += drafted.stats.n_accepted
        context.close()
    assert n_drafted > n_accepted > 0.1 * n_drafted, "drafts of both kinds were checked"
