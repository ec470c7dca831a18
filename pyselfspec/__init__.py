"""Lossless self-speculative generation for quantized GGUF models, with nothing but the model
itself.

Names are loaded on first use, and so is the native library. Whoever imports llama_cpp after this
package gets the same library.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from typing import TYPE_CHECKING, Any

from . import errors

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .errors import SelfSpecError
    from .hub import model_path
    from .llama.llama import Llama as Llama
    from .masks.layer_mask import LayerMask
    from .runtime.context import Context
    from .runtime.kv import KVSequence
    from .runtime.model import Model
    from .runtime.sampling import GREEDY, Sampler, SamplingParams
    from .selection import objectives, strategies
    from .selection.scanning import ScanResult, scan
    from .selection.searching import SearchResult, search
    from .speculate import controllers, drafters
    from .speculate.adapt import Adapt
    from .speculate.completion import Completion, generate, interleaved
    from .speculate.controllers import Controller
    from .speculate.controllers.fixed import Fixed
    from .speculate.loop import generate_steps
    from .speculate.types import Draft, DraftLimit, GenerationStats, Step, Verdict
    from .util.build import BUILD_ID
    from .util.paths import DEMO

# Where each public name is defined; a module stands for itself.
_HOMES = {
    "SelfSpecError": "errors",
    "Llama": "llama.llama",
    "model_path": "hub",
    "LayerMask": "masks.layer_mask",
    "BUILD_ID": "util.build",
    "Context": "runtime.context",
    "KVSequence": "runtime.kv",
    "Model": "runtime.model",
    "GREEDY": "runtime.sampling",
    "Sampler": "runtime.sampling",
    "SamplingParams": "runtime.sampling",
    "objectives": "selection.objectives",
    "strategies": "selection.strategies",
    "ScanResult": "selection.scanning",
    "scan": "selection.scanning",
    "SearchResult": "selection.searching",
    "search": "selection.searching",
    "controllers": "speculate.controllers",
    "drafters": "speculate.drafters",
    "Adapt": "speculate.adapt",
    "Completion": "speculate.completion",
    "generate": "speculate.completion",
    "interleaved": "speculate.completion",
    "Controller": "speculate.controllers",
    "Fixed": "speculate.controllers.fixed",
    "generate_steps": "speculate.loop",
    "Draft": "speculate.types",
    "DraftLimit": "speculate.types",
    "GenerationStats": "speculate.types",
    "Step": "speculate.types",
    "Verdict": "speculate.types",
    "DEMO": "util.paths",
}

# Llama is left out: a subclass of llama_cpp's loads the library.
__all__ = [
    "BUILD_ID",
    "DEMO",
    "GREEDY",
    "Adapt",
    "Completion",
    "Context",
    "Controller",
    "Draft",
    "DraftLimit",
    "Fixed",
    "GenerationStats",
    "KVSequence",
    "LayerMask",
    "Model",
    "Sampler",
    "SamplingParams",
    "ScanResult",
    "SearchResult",
    "SelfSpecError",
    "Step",
    "Verdict",
    "controllers",
    "drafters",
    "errors",
    "generate",
    "generate_steps",
    "interleaved",
    "model_path",
    "objectives",
    "scan",
    "search",
    "strategies",
]


def _offer_library() -> None:
    """Let llama_cpp find our library, unless the user has named one or nothing is built yet."""
    with contextlib.suppress(errors.LibraryError):
        from .util.build import LIB_DIR

        os.environ.setdefault("LLAMA_CPP_LIB_PATH", str(LIB_DIR))


_offer_library()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if not _HOMES[name].startswith(("errors", "util.")):  # the others need numpy or the library
        from .runtime.processor import cpu_backend

        cpu_backend()
    home = importlib.import_module(f".{_HOMES[name]}", __name__)
    value = home if _HOMES[name].rpartition(".")[2] == name else getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
