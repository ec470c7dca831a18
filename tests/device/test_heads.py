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
from pyselfspec.gguf import file as gguf_file
from pyselfspec.runtime import offload
from pyselfspec.runtime.ffi import devices
from pyselfspec.speculate.drafters._second_model.reader import SecondModel
from pyselfspec.speculate.drafters.head import Heads

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


def counting_pair(draft: str, tmp_path: Path, tiny_path: TinyPath) -> tuple[Path, Path]:
    """Return the files of a model and of what drafts for it."""
    if draft == "model":
        path = tiny_path(late_scale=0.25, late_from=0)
        return path, path
    weights, of_assistant = tiny_assistant.counting_weights(gain=NEARLY)
    path = tiny_assistant.write_model(tmp_path / "model.gguf", weights)
    if draft == "assistant":
        return path, tiny_assistant.write(tmp_path / "head.gguf", of_assistant)
    (kind,) = (each for each in tiny_dflash.KINDS if each.name == draft)
    return path, tiny_dflash.write(tmp_path / "head.gguf", tiny_dflash.counting_weights(kind), kind)


@pytest.mark.parametrize(
    ("draft", "n_fit"),
    [(draft, n) for draft in ("assistant", "dspark") for n in (0, 1)]
    + [("model", n) for n in (0, 1, 3, 5)],
)
def test_what_drafts_takes_the_memory_that_is_left(
    draft: str, n_fit: int, tmp_path: Path, tiny_path: TinyPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks that do not fit beside the model are on the CPU, and read its states, its K and V, or
    its head from the device."""
    path, file = counting_pair(draft, tmp_path, tiny_path)
    with Model(path) as model:
        size = offload.ContextSize(256)
        free = offload.needed_bytes(gguf_file.check(file), n_fit, size)
        monkeypatch.setattr(devices, "free_bytes", lambda *_: free)
        recorded = Recorded()
        with opened(model) as context:
            name = f"model:{file}" if draft == "model" else f"head:{file}"
            made = written(context, COUNTED, sampling=GREEDY, draft=name, controller=recorded)
            (second,) = (
                each.context if isinstance(each, SecondModel) else each.head._context
                for each in context.extension.values.values()
                if isinstance(each, SecondModel | Heads)
            )
            assert second.model.n_gpu_layers == n_fit
        with opened(model) as context:
            again = replayed(context, COUNTED, GREEDY, recorded.steps)
    n_least = made.stats.n_drafted if draft == "model" else 1  # that model drafts for itself
    assert made.tokens == again and made.stats.n_accepted >= n_least > 0
