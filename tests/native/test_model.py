"""Models: what they know, and the order in which things close."""

from __future__ import annotations

import dataclasses
import inspect
import json
import time
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter

from pyselfspec import LayerMask, Model
from pyselfspec.errors import ArgumentError, MaskError
from pyselfspec.runtime import pieces, vocabulary
from pyselfspec.runtime.context_options import ContextOptions
from pyselfspec.runtime.ffi import model_calls
from pyselfspec.runtime.model import MASK_KEY
from pyselfspec.util import paths
from tools.models import tiny_gguf, tiny_vocab

tokenize_whole = model_calls.tokenize


@pytest.mark.parametrize("text", ["the hand", " a ", "ümläut 漢字 🙂", "a\0b", ""])
def test_text_survives_tokens(text: str, tiny: Any) -> None:
    tokens = tiny().tokenize(text, add_special=False)
    assert tiny().detokenize(tokens).removeprefix(" ") == text  # a text starts with a space
    assert tiny().tokenize(text) == [1, *tokens]  # with the token that starts a text


@pytest.mark.parametrize("n", [1, 2, 63, 64, 500, 3000, 10**6])
@pytest.mark.parametrize("parse_special", [True, False])
def test_the_first_tokens_are_those_of_the_whole_text(
    n: int, parse_special: bool, demo: Any, tiny: Any
) -> None:
    text = paths.SAMPLE_TEXT.read_text() + "\n</s> é☃  " * 50
    for model in (demo, tiny()):
        whole = model.tokenize(text, parse_special=parse_special)
        assert model.first_tokens(text, n, parse_special=parse_special) == whole[:n]


def test_a_long_text_is_read_as_far_as_needed(demo: Any, monkeypatch: Any) -> None:
    lengths, tokenize = [], model_calls.tokenize

    def counted(vocab: int, text: bytes, **options: bool) -> list[int]:
        lengths.append(len(text))
        return tokenize(vocab, text, **options)

    monkeypatch.setattr(model_calls, "tokenize", counted)
    assert len(demo.first_tokens("the king and the hen " * 10**6, 64)) == 64
    assert sum(lengths) < 100_000


@pytest.mark.parametrize("parse_special", [True, False])
@pytest.mark.parametrize("add_special", [True, False])
def test_long_texts_have_the_tokens_of_the_whole(
    add_special: bool, parse_special: bool, demo: Any, tiny: Any, monkeypatch: Any
) -> None:
    """Texts have the same tokens in all pieces."""
    text = (paths.SAMPLE_TEXT.read_text() + "\n</s> é☃ </s>  <s>a</s></s>" * 30)[-3000:]
    how = {"add_special": add_special, "parse_special": parse_special}
    for model in (demo, tiny()):
        whole = model.tokenize(text, **how)
        lengths: list[int] = []

        def counted(vocab: int, part: bytes, lengths: Any = lengths, **options: bool) -> list[int]:
            lengths.append(len(part))
            return tokenize_whole(vocab, part, **options)

        with monkeypatch.context() as patch:
            patch.setattr(vocabulary, "N_PIECE", 100)
            patch.setattr(pieces.Pieces.of, "__defaults__", (100,))
            patch.setattr(model_calls, "tokenize", counted)
            assert model.tokenize(text, **how) == whole
        assert len(lengths) > 2 or not parse_special


def test_special_tokens_take_linear_time(demo: Any) -> None:
    """llama.cpp's own time grows with their square: minutes for these."""
    start = time.perf_counter()
    assert len(demo.tokenize("</s>" * 250_000, add_special=False)) == 250_000
    assert time.perf_counter() - start < 10


def test_text_that_is_no_unicode(tiny: Any) -> None:
    with pytest.raises(ArgumentError):
        tiny().tokenize("\ud800")


def test_special_tokens(tiny: Any) -> None:
    model = tiny()
    assert [token for token in range(model.n_vocab) if model.is_eog(token)] == [2]
    assert model.piece(1) == model.piece(2) == b""
    assert model.piece(3 + 0xE4) == b"\xe4"  # a byte token


@pytest.mark.parametrize("token", [-1, tiny_vocab.N_VOCAB_MIN, 2**31])
def test_token_outside_the_vocabulary(token: int, error_of: Any) -> None:
    error = error_of(f"model.piece({token})")
    assert error.startswith("ArgumentError: token id")
    error = error_of(f"model.detokenize([5, {token}])")
    assert error.startswith("ArgumentError: token id")


