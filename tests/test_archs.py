"""Every architecture of llama.cpp against files with zeroed sublayers, see tools/archs.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pyselfspec import Model
from pyselfspec.errors import ModelFileError
from tools import archs

pytestmark = pytest.mark.archs

N_EXACT = 113  # of 128 in the pinned llama.cpp; the others refuse by name what they cannot do


@pytest.fixture(scope="module")
def results(archs_folder: Path) -> list[archs.Result]:
    return list(archs.check_models(archs_folder))


def test_most_architectures_are_exact_throughout(results: list[archs.Result]) -> None:
    n_exact = sum(result.is_exact for result in results)
    assert n_exact == N_EXACT, "docs/how-it-works.md gives this number"


def test_none_is_wrong_and_none_ends_the_process(results: list[archs.Result]) -> None:
    assert [result for result in results if result.is_wrong] == []


def test_what_is_not_exact_is_refused_by_name(results: list[archs.Result]) -> None:
    for result in results:
        for kind, refused in result.refused.items():
            assert len(result.exact[kind]) + len(refused) == result.n_layer, (result.model, kind)
            for text in refused.values():
                assert text.startswith("architecture ") and ", block " in text, text


NOT_EXACT = {
    *("dream-dense", "llada-dense", "llada-moe-moe", "rnd1-moe"),  # attention over the batch
    *("minimax-01-moe", "minimax-m3-moe"),  # sums over the rows of the batch
}


def test_rows_are_exact_where_that_is_promised(archs_folder: Path) -> None:
    """One by one, a few and as many as may be, in all architectures but these."""
    promised, refused = set(), set()
    for path in sorted(archs_folder.glob("*.gguf")):
        try:
            model = Model(path)
        except ModelFileError:
            continue
        with model:
            width = width_of(model)
            (promised if width else refused).add(path.stem)
            if width:
                tokens = np.random.default_rng(3).integers(3, model.n_vocab, 40).tolist()
                one, few, many = (logits_at(model, tokens, n) for n in (1, 3, width))
                np.testing.assert_array_equal(few, one, err_msg=path.stem)
                np.testing.assert_array_equal(many, one, err_msg=path.stem)
    if promised:  # by our kernels, where they are made for the processor
        assert refused == NOT_EXACT


def width_of(model: Model) -> int:
    with model.context(n_ctx=256, n_batch=64, n_threads=1, n_seq_max=1) as context:
        return context.exact_width


def logits_at(model: Model, tokens: list[int], width: int) -> archs.Logits:
    """Of all tokens behind the first eight, so many in each pass."""
    with model.context(n_ctx=256, n_batch=64, n_threads=1, n_seq_max=1) as context:
        context.decode(tokens[:8], outputs="none")
        rest = range(8, len(tokens), width)
        return np.concatenate([context.decode(tokens[i : i + width]).logits for i in rest])


def test_hidden_states_enter_most_architectures(results: list[archs.Result]) -> None:
    entered = [result for result in results if result.enter_exact and not result.enter_refused]
    assert len(entered) >= 90
