"""Texts with LoRA adapters: with drafts they are those without, one by one and in shared batches.

The oracle sets adapters with llama.cpp's own function in a context of its own, and decodes token by
token.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixture_types import NewContext, TinyModel, TinyPath
from lora_adapters import set_adapters, write_adapter

from pyselfspec import GREEDY, Completion, Fixed, Model
from pyselfspec.errors import ArgumentError, ModelFileError, UnsupportedError
from pyselfspec.gguf.header import TensorInfo
from pyselfspec.runtime.ffi.load import llama
from pyselfspec.runtime.lora import Adapters, require_unscaled, scaled
from pyselfspec.runtime.passes import Pass, Rows
from pyselfspec.speculate.completion import generate_batch
from pyselfspec.speculate.drafters import layer_skip

N_PREDICT = 24
DRAFTS: list[dict[str, Any]] = [
    {"draft": None},
    {"draft": "ngram"},
    {"draft": "layer-skip", "controller": Fixed(4, p_min=0)},
]


@pytest.fixture(scope="module")
def files(tiny: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return [write_adapter(folder / f"{seed}.gguf", tiny(), seed) for seed in range(2)]


@pytest.fixture
def model(tiny_path: TinyPath, files: list[Path]) -> Any:
    with Model(tiny_path(), lora=[(file, 0) for file in files]) as made:
        yield made


def oracle(model: Model, file: Path | None, prompt: Sequence[int], context: Any) -> list[int]:
    """The most likely tokens, by llama.cpp's own functions."""
    if file is not None:
        handle = llama.llama_adapter_lora_init(model.handle, bytes(file))
        assert handle
        set_adapters(context, [handle])
    found: list[int] = []
    row = context.decode(prompt, outputs="last").logits[0]
    while len(found) < N_PREDICT:
        found.append(int(np.argmax(row)))
        row = context.decode(found[-1:]).logits[0]
    return found


def chosen(model: Model, i: int | None) -> Adapters:
    return scaled(model.adapters, [] if i is None else [(i, 1.0)])


def tokens(context: Any, prompt: Sequence[int], adapters: Adapters, **options: Any) -> list[int]:
    made = Completion(
        context, prompt, n_predict=N_PREDICT, sampling=GREEDY, adapters=adapters, **options
    )
    for _ in made:
        pass
    return made.tokens


@pytest.mark.parametrize("drafting", DRAFTS)
def test_texts_of_one_context_with_changing_adapters(
    drafting: dict[str, Any],
    model: Model,
    files: list[Path],
    tiny: TinyModel,
    new_context: NewContext,
    token_ids: Any,
) -> None:
    """The prompt stays, so that tokens of other adapters must not be reused."""
    prompt = token_ids(20)
    want = {
        i: oracle(tiny(), None if i is None else files[i], prompt, new_context(tiny()))
        for i in (None, 0, 1)
    }
    assert len({tuple(each) for each in want.values()}) == 3
    context = new_context(model)
    for i in (0, 1, None, 1, 1, 0):
        assert tokens(context, prompt, chosen(model, i), **drafting) == want[i], i


def test_texts_side_by_side_with_different_adapters(
    model: Model, files: list[Path], tiny: TinyModel, new_context: NewContext, token_ids: Any
) -> None:
    context = new_context(model, n_seq_max=8, n_ctx=512)
    prompts = {i: token_ids(12 + n, seed=n) for n, i in enumerate((None, 0, 1))}
    texts = [
        Completion(
            context,
            prompt,
            seq=context.sequence(n),
            n_predict=N_PREDICT,
            sampling=GREEDY,
            adapters=chosen(model, i),
            draft="layer-skip",
            controller=Fixed(4, p_min=0),
        )
        for n, (i, prompt) in enumerate(prompts.items())
    ]
    for _ in generate_batch(texts):
        pass
    for (i, prompt), text in zip(prompts.items(), texts, strict=True):
        file = None if i is None else files[i]
        assert text.tokens == oracle(tiny(), file, prompt, new_context(tiny())), i
        assert text.stats.n_drafted


def test_a_prompt_is_reused_with_its_own_adapters_only(
    model: Model, new_context: NewContext, token_ids: Any
) -> None:
    context, prompt = new_context(model), token_ids(30)

    def n_reused(i: int | None) -> int:
        made = Completion(context, prompt, None, n_predict=1, adapters=chosen(model, i))
        for _ in made:
            pass
        return made.stats.n_prompt_reused

    assert [n_reused(i) for i in (0, 0, 1, 1, None, None, 0)] == [0, 29, 0, 29, 0, 29, 0]


def test_adapters_of_the_model_are_used_where_none_are_named(
    tiny_path: TinyPath, files: list[Path], tiny: TinyModel, new_context: NewContext, token_ids: Any
) -> None:
    prompt = token_ids(20)
    with Model(tiny_path(), lora=[files[1]]) as model, model.context(n_ctx=256) as context:
        made = Completion(context, prompt, "ngram", n_predict=N_PREDICT, sampling=GREEDY)
        for _ in made:
            pass
        want = oracle(tiny(), files[1], prompt, new_context(tiny()))
        assert made.tokens == want
        assert tokens(context, prompt, ()) != want


