"""Files of LoRA adapters: what they must hold, and loading them beside a model."""

from __future__ import annotations

from pathlib import Path

from ..errors import ModelFileError, UnsupportedError
from ..gguf.header import read_header
from .adapters import Adapter
from .ffi import adapters as ffi
from .ffi import load

SCALE = 1.0  # of an adapter without one
TYPES = ("F32", "F16", "BF16")  # whose products have the same bits at any width

AdapterFile = str | Path | tuple[str | Path, float]


def load_adapter(model: int, file: str | Path, number: int) -> Adapter:
    """Return the adapter of a file. model: the model's address. number: its id.

    Raises ModelFileError for a file that is not an adapter of this model, UnsupportedError for one
    whose text would depend on the width of passes, and for one that begins inside a text.
    """
    path = Path(file)
    require_lora(path)
    load.clear_log_error()
    handle = ffi.load_adapter(model, path)
    if not handle:
        raise load.failure(ModelFileError, f"{path}: llama.cpp cannot load this adapter")
    return Adapter(number, path, handle)


def require_lora(path: Path) -> None:
    """Raise ModelFileError for a file that is not a LoRA adapter, UnsupportedError for one whose
    text would depend on the width of passes, and for one that begins inside a text."""
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


def file_and_scale(given: AdapterFile) -> tuple[Path, float]:
    """Return the file and the scale of an adapter as Model takes it."""
    path, scale = given if isinstance(given, tuple) else (given, SCALE)
    return Path(path), float(scale)
