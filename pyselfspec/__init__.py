"""Lossless self-speculative generation for quantized GGUF models, with nothing but the model
itself."""

from . import controllers, drafters, errors
from ._lib import BUILD_ID
from .adapt import Adapt
from .completion import Completion, generate
from .context import Context
from .controllers import Controller
from .controllers.fixed import Fixed
from .errors import SelfSpecError
from .kv import KVSequence
from .loop import generate_steps
from .model import Model
from .sampling import GREEDY, Sampler, SamplingParams
from .types import Draft, DraftLimit, GenerationStats, LayerMask, Step, Verdict

__version__ = "0.1.0"

__all__ = [
    "BUILD_ID",
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
    "SelfSpecError",
    "Step",
    "Verdict",
    "controllers",
    "drafters",
    "errors",
    "generate",
    "generate_steps",
]
