"""Texts with drafts on a device are those of a replay there: the same passes without drafters.

Kernels of a device may round differently for several tokens, so nothing is promised of plain
decoding; tools/device_texts.py counts.
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
from replayed import IDS, Recorded, both, both_of_two, opened, replayed, written

from pyselfspec import GREEDY, LayerMask, Model, SamplingParams
from pyselfspec.runtime.ffi.load import llama
from tools import device_texts

pytestmark = pytest.mark.device

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
    for name, options in ways(model.n_layer).items():
        made, again = both(model, IDS, SAMPLINGS[kind], **options)
        assert made.tokens == again, name
        assert made.stats.n_drafted > 0 or name == "copies", name


def test_a_prompt_that_continues_another_is_reused(model: Model) -> None:
    """Drafts change neither the kept prefix nor the text after it."""
    for options in ways(model.n_layer).values():
        tokens, again, n_reused = both_of_two(model, IDS, [7, 8, 9], **options)
        assert tokens == again and n_reused >= len(IDS)


def test_a_pass_without_outputs(model: Model) -> None:
    """With the head alone on the device, there are only empty tensors there."""
    with opened(model) as context:
        context.decode(IDS[:3], outputs="none")
        assert np.isfinite(context.decode(IDS[3:4]).logits).all()


#
# other models that draft, and adapters
#


@pytest.mark.parametrize("n_gpu_layers", [0, 1, 3, 5])
def test_heads_and_second_models(n_gpu_layers: int, tiny_path: TinyPath, tmp_path: Path) -> None:
    target = tiny_path(late_scale=0.25, late_from=0)
    tensors = {tensor.name: np.array(tensor.data) for tensor in GGUFReader(target).tensors}
    weights = tiny_head.knowing_weights(tensors)
    head = tiny_head.write(tmp_path / "head.gguf", weights, n_head_kv=2)
    own_head = tiny_nextn.write(tmp_path / "own.gguf", tiny_nextn.weights())
    for path, draft in ((target, f"head:{head}"), (own_head, "head"), (target, f"model:{target}")):
        with Model(path, n_gpu_layers=n_gpu_layers) as model:
            made, again = both(model, IDS, GREEDY, draft=draft)
        assert made.tokens == again and made.stats.n_drafted > 0, draft


@pytest.mark.parametrize("n_gpu_layers", [1, 5])
def test_adapters(n_gpu_layers: int, tiny_path: TinyPath, tmp_path: Path) -> None:
    with Model(tiny_path(), n_gpu_layers=n_gpu_layers) as model:
        path = write_adapter(tmp_path / "adapter.gguf", model, 0)
        adapter = llama.llama_adapter_lora_init(model.handle, bytes(path))
        for options in ways(model.n_layer).values():
            recorded = Recorded()
            with opened(model) as context:
                set_adapters(context, [adapter])
                made = written(context, IDS, sampling=GREEDY, controller=recorded, **options)
            with opened(model) as context:
                set_adapters(context, [adapter])
                assert replayed(context, IDS, GREEDY, recorded.steps) == made.tokens


#
# every architecture
#


@pytest.mark.slow
@pytest.mark.parametrize("name", device_texts.CHOSEN)
def test_architectures(name: str, archs_folder: Path) -> None:
    """In a process of its own, so that an abort is one failure."""
    result = device_texts.check_in_own_process(archs_folder / f"{name}.gguf")
    assert not result.is_wrong, result
    assert result.same == result.n_texts > 0, result
    assert max(result.layers) > 1
    has_copies_only = result.n_texts == len(result.layers)  # test_states.py has accepted ones
    assert result.n_accepted > 0 or has_copies_only
