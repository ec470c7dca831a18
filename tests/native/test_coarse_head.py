"""Passes that read a coarse copy of the output head, and of the head only rows that may be among
the most likely tokens: their logits, and the texts that are drawn from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixture_types import NewContext
from gguf import GGUFReader
from numpy.typing import NDArray
from typed_models import require_exact

from pyselfspec import GREEDY, Completion, Context, Model, SamplingParams
from pyselfspec.runtime.passes import Pass, Rows
from tools.models import random_gguf, tiny_gguf
from tools.models.sublayers import Tensor

N_BEFORE = 256  # outputs before a copy is made
SHAPE = random_gguf.Shape(n_layer=1, n_embd=256, n_ff=256, n_vocab=4096)
TOKENS = [*range(250, 282)]
TEXTS = [*([i] for i in range(100)), *(TOKENS[:n] for n in (2, 3, 7, 31, 32))]


def _write(path: Path, qtype: str, shape: random_gguf.Shape = SHAPE) -> Path:
    recipe = random_gguf.Recipe(shape, qtype, seed=3, late_scale=1.0, late_from=1)
    random_gguf.write(path, recipe, 4096, lambda _: None)
    return path


class Tied(random_gguf.Shape):
    """A model whose head is the token embedding."""

    def tensors(self) -> Iterator[Tensor]:
        return (each for each in super().tensors() if each.name != "output.weight")


SHAPES = {
    "": SHAPE,
    "odd": replace(SHAPE, n_vocab=4099),  # cannot be interleaved
    "tied": Tied(**asdict(SHAPE)),
}


@pytest.fixture(scope="module", params=["Q8_0", "Q8_0 odd", "Q8_0 tied", "F16", "BF16"])
def typed(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[Model]:
    qtype, _, shape = str(request.param).partition(" ")
    path = tmp_path_factory.mktemp("typed") / f"{request.param}.gguf"
    with Model(_write(path, qtype, SHAPES[shape])) as model:
        yield model


def _logits(context: Context, tokens: list[int], n_best: int) -> NDArray[np.float32]:
    """Return the logits after each token of a text."""
    context.sequence().drop()
    return context.run(Rows.of(0, 0, tokens, "all"), Pass(n_best=n_best)).logits


def _read_a_copy(context: Context, n_best: int) -> None:
    for _ in range(N_BEFORE // len(TOKENS)):
        _logits(context, TOKENS, n_best)


def _require_best_of(texts: list[list[int]], context: Context, n_best: int) -> None:
    """Require the same most likely tokens before and after a copy is made, and then finer ones."""
    require_exact(context)
    whole = [_logits(context, text, 0) for text in texts]
    _read_a_copy(context, n_best)
    for text, all_of_them in zip(texts, whole, strict=True):
        found = _logits(context, text, n_best)
        _require_best(np.nan_to_num(found, neginf=-np.inf), np.nan_to_num(all_of_them), n_best)


def _require_best(found: NDArray[np.float32], whole: NDArray[np.float32], n_best: int) -> None:
    """Require the bits of the whole product for the n_best largest logits and all others that were
    computed."""
    least = np.sort(whole)[:, -n_best][:, None]
    np.testing.assert_array_equal(np.where(whole >= least, found, whole), whole)
    np.testing.assert_array_equal(np.where(np.isneginf(found), whole, found), whole)


@pytest.mark.sanitized
@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize("n_best", [1, 5, 40])
def test_the_largest_logits_are_those_of_the_head(
    typed: Model, new_context: NewContext, n_best: int, n_threads: int
) -> None:
    context = new_context(typed, n_threads=n_threads)
    _require_best_of(TEXTS, context, n_best)
    if n_best < 40 or typed.path.name in ("F16.gguf", "BF16.gguf"):  # Q8_0 has no finer copy
        assert np.isneginf(_logits(context, [7], n_best)).any()  # the copy is read


@contextmanager
def _edited(path: Path) -> Iterator[dict[str, NDArray[Any]]]:
    """Write a model of Q8_0, and yield the data of its tensors to be changed in place."""
    tensors = {t.name: t.data for t in GGUFReader(_write(path, "Q8_0"), "r+").tensors}
    yield tensors
    for data in tensors.values():
        data.flush()


def _equal_rows(model: dict[str, NDArray[Any]]) -> None:
    """More than n_best of the largest logits are equal; rows of zeros and rows that are no numbers
    are among the others."""
    head = model["output.weight"]
    head[100:900] = head[100]
    head[900:920] = 0
    head[2000:2002, :2] = 0xFF  # the first block's scale


def _few_dimensions(model: dict[str, NDArray[Any]]) -> None:
    """Fewer than the directions along which a copy has errors."""
    model["output_norm.weight"][4:] = 0
    model["output.weight"][:, 2 + 4 :] = 0


@pytest.mark.sanitized
@pytest.mark.parametrize("edit", [_equal_rows, _few_dimensions])
def test_heads_that_are_hard_to_bound(
    edit: Callable[[dict[str, NDArray[Any]]], None], tmp_path: Path, new_context: NewContext
) -> None:
    with _edited(tmp_path / "m.gguf") as tensors:
        edit(tensors)
    with Model(tmp_path / "m.gguf") as model:
        _require_best_of(TEXTS, new_context(model), 5)


@pytest.mark.sanitized
def test_equally_likely_tokens_are_drawn_as_without_a_copy(
    tmp_path: Path, new_context: NewContext
) -> None:
    with _edited(tmp_path / "m.gguf") as tensors:
        tensors["output.weight"][1::2] = tensors["output.weight"][::2]
    with Model(tmp_path / "m.gguf") as model:
        context = new_context(model, n_ctx=1024)
        require_exact(context)
        sampling = SamplingParams(temperature=1.5, top_k=10, seed=3)  # few rows are read besides
        whole = _text(context, sampling, logprobs=1)
        for _ in range(2):
            assert _text(context, sampling) == whole
        assert np.isneginf(_logits(context, [7], sampling.top_k)).any()  # the copy is read


def _text(context: Context, sampling: SamplingParams, **options: Any) -> list[int]:
    """Return a text of 400 tokens."""
    context.sequence().drop()
    made = Completion(context, TOKENS[:4], sampling=sampling, n_predict=400, **options)
    for _ in made:
        pass
    return made.tokens


@pytest.mark.sanitized
@pytest.mark.parametrize("draft", [None, "auto"], ids=["plain", "drafts"])
@pytest.mark.parametrize(
    "sampling",
    [GREEDY, SamplingParams(temperature=1.0, top_k=5, seed=7)],
    ids=["greedy", "top 5"],
)
def test_texts_stay_the_same(
    typed: Model, new_context: NewContext, sampling: SamplingParams, draft: str | None
) -> None:
    """Against texts with log-probabilities, which read all logits."""
    context = new_context(typed, n_ctx=1024)
    require_exact(context)

    whole = _text(context, sampling, draft=draft, logprobs=1)
    assert _text(context, sampling, draft=draft) == whole
    assert _text(context, sampling, draft=draft) == whole
    assert np.isneginf(_logits(context, [7], sampling.top_k)).any()  # the copy is read


def test_a_head_with_something_after_it_is_read_whole(
    tmp_path: Path, new_context: NewContext
) -> None:
    """The logits of gemma2 go through a tanh, which makes no order of -inf and others."""
    with Model(tiny_gguf.write(tmp_path / "m.gguf", "gemma2", qtype="Q8_0")) as model:
        context = new_context(model)
        whole = _logits(context, [7], 0)
        _read_a_copy(context, 1)
        for _ in range(3):
            np.testing.assert_array_equal(_logits(context, [7], 1), whole)
