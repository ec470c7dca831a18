"""Real models: what holds on them, and other types made of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from command_line import run
from fixture_types import RealModel, TinyPath
from gguf import quants

from pyselfspec import GREEDY, Completion, Fixed, LayerMask, Model
from pyselfspec.convert.stream import read_model
from pyselfspec.hub import packages
from pyselfspec.runtime.width_check import same_at_widths
from tools.models import real

# name: what info says of it
FACTS = {
    "smollm2-135m": {
        "architecture": "llama",
        "n_layer": 30,
        "n_embd": 576,
        "n_vocab": 49_152,
        "n_ctx_train": 8192,
    },
    "gemma3-270m": {
        "architecture": "gemma3",
        "n_layer": 18,
        "n_embd": 640,
        "n_vocab": 262_144,
        "n_ctx_train": 32_768,
    },
}
EACH = pytest.mark.parametrize("name", FACTS)
EXACT = "q8_0"  # logits of this type do not depend on the width of a pass, where our kernels run
PROMPT = "The three most important things to know about bread are"
WINDOW = 512  # tokens that most of Gemma's blocks see


def test_the_models_are_those_that_are_known() -> None:
    assert real.MODELS.keys() == FACTS.keys()


#
# on the models
#


@pytest.mark.real
@EACH
@pytest.mark.parametrize("type_name", [None, EXACT])
def test_info(name: str, type_name: str | None, real_model: RealModel) -> None:
    facts = run("models", "info", real_model(name, type_name), "--json", "-t", "1").json
    assert {key: facts[key] for key in FACTS[name]} == FACTS[name]
    assert facts["can_skip_attn"] == facts["can_skip_ffn"] == list(range(facts["n_layer"]))
    assert facts["can_draft"] and facts["has_tokenizer"] and facts["draft_mask"] is None
    if type_name is not None:
        assert facts["file_type"].lower() == type_name


@pytest.mark.real
@EACH
def test_drafting_changes_no_text(name: str, real_model: RealModel) -> None:
    path = real_model(name, EXACT)
    skip_if_widths_matter(path)
    n_layer = FACTS[name]["n_layer"]
    common = ["generate", path, "-p", PROMPT, "-n", "32", "--temp", "0", "-t", "1", "--json"]
    plain = run(*common, "--draft", "off").json
    mask = ["--skip-attn", f"{n_layer // 2}", "--skip-ffn", f"{n_layer // 2}"]
    drafted = run(*common, "--draft", "layer-skip", "--draft-max", "3", *mask).json
    assert drafted["text"] == plain["text"] and len(plain["text"]) > 40
    assert 0 < drafted["n_accepted"] <= drafted["n_drafted"]


@pytest.mark.real
def test_drafting_changes_no_text_beyond_the_sliding_window(real_model: RealModel) -> None:
    """Blocks of Gemma have forgotten the beginning of the text, so K/V cells are used again."""
    path = real_model("gemma3-270m", EXACT)
    skip_if_widths_matter(path)
    source = read_model(path)
    assert source.value(source.key("attention.sliding_window")) == WINDOW
    fixed = Fixed(3, p_min=0.0)
    with Model(path) as model, model.context(n_ctx=1024, n_threads=1) as context:
        text = model.tokenize("Flour, water, salt and yeast are mixed and left to rise. " * 60)
        prompt = text[: WINDOW - 8]  # the first tokens leave the window while drafting
        texts = {}
        for draft in (None, "layer-skip"):
            mask = None if draft is None else LayerMask.skipping(model.n_layer, ffn=[9])
            options: dict[str, Any] = {"draft": draft, "mask": mask, "controller": fixed}
            made = Completion(context, prompt, n_predict=24, sampling=GREEDY, **options)
            "".join(made)
            texts[draft] = made.tokens
        assert made.stats.n_accepted > 0
    assert texts["layer-skip"] == texts[None] and len(texts[None]) == 24


@pytest.mark.real
def test_a_vocabulary_of_262_144(real_model: RealModel) -> None:
    text = "Brot 面包 хлеб रोटी 빵 🍞"
    with Model(real_model("gemma3-270m")) as model:
        assert model.n_vocab == 2**18
        tokens = model.tokenize(text)
        assert model.detokenize(tokens) == text
        assert max(tokens) > 2**17  # more than half of the ids are for such words
        last = model.n_vocab - 1
        with model.context(n_ctx=64, n_threads=1) as context:
            logits = context.decode([*tokens, last]).logits
    assert logits.shape == (len(tokens) + 1, 2**18) and np.isfinite(logits).all()


@pytest.mark.real
@pytest.mark.parametrize(("name", "type_name"), [("smollm2-135m", "q4_0"), ("gemma3-270m", None)])
def test_a_prompt_gives_one_text_in_whatever_pieces_it_is_read(
    name: str, type_name: str | None, real_model: RealModel
) -> None:
    """Read a prompt as generate, serve and chat do: the logits after it are the same bits."""
    notes = " ".join(f"Note {i} on bees: it matters because of {i * 7 % 13}." for i in range(20))
    logits, texts = [], []
    with Model(real_model(name, type_name)) as model:
        prompt = model.tokenize(f"Here are notes. {notes}\n\nNow a long essay on bees:\n")
        assert len(prompt) > 256
        for piece in (512, 128, 32, 7):
            with model.context(n_ctx=512, n_batch=piece, n_threads=2) as context:
                if not context.abilities.exact_prompts:
                    pytest.skip("our kernels do not compute here")
                context.prefill(prompt[:-1])
                logits.append(context.decode(prompt[-1:]).logits)
                context.sequence().drop()
                done = Completion(context, prompt, n_predict=32, draft=None, sampling=GREEDY)
                texts.append([list(step) for step in done])
    for others in logits[1:]:
        np.testing.assert_array_equal(others, logits[0])
    assert texts[1:] == texts[:1] * 3 and texts[0]


def skip_if_widths_matter(path: Path) -> None:
    with Model(path) as model, model.context(n_ctx=256, n_batch=64, n_threads=1) as context:
        if not same_at_widths(context):
            give_up = pytest.fail if os.environ.get("CI") else pytest.skip
            give_up("logits depend on the width of a pass here, so a near-tie may fall otherwise")


#
# other types
#


def test_another_type_has_the_weights_as_they_were_rounded(
    tiny_path: TinyPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = tiny_path(qtype="Q4_0")
    published = packages.Packaged((), (), "", "q4_0", 0, "", "")
    monkeypatch.setitem(real.MODELS, "tiny", published)
    (tmp_path / "tiny-q4_0.gguf").write_bytes(original.read_bytes())
    made = read_model(real.path("tiny", "f32", tmp_path))
    assert made.file.file_type == "F32"
    tensors = {tensor.name: tensor for tensor in made.tensors}
    for was in read_model(original).tensors:
        now = tensors.pop(was.name)
        assert now.shape == was.shape
        want = quants.dequantize(was.rows, was.type)
        np.testing.assert_array_equal(now.rows.view(np.float32), want)
    assert not tensors
    assert real.path("tiny", "q8_0", tmp_path).stat().st_size < made.file.n_bytes
    left = sorted(p.name for p in tmp_path.iterdir() if not p.name.endswith(".lock"))
    assert left == [f"tiny-{name}.gguf" for name in ("f32", "q4_0", "q8_0")]


def test_the_tool_lists_licences() -> None:
    listed = CliRunner().invoke(real.main, ["--list"]).output
    assert all(name in listed for name in real.MODELS)
    assert "Apache-2.0" in listed and "https://ai.google.dev/gemma/terms" in listed