@pytest.mark.parametrize("type_name", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("rank", [1, 3, 8, 17, 64])
def test_logits_do_not_depend_on_the_width_of_passes(
    rank: int, type_name: str, tiny_path: TinyPath, tiny: TinyModel, tmp_path: Path, token_ids: Any
) -> None:
    file = write_adapter(tmp_path / "a.gguf", tiny(), 5, rank=rank, type_name=type_name, size=0.1)
    ids = token_ids(32, seed=rank)
    with Model(tiny_path(), lora=[file]) as model, model.context(n_ctx=256) as context:
        assert context.abilities.exact_width >= 16
        one = np.concatenate([context.decode([token]).logits for token in ids])
        for width in (2, 3, 5, 16):
            context.sequence().drop()
            parts = [ids[at : at + width] for at in range(0, 32, width)]
            many = np.concatenate([context.decode(part).logits for part in parts])
            np.testing.assert_array_equal(many, one)
        context.sequence().drop()
        context.adapters = ()
        bare = np.concatenate([context.decode([token]).logits for token in ids])
    assert not np.allclose(bare, one)


def test_files_that_are_refused(tiny_path: TinyPath, tiny: TinyModel, tmp_path: Path) -> None:
    def message(kind: type[Exception], file: Path, path: Path | None = None) -> str:
        with pytest.raises(kind) as error:
            Model(path or tiny_path(), lora=[file])
        assert "\n" not in str(error.value)
        return str(error.value)

    quantized = write_adapter(tmp_path / "q.gguf", tiny(), 0, rank=32, type_name="Q8_0")
    assert "Q8_0; adapters have F32, F16, BF16" in message(UnsupportedError, quantized)
    assert "is no LoRA adapter" in message(ModelFileError, tiny_path())
    other = write_adapter(tmp_path / "o.gguf", tiny("qwen2"), 0)
    assert "cannot load this adapter" in message(ModelFileError, other)
    message(ModelFileError, tmp_path / "none.gguf")
    key = {"adapter.alora.invocation_tokens": "1"}
    activated = write_adapter(tmp_path / "al.gguf", tiny(), 0, extra=key)
    assert "activated LoRA" in message(UnsupportedError, activated)


@pytest.mark.parametrize(
    ("scales", "words"),
    [
        ([(2, 1.0)], "ids are 0 to 1"),
        ([(0, 1.0), (0, 2.0)], "given twice"),
        ([(0, float("nan"))], "is -1000 to 1000, got nan"),
        ([(0, 1e39)], r"is -1000 to 1000, got 1e\+39"),
        ([(0, -1001.0)], "got -1001"),
    ],
)
def test_scales_that_are_refused(scales: list[tuple[int, float]], words: str, model: Model) -> None:
    with pytest.raises(ArgumentError, match=words):
        scaled(model.adapters, scales)


def test_a_head_with_an_adapter_is_not_shortened(
    tiny_path: TinyPath, tiny: TinyModel, tmp_path: Path, token_ids: Any
) -> None:
    """It is a sum of products. Before, the text ended with UnsupportedError."""
    file = write_adapter(tmp_path / "head.gguf", tiny(), 3, head=True)
    prompt = token_ids(20)
    with Model(tiny_path(), lora=[file]) as model, model.context(n_ctx=256) as context:
        assert context.can_shorten and model.adapters[0].changes_head
        options: dict[str, Any] = {"draft": "layer-skip", "controller": Fixed(4, p_min=0)}
        options["options"] = layer_skip.Options(shortlist=64)
        for adapters in (chosen(model, 0), (), chosen(model, 0)):
            want = tokens(context, prompt, adapters, draft=None)
            assert tokens(context, prompt, adapters, **options) == want
        context.run(Rows.of(1, 0, prompt), Pass(adapters=chosen(model, 0)))
        assert not context.can_shorten
        context.run(Rows.of(2, 0, prompt), Pass(adapters=()))
        assert context.can_shorten


def test_adapters_of_another_model_are_refused(
    tiny_path: TinyPath, tiny: TinyModel, files: list[Path], new_context: NewContext
) -> None:
    """Before, llama.cpp ended the process, or read freed memory."""
    context = new_context(tiny())
    wide = write_adapter(files[0].with_name("wide.gguf"), tiny(n_embd=128), 0)
    for path, file in ((tiny_path(n_embd=128), wide), (tiny_path(), files[0])):
        with Model(path, lora=[file]) as other:
            adapters = other.default_adapters
            for _ in range(2):
                with pytest.raises(ArgumentError, match="is loaded beside another model"):
                    context.run(Rows.of(0, 0, [5, 6]), Pass(adapters=adapters))
        with pytest.raises(ArgumentError, match="is loaded beside another model"):
            context.run(Rows.of(0, 0, [5, 6]), Pass(adapters=adapters))
    assert context.sequence().n_past == 0


def test_weights_that_are_scaled_afterwards_take_no_adapter() -> None:
    def tensor(name: str, kind: str = "NVFP4") -> TensorInfo:
        return TensorInfo(name, kind, (64, 64), 1)

    up, scale = tensor("blk.0.ffn_up.weight"), tensor("blk.0.ffn_up.scale", "F32")
    path = Path("a.gguf")
    with pytest.raises(UnsupportedError, match=r"ffn_up.weight, which is NVFP4 with a scale"):
        require_unscaled(path, {up.name}, [up, scale])
    require_unscaled(path, {up.name}, [up])
    require_unscaled(path, {"blk.1.ffn_up.weight"}, [up, scale])
    require_unscaled(path, {up.name}, [tensor(up.name, "F16"), scale])


def test_an_adapter_of_scale_zero_is_none(model: Model) -> None:
    assert scaled(model.adapters, [(1, 0.0)]) == ()
    assert [(a.id, s) for a, s in scaled(model.adapters, [(1, 2.0), (0, 0.5)])] == [
        (0, 0.5),
        (1, 2.0),
    ]
