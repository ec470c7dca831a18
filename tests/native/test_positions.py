"""Models that look positions up in a table: texts end with it, in every door. Before, the first
position after it ended the process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import gguf
import pytest
from command_line import run
from fixture_types import NewContext, TinyModel
from tiny_encoder import write_encoder
from tiny_gpt2 import N_POSITIONS, write_gpt2

from pyselfspec import GREEDY, Completion, Fixed, Model
from pyselfspec.errors import ArgumentError, ContextFullError
from pyselfspec.runtime.embedding import EmbeddingContext
from pyselfspec.selection.scoring import _cut


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gpt2(tmp_path_factory.mktemp("gpt2") / "gpt2.gguf")


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[Model]:
    with Model(path) as made:
        yield made


def test_other_models_have_no_last_position(tiny: TinyModel) -> None:
    assert tiny().n_positions is None


@pytest.mark.parametrize("n_ctx", [None, 1024])
def test_a_context_takes_texts_as_long_as_the_table(
    n_ctx: int | None, model: Model, new_context: NewContext
) -> None:
    assert model.n_positions == N_POSITIONS
    context = new_context(model, n_ctx=n_ctx)
    assert context.n_ctx == N_POSITIONS < context.n_cells
    context.prefill([5] * N_POSITIONS)
    with pytest.raises(ArgumentError, match=f"position {N_POSITIONS} is not allowed"):
        context.decode([5])
    assert context.sequence().n_past == N_POSITIONS
    with pytest.raises(ContextFullError, match=f"takes {N_POSITIONS} at most"):
        context.prefill([5])


@pytest.mark.parametrize("draft", [None, "ngram", "layer-skip"])
def test_texts_end_with_the_table(draft: str | None, model: Model, new_context: NewContext) -> None:
    context = new_context(model, n_ctx=1024)
    controller = None if draft is None else Fixed(4, p_min=0)
    made = Completion(
        context, [5] * 300, draft, n_predict=100, sampling=GREEDY, controller=controller
    )
    for _ in made:
        pass
    assert len(made.tokens) == N_POSITIONS - 300 + 1 or made.finish_reason == "eog"
    with pytest.raises(ContextFullError, match="give a shorter prompt"):
        list(Completion(context, [5] * (N_POSITIONS + 1)))


def test_the_command_line_says_so(path: Path) -> None:
    prompt = ("-p", "the and " * 20)
    made = run("generate", path, *prompt, "-c", "1024", "-t", "1", "-n", "-1", "--draft", "off")
    assert f"texts end after {N_POSITIONS}" in made.stderr


def test_chunks_of_scans(model: Model) -> None:
    with pytest.raises(ArgumentError, match=f"is at most {N_POSITIONS}"):
        _cut(model, "the and " * 1000, 512, 1)


def test_texts_of_embeddings(tmp_path: Path) -> None:
    write_encoder(tmp_path / "bert.gguf", gguf.PoolingType.MEAN)
    with Model(tmp_path / "bert.gguf") as model:
        assert model.n_positions == 64
        with EmbeddingContext(model, n_ctx=128, n_threads=1) as made:
            assert made.n_ctx == 64
            assert len(made.embed([5] * 64)) == made.width
            with pytest.raises(ArgumentError, match="1 to 64 tokens"):
                made.embed([5] * 65)
