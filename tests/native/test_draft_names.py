"""Names of drafters, given to a completion."""

from __future__ import annotations

import pytest
from fixture_types import NewContext, TinyModel

from pyselfspec import Completion
from pyselfspec.errors import UnsupportedError


def test_a_completion_takes_a_list(tiny: TinyModel, new_context: NewContext) -> None:
    assert Completion(new_context(tiny()), [5, 3], draft=["ngram"]).draft == "ngram"


def test_where_tokens_see_those_after_them_nothing_is_drafted(
    tiny: TinyModel, new_context: NewContext
) -> None:
    context = new_context(tiny(), is_causal=False)
    assert Completion(context, [5, 3], draft="auto").draft is None
    with pytest.raises(UnsupportedError, match="with is_causal=False"):
        Completion(context, [5, 3], draft="ngram")
