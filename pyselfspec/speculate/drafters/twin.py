"""Draft with the model's own weights in four bits, for files with weights in F16, BF16 or F32.

The twin is written once into the user's cache folder. It drafts as a second model does, see
model.py, and is right more often than another small model: a pass of it reads about 0.3 of the
bytes. Zhao et al., "QSpec", https://arxiv.org/abs/2410.11305, draft with quantized weights and
activations of the same model.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

from ...errors import ArgumentError, SelfSpecWarning
from ...runtime.context import Context
from ...runtime.model import Model
from ...util import paths
from ...util.files import locked
from ._second_model.reader import opened
from .model import ModelDrafter

TYPE = "q4_0"
BYTES_MIN = 1.5  # of a weight on average; with fewer, a twin is hardly smaller
WAIT_S = 3600.0  # for another process that writes the same twin


@dataclass(frozen=True, slots=True)
class Options:
    """The drafter has no options."""


def make(context: Context, options: Options) -> TwinDrafter:
    """Return a drafter. Raises ArgumentError for a model whose weights are quantized already, and
    what ``convert.quantize.quantize`` and ``reader.opened`` raise."""
    context.abilities.require_drafts()
    path = twin_of(context.model)
    return TwinDrafter(context, opened(context, path, lambda model: None))


def twin_of(model: Model) -> Path:
    """Return the file of a model's twin, and write it if there is none."""
    if sum(each.n_bytes for each in model.file.tensors) < BYTES_MIN * model.file.n_params:
        raise ArgumentError(
            f"{model.path.name} is {model.file.file_type} already, so a twin in {TYPE.upper()} "
            "would be hardly smaller; twin is for files in F16, BF16 or F32"
        )
    path = paths.cache("twins") / f"{model.fingerprint[:32]}-{TYPE}.gguf"
    if not path.exists():
        from ...convert.quantize import quantize  # needs gguf, which takes long to import

        path.parent.mkdir(parents=True, exist_ok=True)
        warnings.warn(
            f"writing {model.path.name} in four bits to {path}, once", SelfSpecWarning, stacklevel=2
        )
        with locked(path, "do without twin", WAIT_S):
            if not path.exists():
                quantize(model.path, path, TYPE)
    return path


class TwinDrafter(ModelDrafter):
    """Drafts with the model's twin."""

    name = "twin"
