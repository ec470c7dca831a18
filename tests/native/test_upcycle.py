"""Mixtures made of a model's own feed-forward parts compute what the model does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from fixture_types import NewContext, TinyModel, TinyPath

from pyselfspec import Model
from pyselfspec.convert.stream import read_model
from tools.models.upcycle import upcycle


def test_logits_are_those_of_the_model(
    tiny: TinyModel, tiny_path: TinyPath, new_context: NewContext, tmp_path: Path
) -> None:
    tokens, mixture = [5, 9, 7, 300], tmp_path / "mixture.gguf"
    upcycle(read_model(tiny_path()), n_experts=4, n_used=2).write(mixture)
    want = new_context(tiny()).decode(tokens).logits
    with Model(mixture) as model, model.context(n_ctx=64) as context:
        np.testing.assert_allclose(context.decode(tokens).logits, want, atol=1e-4)
