"""Names of drafters, given to a completion."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fixture_types import NewContext, TinyModel
from gguf import GGUFWriter

from pyselfspec import Completion, Model
from pyselfspec.errors import UnsupportedError
from tools.models import tiny_gguf


def test_a_completion_takes_a_list(tiny: TinyModel, new_context: NewContext) -> None:
    assert Completion(new_context(tiny()), [5, 3], draft=["ngram"]).draft == "ngram"


def test_where_tokens_see_those_after_them_nothing_is_drafted(
    tiny: TinyModel, new_context: NewContext
) -> None:
    context = new_context(tiny(), is_causal=False)
    assert Completion(context, [5, 3], draft="auto").draft is None
    with pytest.raises(UnsupportedError, match="with is_causal=False"):
        Completion(context, [5, 3], draft="ngram")


def test_a_file_may_say_that_tokens_see_those_after_them(
    tmp_path: Path, new_context: NewContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then logits depend on the width of the pass."""
    add_name = GGUFWriter.add_name
    both = lambda to, name: (add_name(to, name), to.add_causal_attention(False))  # noqa: E731
    monkeypatch.setattr(GGUFWriter, "add_name", both)
    with Model(tiny_gguf.write(tmp_path / "model.gguf", n_layer=1)) as model:
        context = new_context(model)
        assert Completion(context, [5, 3], draft="auto").draft is None
        assert context.abilities.exact_width == 1 and not context.abilities.exact_prompts
        one = context.decode([5, 3, 7]).logits[0].copy()
        context.sequence().drop()
        assert not np.array_equal(one, context.decode([5, 3]).logits[0])
