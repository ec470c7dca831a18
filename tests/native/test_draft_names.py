"""Names of drafters, given to a completion."""

from __future__ import annotations

from fixture_types import NewContext, TinyModel

from pyselfspec import Completion


def test_a_completion_takes_a_list(tiny: TinyModel, new_context: NewContext) -> None:
    assert Completion(new_context(tiny()), [5, 3], draft=["ngram"]).draft == "ngram"
