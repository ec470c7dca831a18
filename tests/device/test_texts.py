"""Texts with drafts on a device are those of plain decoding there, verified row by row.

The oracle is plain decoding on the same device with as many layers there. Of wide passes nothing
is promised on a device, so nothing is demanded of them here; tools/device_texts.py counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_head
import tiny_nextn
from fixture_types import TinyPath
from gguf import GGUFReader
from lora_adapters import set_adapters, write_adapter
from row_by_row import ALWAYS, IDS, N, opened, written

from pyselfspec import GREEDY, Completion, LayerMask, Model, SamplingParams
from pyselfspec.runtime.ffi.load import llama
from pyselfspec.speculate.completion import generate_batch
from tools import device_texts

pytestmark = pytest.mark.device

PROMPT = "The old woman opened the door, and the old woman said"
SAMPLINGS = {
    "greedy": GREEDY,
    "drawn": SamplingParams(temperature=1.0, seed=3),
    "penalties": SamplingParams(temperature=0.8, repeat_penalty=1.4, seed=4),
    "grammar": SamplingParams(temperature=0.9, grammar='root ::= " " [a-z ]+ "."', seed=5),
}


def ways(n_layer: int) -> dict[str, dict[str, Any]]:
    """Copies, a mask whose drafts are forks, and an early exit that is verified in place."""
    skip = LayerMask.skipping(n_layer, attn=[n_layer // 2], ffn=[n_layer // 2])
    return {
        "copies": {"draft": "ngram"},
        "mask": {"draft": "layer-skip", "mask": skip},
        "exit": {"draft": "layer-skip", "mask": LayerMask.early_exit(n_layer, n_layer // 2)},
    }


#
# the demo
#


@pytest.fixture(scope="module", params=["none", "head", "half", "all"])
def model(request: pytest.FixtureRequest, demo_path: Path) -> Iterator[Model]:
    """The demo with so much of it on the device."""
    n = {"none": 0, "head": 1, "half": 7, "all": 13}[request.param]
    with Model(demo_path, n_gpu_layers=n) as model:
        assert model.n_gpu_layers == n
        yield model


@pytest.mark.parametrize("kind", SAMPLINGS)
def test_every_sampling(model: Model, kind: str) -> None:
    sampling = SAMPLINGS[kind]
    with opened(model) as context:
        wanted = written(context, PROMPT, sampling=sampling, draft=None).tokens
    for name, options in ways(model.n_layer).items():
        with opened(model) as context:
            made = written(context, PROMPT, sampling=sampling, **options)
        assert made.tokens == wanted, name
        assert made.stats.n_drafted > 0 or name == "copies", name


def test_a_prompt_that_continues_another_is_reused(model: Model) -> None:
    """Drafts change neither the kept prefix nor the text after it."""
    texts = []
    for options in ({"draft": None}, *ways(model.n_layer).values()):
        with opened(model) as context:
            first = written(context, IDS, sampling=GREEDY, **options)
            turn = [*IDS, *first.tokens, 7, 8, 9]
            second = written(context, turn, sampling=GREEDY, **options)
            assert second.stats.n_prompt_reused >= len(IDS)
            texts.append([*first.tokens, *second.tokens])
    assert all(text == texts[0] for text in texts)


def test_texts_side_by_side(model: Model) -> None:
    found = []
    for options in ({"draft": None}, {"draft": "ngram", "controller": ALWAYS}):
        with opened(model, n_ctx=512) as context:
            texts = [
                Completion(
                    context,
                    IDS[i:],
                    seq=context.sequence(i),
                    n_predict=N,
                    sampling=GREEDY,
                    **options,
                )
                for i in range(2)
            ]
            for _ in generate_batch(texts):
                pass
            found.append([text.tokens for text in texts])
    assert found[0] == found[1]


def test_auto_drafts_nothing_where_nothing_can_be_saved(model: Model) -> None:
    with opened(model) as context:
        made = written(context, PROMPT, sampling=GREEDY, draft="auto")
        assert context.pass_width > 1 or made.stats.n_drafted == 0


def test_a_pass_without_outputs(model: Model) -> None:
    """With the head alone on the device, there are only empty tensors there."""
    with opened(model) as context:
        context.decode(IDS[:3], outputs="none")
        assert np.isfinite(context.decode(IDS[3:4]).logits).all()


#
# other models that draft, and adapters
#


def drafted_and_plain(path: Path, draft: str, n_gpu_layers: int) -> tuple[list[int], Completion]:
    with Model(path, n_gpu_layers=n_gpu_layers) as model:
        with opened(model) as context:
            plain = written(context, IDS, sampling=GREEDY, draft=None).tokens
        with opened(model) as context:
            return list(plain), written(context, IDS, sampling=GREEDY, draft=draft)


@pytest.mark.parametrize("n_gpu_layers", [0, 1, 3, 5])
def test_heads_and_second_models(n_gpu_layers: int, tiny_path: TinyPath, tmp_path: Path) -> None:
    target = tiny_path(late_scale=0.25, late_from=0)
    tensors = {tensor.name: np.array(tensor.data) for tensor in GGUFReader(target).tensors}
    weights = tiny_head.knowing_weights(tensors)
    head = tiny_head.write(tmp_path / "head.gguf", weights, n_head_kv=2)
    own_head = tiny_nextn.write(tmp_path / "own.gguf", tiny_nextn.weights())
    for path, draft in ((target, f"head:{head}"), (own_head, "head"), (target, f"model:{target}")):
        plain, made = drafted_and_plain(path, draft, n_gpu_layers)
        assert made.tokens == plain and made.stats.n_drafted > 0, draft


@pytest.mark.parametrize("n_gpu_layers", [1, 5])
def test_adapters(n_gpu_layers: int, tiny_path: TinyPath, tmp_path: Path) -> None:
    with Model(tiny_path(), n_gpu_layers=n_gpu_layers) as model:
        path = write_adapter(tmp_path / "adapter.gguf", model, 0)
        adapter = llama.llama_adapter_lora_init(model.handle, bytes(path))
        texts = []
        for options in ({"draft": None}, *ways(model.n_layer).values()):
            with opened(model) as context:
                set_adapters(context, [adapter])
                texts.append(written(context, IDS, sampling=GREEDY, **options).tokens)
    assert all(text == texts[0] for text in texts)


#
# every architecture
#


@pytest.mark.slow
@pytest.mark.parametrize("name", device_texts.CHOSEN)
def test_architectures(name: str, archs_folder: Path) -> None:
    """In a process of its own, so that an abort is one failure."""
    result = device_texts.check_in_own_process(archs_folder / f"{name}.gguf")
    assert not result.is_wrong, result
    assert result.exact == result.n_texts > 0, result
    assert max(result.layers) > 1 and result.n_accepted > 0
