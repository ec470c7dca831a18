"""LoRA adapters: small changes of a model's weights, from files of their own.

An adapter adds a product of two narrow matrices to a product with a weight. The model's file stays
as it is, and each pass chooses adapters and their scales. The library is imported only where it is
called, so that data which name adapters stay pure.
"""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ArgumentError, ModelFileError, UnsupportedError
from ..gguf.file import TOKEN_EMBEDDING
from ..gguf.header import TensorInfo, read_header

if TYPE_CHECKING:
    from .model import Model

SCALE = 1.0  # of an adapter without one
MAX_SCALE = 1000.0  # far beyond any use; much larger ones give logits that are no numbers
PART = re.compile(r"\.lora_[ab]$")  # of a tensor's name
TYPES = ("F32", "F16", "BF16")  # whose products have the same bits at any width

AdapterFile = str | Path | tuple[str | Path, float]


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter that is loaded beside a model, and freed with it.

    id: its place among the model's adapters. handle: llama.cpp's pointer. owner: the model, as long
    as it exists. changes_head: whether it changes the weights that give the logits.
    """

    id: int
    path: Path
    handle: Any = field(repr=False, compare=False)
    owner: weakref.ref[Any] = field(repr=False, compare=False)
    changes_head: bool = False


# Adapters with their scales, by ascending id. Adapters of scale 0 are left out.
Adapters = tuple[tuple[Adapter, float], ...]


def scaled(adapters: Sequence[Adapter], scales: Sequence[tuple[int, float]]) -> Adapters:
    """Return the adapters with these ids and scales; the others are not used.

    Raises ArgumentError for unknown and repeated ids, and for scales outside their range.
    """
    chosen: dict[int, float] = {}
    for number, scale in scales:
        if not 0 <= number < len(adapters):
            ids = (
                f"ids are 0 to {len(adapters) - 1}" if adapters else "none is loaded with the model"
            )
            raise ArgumentError(f"there is no LoRA adapter {number}: {ids}")
        if number in chosen:
            raise ArgumentError(f"LoRA adapter {number} is given twice; give it once")
        if not -MAX_SCALE <= scale <= MAX_SCALE:  # nor NaN
            raise ArgumentError(
                f"the scale of a LoRA adapter is {-MAX_SCALE:g} to {MAX_SCALE:g}, got {scale:g}"
            )
        chosen[number] = scale
    return tuple((adapters[number], chosen[number]) for number in sorted(chosen) if chosen[number])


def require_owner(adapters: Adapters, model: object) -> None:
    """Raise ArgumentError for adapters that are loaded beside another model than this, or whose
    model is gone: llama.cpp would add products of other shapes, or read freed memory."""
    for adapter, _ in adapters:
        if adapter.owner() is not model:
            raise ArgumentError(
                f"the LoRA adapter {adapter.path.name} is loaded beside another model; take one of "
                "this model's adapters"
            )


def set_adapters(context: int, adapters: Adapters) -> None:
    """Let the passes of a context use these adapters. context: llama.cpp's pointer."""
    from .ffi.load import llama

    n = len(adapters)
    handles = scales = None
    if n:
        handles = (llama.llama_adapter_lora_p_ctypes * n)(*(each.handle for each, _ in adapters))
        scales = np.ctypeslib.as_ctypes(np.array([scale for _, scale in adapters], np.float32))
    llama.llama_set_adapters_lora(context, handles, n, scales)


def load_adapter(model: Model, file: str | Path, number: int) -> Adapter:
    """Return the adapter of a file. number: its id.

    Raises ModelFileError for a file that is not an adapter of this model, UnsupportedError for one
    whose text would depend on the width of passes, for one that begins inside a text, and for one
    of weights that llama.cpp scales afterwards.
    """
    path = Path(file)
    weights = require_lora(path)
    require_unscaled(path, weights, model.file.tensors)
    from .ffi import load

    load.clear_log_error()
    handle = load.llama.llama_adapter_lora_init(model.handle, os.fsencode(path)) or None
    if not handle:
        raise load.failure(ModelFileError, f"{path}: llama.cpp cannot load this adapter")
    # the head of some models is the embedding of tokens
    changes_head = not weights.isdisjoint(("output.weight", TOKEN_EMBEDDING))
    return Adapter(number, path, handle, weakref.ref(model), changes_head)


def require_unscaled(path: Path, weights: Collection[str], tensors: Sequence[TensorInfo]) -> None:
    """Raise UnsupportedError for an adapter of feed-forward weights of the type NVFP4 with a scale
    of their own, with which llama.cpp would end the process.

    weights: the names of those that the adapter changes. tensors: of the model.
    """
    names = {tensor.name for tensor in tensors}
    for tensor in tensors:
        scale = tensor.name.removesuffix("weight") + "scale"
        is_scaled = tensor.type == "NVFP4" and ".ffn_" in tensor.name and scale in names
        if is_scaled and tensor.name in weights:
            raise UnsupportedError(
                f"{path} changes {tensor.name}, which is NVFP4 with a scale of its own; use a "
                "model of another type"
            )


def require_lora(path: Path) -> set[str]:
    """Return the names of the weights that a LoRA adapter changes. Raises ModelFileError for a file
    that is none, UnsupportedError for one whose text would depend on the width of passes, and for
    one that begins inside a text."""
    header = read_header(path)
    kind = header.metadata.get("general.type")
    if kind != "adapter":
        raise ModelFileError(f"{path} is no LoRA adapter (general.type is {kind}); give an adapter")
    if "adapter.alora.invocation_tokens" in header.metadata:
        raise UnsupportedError(
            f"{path} is an activated LoRA, which begins inside a text; give an ordinary adapter"
        )
    for tensor in header.tensors:
        if tensor.type not in TYPES:
            raise UnsupportedError(
                f"{path}: {tensor.name} is {tensor.type}; adapters have {', '.join(TYPES)}, "
                "so that drafts leave the text as it is: convert the adapter to F16"
            )
    return {PART.sub("", tensor.name) for tensor in header.tensors}


def file_and_scale(given: AdapterFile) -> tuple[Path, float]:
    """Return the file and the scale of an adapter as Model takes it."""
    path, scale = given if isinstance(given, tuple) else (given, SCALE)
    return Path(path), float(scale)
