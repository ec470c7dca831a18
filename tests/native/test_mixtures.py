"""Random mixtures of experts: a token's logits are the same alone and among others."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from narrow_passes import decoded

from pyselfspec import Model

sys.path.append(str(Path(__file__).parents[2]))

from tools.models import random_gguf
from tools.models.mixtures import MIXTURES
from tools.models.sublayers import Attention
from tools.models.tiny_vocab import N_CONTROL, N_VOCAB_MIN

SMALL = {
    "qwen3moe": {"attention": Attention(n_head=4, n_head_kv=2, head_dim=64)},
    "gpt-oss": {"attention": Attention(n_head=4, n_head_kv=2, head_dim=64)},
    "deepseek2": {
        "attention": Attention(n_head=4, n_head_kv=1, head_dim=128, value_dim=64),
        **{"n_latent": 64, "n_query": 256, "n_key": 64, "n_value": 64},
    },
}
TYPES = {"qwen3moe": "Q4_K_M", "gpt-oss": "MXFP4_MOE", "deepseek2": "Q4_K_M"}


@pytest.mark.parametrize("arch", MIXTURES)
def test_threads_and_widths_change_no_bit(tmp_path: Path, arch: str) -> None:
    sizes = {
        "n_layer": 2,
        "n_embd": 256,
        "n_rope": 64,
        "n_vocab": N_VOCAB_MIN,
        "n_expert": 8,
        "n_ff": 256,
    }
    layout = replace(MIXTURES[arch], **sizes, **SMALL[arch])  # type: ignore[arg-type]
    type_name = TYPES[arch]
    path = tmp_path / "m.gguf"
    random_gguf.write(path, random_gguf.Recipe(layout, type_name, 0, 1.0, 1), 64, lambda _: None)
    tokens, found = list(range(N_CONTROL, N_CONTROL + 48)), []
    with Model(path) as model:
        for n_threads in (1, 3):
            with model.context(n_ctx=64, n_threads=n_threads) as context:
                found += [decoded(context, tokens, width) for width in (1, 5, 24)]
    first, *others = found
    assert np.isfinite(first).all()
    for other in others:
        np.testing.assert_array_equal(other, first)
