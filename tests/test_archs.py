"""Every architecture of llama.cpp against files with zeroed sublayers, see tools/archs.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import archs

pytestmark = pytest.mark.archs

N_EXACT = 113  # of 128 in the pinned llama.cpp; the others refuse by name what they cannot do


@pytest.fixture(scope="module")
def results(archs_folder: Path) -> list[archs.Result]:
    return list(archs.check_models(archs_folder))


def test_most_architectures_are_exact_throughout(results: list[archs.Result]) -> None:
    n_exact = sum(result.is_exact for result in results)
    assert n_exact == N_EXACT, "the README gives this number"


def test_none_is_wrong_and_none_ends_the_process(results: list[archs.Result]) -> None:
    assert [result for result in results if result.is_wrong] == []


def test_what_is_not_exact_is_refused_by_name(results: list[archs.Result]) -> None:
    for result in results:
        for kind, refused in result.refused.items():
            assert len(result.exact[kind]) + len(refused) == result.n_layer, (result.model, kind)
            for text in refused.values():
                assert text.startswith("architecture ") and ", block " in text, text


def test_hidden_states_enter_most_architectures(results: list[archs.Result]) -> None:
    entered = [result for result in results if result.enter_exact and not result.enter_refused]
    assert len(entered) >= 90
