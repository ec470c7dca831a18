"""Draft heads on a device, in the model's file and in files of their own, and second models.

The oracle is a replay with as many layers on the device. Models count, and some of their
tokens do not, so that drafts are accepted and rejected.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_assistant
import tiny_dflash
import tiny_nextn
from fixture_types import TinyPath
from replayed import Recorded, both, opened, replayed, written

from pyselfspec import GREEDY, Model, SamplingParams
from pyselfspec.runtime import offload
from pyselfspec.runtime.ffi import devices
from pyselfspec.speculate.drafters._second_model.reader import SecondModel

pytestmark = pytest.mark.device

COUNTED = [20 + i for i in range(12)]
PROMPTS = ([*COUNTED], [*COUNTED, 70, 71, 20, 21])
SAMPLINGS = (GREEDY, SamplingParams(temperature=0.7, seed=9))
LAYERS = [0, 1, 2, None]
NEARLY = 0.55

own_kinds = pytest.mark.parametrize("kind", tiny_nextn.KINDS, ids=lambda kind: kind.name)
block_kinds = pytest.mark.parametrize("kind", tiny_dflash.KINDS, ids=lambda kind: kind.name)
layers = pytest.mark.parametrize("n_gpu_layers", LAYERS, ids=["none", "head", "two", "all"])


def same_texts(model: Model, draft: str) -> int:
    """Compare texts with drafts to their replays; return how many draft tokens were verified."""
    n_drafted = 0
    for prompt in PROMPTS:
        for sampling in SAMPLINGS:
            made, again = both(model, prompt, sampling, draft=draft)
            assert made.tokens == again
            n_drafted += made.stats.n_drafted
    return n_drafted


@own_kinds
@layers
def test_heads_in_the_models_file(
    kind: tiny_nextn.Kind, n_gpu_layers: int | None, tmp_path: Path
) -> None:
    gain = 4.0 if kind.has_streams else NEARLY
    path = tmp_path / "own.gguf"
    tiny_nextn.write(path, tiny_nextn.counting_weights(kind, gain), kind)
    with Model(path, n_gpu_layers=n_gpu_layers) as model:
        assert same_texts(model, "head") > 0


@block_kinds
@layers
def test_heads_that_draft_blocks(
    kind: tiny_dflash.Kind, n_gpu_layers: int | None, tmp_path: Path
) -> None:
    weights, _ = tiny_assistant.counting_weights(gain=NEARLY)
    path = tiny_assistant.write_model(tmp_path / "model.gguf", weights)
    counts = kind.has_markov and kind.tokens is None  # heads of other kinds cannot
    made = tiny_dflash.counting_weights if counts else tiny_dflash.random_weights
    head = tiny_dflash.write(tmp_path / "head.gguf", made(kind), kind)
    with Model(path, n_gpu_layers=n_gpu_layers) as model:
        assert same_texts(model, f"head:{head}") > 0


@pytest.mark.parametrize("n_fit", [0, 1, 3, 5])
def test_a_second_model_takes_the_memory_that_is_left(
    n_fit: int, tiny_path: TinyPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drafts on both sides: blocks that do not fit beside the model are on the CPU."""
    path = tiny_path(late_scale=0.25, late_from=0)
    with Model(path) as model:
        free = offload.needed_bytes(model.file, n_fit, offload.ContextSize(256))
        monkeypatch.setattr(devices, "free_bytes", lambda *_: free)
        recorded = Recorded()
        with opened(model) as context:
            made = written(
                context, COUNTED, sampling=GREEDY, draft=f"model:{path}", controller=recorded
            )
            values = context.extension.values.values()
            (second,) = (each for each in values if isinstance(each, SecondModel))
            assert second.context.model.n_gpu_layers == n_fit
        with opened(model) as context:
            again = replayed(context, COUNTED, GREEDY, recorded.steps)
    assert made.tokens == again and made.stats.n_accepted == made.stats.n_drafted > 0
