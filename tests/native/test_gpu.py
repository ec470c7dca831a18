"""Layers on GPUs and on the CPU, and errors where there is no GPU.

On a machine with a GPU all other tests use it, too, for libraries keep models there by default.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyselfspec import GREEDY, Completion, Fixed, LayerMask, Model
from pyselfspec.errors import ArgumentError, ModelFileError
from pyselfspec.runtime import model as model_module
from pyselfspec.runtime.ffi import devices
from pyselfspec.runtime.ffi.load import llama, native

HAS_GPU = bool(devices.gpus())
with_gpu = pytest.mark.skipif(not HAS_GPU, reason="there is no GPU, or the library is for CPUs")
without_gpu = pytest.mark.skipif(HAS_GPU, reason="there is a GPU")
MASK = LayerMask.early_exit(4, 2)


def test_gpus_are_those_that_llama_cpp_offloads_to() -> None:
    assert HAS_GPU <= llama.llama_supports_gpu_offload()


@without_gpu
@pytest.mark.parametrize(
    ("built", "reason"),
    [("cuda", "nvidia-smi"), ("vulkan", "vulkaninfo"), ("", "without GPU support")],
)
@pytest.mark.parametrize("asked", [-1, 2])
def test_a_library_without_a_gpu_says_why(
    built: str, reason: str, asked: int, tiny_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "has_cuda", lambda: built == "cuda")
    monkeypatch.setattr(devices, "has_vulkan", lambda: built == "vulkan")
    with pytest.warns(UserWarning, match=reason), Model(tiny_path(), n_gpu_layers=asked) as model:
        assert model.n_gpu_layers == 0


@without_gpu
def test_nothing_is_on_a_gpu_that_is_not_there(tiny_path: Any) -> None:
    for asked in (None, 0):
        with Model(tiny_path(), n_gpu_layers=asked, main_gpu=3, split_mode="none") as model:
            assert model.n_gpu_layers == 0


def test_split_modes_are_llama_cpps(tiny_path: Any) -> None:
    numbers = {
        name.removeprefix("LLAMA_SPLIT_MODE_").lower(): number
        for name, number in vars(importlib.import_module("llama_cpp.llama_cpp")).items()
        if name.startswith("LLAMA_SPLIT_MODE_")
    }
    assert model_module.SPLIT_MODES.items() < numbers.items()
    with pytest.raises(ArgumentError, match="none, layer, row, got 'tensor'"):
        Model(tiny_path(), split_mode="tensor")


def test_negative_layers(tiny_path: Any) -> None:
    with pytest.raises(ArgumentError, match="at least -1, or auto, got -2"):
        Model(tiny_path(), n_gpu_layers=-2)


def test_no_other_words_than_auto(tiny_path: Any) -> None:
    with pytest.raises(
        ArgumentError, match=r"n_gpu_layers \(-ngl\) is at least -1, or auto, got most"
    ):
        Model(tiny_path(), n_gpu_layers="most")


@without_gpu
def test_auto_without_a_gpu(tiny_path: Any) -> None:
    with pytest.warns(UserWarning, match="has no effect"):
        model = Model(tiny_path(), n_gpu_layers="auto")
    with model:
        assert model.n_gpu_layers == 0


def test_a_context_whose_device_is_lost_is_not_freed(
    tiny_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The destructor would throw; tests/device/test_failures.py has a device that is lost."""
    freed: list[int] = []
    with Model(tiny_path()) as model:
        context = model.context(n_ctx=256)
        handle, free = context.handle, llama.llama_free
        monkeypatch.setattr(llama, "llama_free", freed.append)
        monkeypatch.setattr(native, "selfspec_argmax", lambda *_: -3)
        monkeypatch.setattr(native, "selfspec_error", lambda _: b"submit: ErrorDeviceLost")
        context.close()
        assert context.closed and not freed
        context.close()
        free(handle)


def drafted(model: Model, prompt: list[int], **options: Any) -> tuple[list[int], list[int]]:
    """Tokens with drafts and without, each with the passes' own arithmetic."""
    texts = []
    for draft, mask in (("layer-skip", MASK), (None, None)):
        with model.context(n_ctx=256, n_batch=64, n_threads=1, **options) as context:
            completion = Completion(
                context,
                prompt,
                n_predict=32,
                draft=draft,
                mask=mask,
                sampling=GREEDY,
                controller=Fixed(4, p_min=0),
            )
            list(completion)
            texts.append(completion.tokens)
    return texts[0], texts[1]


@with_gpu
@pytest.mark.parametrize("n_gpu_layers", [0, 1, 2, 4, 5])
def test_masks_are_exact_wherever_the_blocks_are(
    n_gpu_layers: int, tiny_path: Any, token_ids: Any
) -> None:
    """A skipped block against one whose weights are zero, at the same place."""
    logits = []
    for options, mask in (({}, MASK), ({"zero_attn": (2, 3), "zero_ffn": (2, 3)}, None)):
        path: Path = tiny_path(qtype="Q8_0", **options)
        with (
            Model(path, n_gpu_layers=n_gpu_layers) as model,
            model.context(n_ctx=256, n_batch=64, n_threads=1) as context,
        ):
            assert model.n_gpu_layers == n_gpu_layers
            logits.append(context.decode(token_ids(9), mask=mask).logits)
    np.testing.assert_array_equal(*logits)


@with_gpu
@pytest.mark.parametrize("n_gpu_layers", [1, 2, 5])
def test_drafts_with_some_blocks_on_the_gpu(
    n_gpu_layers: int, tiny_path: Any, token_ids: Any
) -> None:
    """Both texts are full, and begin alike: tiny models have near-ties, which widths may turn."""
    path = tiny_path(qtype="Q8_0", late_scale=0.05)
    with Model(path, n_gpu_layers=n_gpu_layers) as model:
        got, plain = drafted(model, token_ids(9))
    assert len(got) == len(plain) == 32
    assert got[0] == plain[0]


@with_gpu
def test_a_gpu_that_is_not_there(tiny_path: Any) -> None:
    with pytest.raises(ModelFileError, match="main_gpu"):
        Model(tiny_path(), split_mode="none", main_gpu=99)


@pytest.mark.parametrize("main_gpu", [-1, 2**31])
def test_gpus_that_cannot_be(tiny_path: Any, main_gpu: int) -> None:
    with pytest.raises(ArgumentError, match=f"main_gpu is 0 to .*, got {main_gpu}"):
        Model(tiny_path(), main_gpu=main_gpu)