def test_model_without_vocabulary(tiny: Any, error_of: Any) -> None:
    model = tiny(vocab="none")
    assert not model.has_vocab
    assert not model.is_eog(2)
    with pytest.raises(ArgumentError, match="give token ids"):
        model.tokenize("text")
    for code in ("model.piece(5)", "model.detokenize([5])"):
        assert "has no tokenizer" in error_of(code, vocab="none")


def test_draft_mask_of_the_file(tiny_path: Any, tiny: Any, tmp_path: Path) -> None:
    assert tiny().draft_mask is None
    mask = LayerMask.early_exit(1, 1)
    for text, want in ((mask.to_json(), mask), (json.dumps({"n_layer": 7}), MaskError)):
        path = with_metadata(tmp_path / "model.gguf", text)
        with Model(path) as model:
            if isinstance(want, LayerMask):
                assert model.draft_mask == want
            else:
                with pytest.raises(want):
                    _ = model.draft_mask


def with_metadata(path: Path, mask: str) -> Path:
    """A model of one block whose file names a mask."""
    add_name = GGUFWriter.add_name

    def add_mask_too(writer: GGUFWriter, name: str) -> None:
        add_name(writer, name)
        writer.add_string(MASK_KEY, mask)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GGUFWriter, "add_name", add_mask_too)
        return tiny_gguf.write(path, n_layer=1)


# --- closing ---------------------------------------------------------------------------------


def test_closing_twice_and_in_any_order(tiny_path: Any) -> None:
    model = Model(tiny_path())
    first, second = (model.context(n_ctx=256, n_threads=1) for _ in range(2))
    second.decode([5])
    second.close()
    model.close()
    first.close()
    second.close()
    model.close()


def test_model_closes_its_contexts(tiny_path: Any) -> None:
    with Model(tiny_path()) as model:
        context = model.context(n_ctx=256, n_threads=1)
        context.decode([5])
    for use in (lambda: context.decode([5]), lambda: context.sequence().n_past):
        with pytest.raises(ArgumentError, match="closed"):
            use()
    with pytest.raises(ArgumentError, match=r"the model \d+\.gguf is closed"):
        model.context()


@pytest.mark.parametrize(
    "use",
    [
        "model.tokenize('text')",
        "model.piece(30)",
        "model.is_eog(2)",
        "Sampler(model, SamplingParams(grammar='root ::= \"a\"'))",
        "model.draft_mask",
    ],
)
def test_closed_model(use: str, error_of: Any) -> None:
    error = error_of(f"model.close()\n{use}")
    assert error.startswith("ArgumentError: the model") and error.endswith("is closed")


def test_sampler_of_a_closed_model(error_of: Any) -> None:
    """A grammar reads the model's vocabulary."""
    error = error_of(
        "sampler = Sampler(model, SamplingParams(grammar='root ::= \"a\"'))\n"
        "model.close()\n"
        "sampler.sample_logits(np.zeros(317, np.float32))"
    )
    assert error.startswith("ArgumentError") and error.endswith("is closed")


def test_text_in_the_making_when_its_model_closes(tiny_path: Any, run_python: Any) -> None:
    """The next piece is an error; letting go of the text is not."""
    code = """
import gc, sys
from pyselfspec import *
model = Model(sys.argv[1])
with model.context(n_ctx=256, n_threads=1) as context:
    pieces = iter(Completion(context, [5, 6], draft="layer-skip"))
    next(pieces)
    others = iter(Completion(context, [5, 6], draft=None))
    next(others)
model.close()
try:
    next(pieces)
except errors.ArgumentError as error:
    print(error)
del pieces, others
gc.collect()
"""
    run = run_python(code, tiny_path())
    assert (run.returncode, run.stderr) == (0, "")
    assert "closed" in run.stdout


def test_leaving_python_without_closing(tiny_path: Any, run_python: Any) -> None:
    code = """
import sys
from pyselfspec import *
context = Model(sys.argv[1]).context(n_ctx=256, n_threads=1)
pieces = iter(Completion(context, [5, 6], draft="layer-skip"))
next(pieces)
"""
    run = run_python(code, tiny_path())
    assert (run.returncode, run.stderr) == (0, "")


def test_the_options_of_a_context_are_its_signature(tiny: Any) -> None:
    shown = inspect.signature(tiny().context).parameters
    assert list(shown) == [each.name for each in dataclasses.fields(ContextOptions)]
