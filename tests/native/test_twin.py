"""The drafter ``twin``: the model's own weights in four bits, written once."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from fixture_types import NewContext, TinyModel, TinyPath
from typed_models import SAMPLINGS, plain_text, require_exact

from pyselfspec import Completion, Fixed, Model
from pyselfspec.errors import ArgumentError, SelfSpecWarning
from pyselfspec.gguf import file as gguf_file
from pyselfspec.speculate import drafters
from pyselfspec.speculate.drafters import twin

PROMPT = [5, 6, 7, 8, 5, 6]
N = 24


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(twin.paths, "cache", lambda name: tmp_path / name)
    return tmp_path / "twins"


@pytest.mark.filterwarnings("ignore::pyselfspec.errors.SelfSpecWarning")
@pytest.mark.parametrize("kind", SAMPLINGS)
@pytest.mark.parametrize("qtype", ["F16", "F32"])
def test_the_text_is_that_of_plain_decoding(
    qtype: str, kind: str, tiny: TinyModel, new_context: NewContext
) -> None:
    context, sampling = new_context(tiny(qtype=qtype)), SAMPLINGS[kind]
    require_exact(context)
    made = Completion(
        context, PROMPT, draft="twin", controller=Fixed(3, 0.0), sampling=sampling, n_predict=N
    )
    for _ in made:
        pass
    assert made.tokens == plain_text(new_context(tiny(qtype=qtype)), PROMPT, N, sampling)
    assert made.draft == "twin" and made.stats.n_accepted > 0


def test_a_twin_is_written_once_for_equal_files(
    tiny_path: TinyPath, tmp_path: Path, cache: Path
) -> None:
    with Model(tiny_path(qtype="F16")) as model, pytest.warns(SelfSpecWarning, match="once"):
        path = twin.twin_of(model)
    assert gguf_file.check(path).file_type == "Q4_0" and path.parent == cache
    moved = tmp_path / "moved.gguf"
    moved.write_bytes(tiny_path(qtype="F16").read_bytes())
    with Model(moved) as model, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert twin.twin_of(model) == path
    assert [each.name for each in cache.iterdir()] == [path.name]


@pytest.mark.filterwarnings("ignore::pyselfspec.errors.SelfSpecWarning")
def test_a_context_for_several_texts_may_be_longer_than_the_model_was_trained_for(
    tiny: TinyModel, new_context: NewContext
) -> None:
    """A server has such a context, of which each text has its share."""
    model = tiny(qtype="F16", n_ctx=256)
    context = new_context(model, n_ctx=1024, n_seq_max=4)
    made = Completion(context, PROMPT, draft="twin", controller=Fixed(3, 0.0), n_predict=N)
    assert "".join(made) and made.stats.n_drafted > 0


@pytest.mark.filterwarnings("ignore::pyselfspec.errors.SelfSpecWarning")
def test_auto_drafts_with_a_twin_that_was_written_and_has_room(
    tiny: TinyModel, new_context: NewContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = new_context(tiny(qtype="F16"))
    assert "twin" not in drafters.suggested(context, None)
    path = twin.twin_of(context.model)
    assert drafters.suggested(context, None)["twin"] == twin.Options()
    made = Completion(context, PROMPT, n_predict=N)
    assert "".join(made) and made.draft == "ngram+twin"
    path.write_bytes(path.read_bytes()[:-1])
    assert "twin" not in drafters.suggested(context, None)
    assert twin.twin_of(context.model) == path
    assert "twin" in drafters.suggested(context, None)
    monkeypatch.setattr(twin.memory, "available", lambda: 1)
    assert "twin" not in drafters.suggested(context, None)


def test_a_quantized_model_has_no_twin(
    tiny: TinyModel, new_context: NewContext, cache: Path
) -> None:
    with pytest.raises(ArgumentError, match=r"is Q8_0 already, .* twin is for files in F16"):
        Completion(new_context(tiny(qtype="Q8_0")), PROMPT, draft="twin")
    assert not cache.exists()
