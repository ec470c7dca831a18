"""Lossless self-speculative generation for quantized GGUF models, with nothing but the model
itself.

Names are loaded on first use, so that the parts that need no native library can be imported without
it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from . import errors
    from .errors import SelfSpecError
    from .masks.layer_mask import LayerMask
    from .runtime._lib import BUILD_ID
    from .runtime.context import Context
    from .runtime.kv import KVSequence
    from .runtime.model import Model
    from .runtime.sampling import GREEDY, Sampler, SamplingParams
    from .selection import objectives, strategies
    from .selection.scanning import ScanResult, scan
    from .selection.searching import SearchResult, search
    from .speculate import controllers, drafters
    from .speculate.adapt import Adapt
    from .speculate.completion import Completion, generate
    from .speculate.controllers import Controller
    from .speculate.controllers.fixed import Fixed
    from .speculate.loop import generate_steps
    from .speculate.types import Draft, DraftLimit, GenerationStats, Step, Verdict
    from .util.paths import DEMO

# Where each public name is defined; a module stands for itself.
_HOMES = {
    "errors": "errors",
    "SelfSpecError": "errors",
    "LayerMask": "masks.layer_mask",
    "BUILD_ID": "runtime._lib",
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
    "objectives",
    "scan",
    "search",
    "strategies",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = importlib.import_module(f".{_HOMES[name]}", __name__)
    value = home if _HOMES[name].rpartition(".")[2] == name else getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
