"""Lossless self-speculative generation for quantized GGUF models, with nothing but the model
itself.

Names are loaded on first use, and so is the native library. Whoever imports llama_cpp after this
package gets the same library.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from . import errors

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .chat.conversation import Conversation
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
    from .speculate.batching import generate_steps
    from .speculate.completion import Completion, generate, generate_batch
    from .speculate.config import DraftConfig
    from .speculate.controllers import Controller
    from .speculate.controllers.fixed import Fixed
    from .speculate.drafters import Drafter, LookupDrafter
    from .speculate.limits import DraftLimit
    from .speculate.stats import GenerationStats
    from .speculate.types import Draft, DraftToken, Step, Verdict
    from .templates.template import ChatTemplate
    from .util.build import BUILD_ID
    from .util.paths import DEMO

# Where each public name is defined; a module stands for itself.
_HOMES = {
    "SelfSpecError": "errors",
    "Llama": "llama.llama",
    "model_path": "hub",
    "Conversation": "chat.conversation",
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
    "Completion": "speculate.completion",
    "generate": "speculate.completion",
    "DraftConfig": "speculate.config",
    "generate_batch": "speculate.completion",
    "Controller": "speculate.controllers",
    "Fixed": "speculate.controllers.fixed",
    "generate_steps": "speculate.batching",
    "Draft": "speculate.types",
    "DraftLimit": "speculate.limits",
    "DraftToken": "speculate.types",
    "Drafter": "speculate.drafters",
    "GenerationStats": "speculate.stats",
    "LookupDrafter": "speculate.drafters",
    "Step": "speculate.types",
    "Verdict": "speculate.types",
    "ChatTemplate": "templates.template",
    "DEMO": "util.paths",
}

# Llama is left out: a subclass of llama_cpp's loads the library.
__all__ = [
    "BUILD_ID",
    "DEMO",
    "GREEDY",
    "ChatTemplate",
    "Completion",
    "Context",
    "Controller",
    "Conversation",
    "Draft",
    "DraftConfig",
    "DraftLimit",
    "DraftToken",
    "Drafter",
    "Fixed",
    "GenerationStats",
    "KVSequence",
    "LayerMask",
    "LookupDrafter",
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
    "generate_batch",
    "generate_steps",
    "model_path",
    "objectives",
    "scan",
    "search",
    "strategies",
]


def _offer_library() -> bool:
    """Let ``import llama_cpp`` work without that package, and let it find our library unless the
    user has named one. Return False if nothing is built."""
    from .util import bindings, build

    try:
        os.environ.setdefault("LLAMA_CPP_LIB_PATH", str(build.LIB_DIR))
    except errors.LibraryError:
        return False
    bindings.offer()
    return True


_is_built = _offer_library()


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # The others need numpy or the library, which may end the process on an older processor.
    if _is_built and not _HOMES[name].startswith(("errors", "util.")):
        from .runtime.processor import cpu_backend

        cpu_backend()
    home = importlib.import_module(f".{_HOMES[name]}", __name__)
    value = home if _HOMES[name].rpartition(".")[2] == name else getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*_HOMES, *__all__})
