"""Files of LoRA adapters: what they must hold, and loading them beside a model."""

from __future__ import annotations

import re
import weakref
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ModelFileError, UnsupportedError
from ..gguf.file import TOKEN_EMBEDDING
from ..gguf.header import TensorInfo, read_header
from .adapters import Adapter
from .ffi import adapters as ffi
from .ffi import load

if TYPE_CHECKING:
    from .model import Model

SCALE = 1.0  # of an adapter without one
PART = re.compile(r"\.lora_[ab]$")  # of a tensor's name
TYPES = ("F32", "F16", "BF16")  # whose products have the same bits at any width

AdapterFile = str | Path | tuple[str | Path, float]


def load_adapter(model: Model, file: str | Path, number: int) -> Adapter:
    """Return the adapter of a file. number: its id.

    Raises ModelFileError for a file that is not an adapter of this model, UnsupportedError for one
    whose text would depend on the width of passes, for one that begins inside a text, and for one
    of weights that llama.cpp scales afterwards.
    """
    path = Path(file)
    weights = require_lora(path)
    require_unscaled(path, weights, model.file.tensors)
    load.clear_log_error()
    handle = ffi.load_adapter(model.handle, path)
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
