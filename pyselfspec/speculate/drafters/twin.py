"""Draft with the model's own weights in four bits, for files with weights in F16, BF16 or F32.

The twin is written once into the user's cache folder. Its passes run in the model's own context, on
the K/V that the model has of the text, like those of layer-skip, and read about 0.3 of the bytes.
Zhao et al., "QSpec", https://arxiv.org/abs/2410.11305, draft with quantized weights and activations
of the same model on its K/V.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path

from ...costs.lookup import costs_with_second
from ...costs.table import CostTable
from ...errors import ArgumentError, ModelFileError, SelfSpecWarning
from ...gguf import file as gguf_file
from ...masks.layer_mask import LayerMask
from ...runtime.context import Context
from ...runtime.model import Model, open_beside
from ...runtime.passes import Pass
from ...util import memory, paths
from ...util.files import locked
from ..context_state import kept
from ..limits import DraftLimit
from .layer_skip import LayerSkipDrafter

READS_PICTURES = True  # through the K/V that the model has of them
TYPE = "q4_0"
BYTES_MIN = 1.5  # of a weight on average; with fewer, a twin is hardly smaller
WAIT_S = 3600.0  # for another process that writes the same twin


@dataclass(frozen=True, slots=True)
class Options:
    """The drafter has no options."""


def suggested(context: Context, mask: LayerMask | None) -> Options | None:
    """Return options if the twin was written before, which takes minutes for a large model, and
    fits into free memory."""
    can_fork = context.abilities.can_rollback and context.n_seq_max > 1
    path = _path(context.model)
    if not can_fork or not can_have_twin(context.model) or not _is_written(path):
        return None
    free = memory.available()
    return Options() if free is None or free > path.stat().st_size else None


def make(context: Context, options: Options) -> TwinDrafter:
    """Return a drafter. Raises ArgumentError for a model whose weights are quantized already, and
    what ``convert.quantize.quantize`` and ``open_beside`` raise."""
    context.abilities.require_drafts()
    model = context.model
    # the file is read once, not for every text
    twin = kept(context, Model, TYPE, lambda: open_beside(model, twin_of(model), context.n_cells))
    return TwinDrafter(context, twin)


def twin_of(model: Model) -> Path:
    """Return the file of a model's twin, and write it if there is none or a broken one."""
    if not can_have_twin(model):
        raise ArgumentError(
            f"{model.path.name} is {model.file.file_type} already, so a twin in {TYPE.upper()} "
            "would be hardly smaller; twin is for files in F16, BF16 or F32"
        )
    path = _path(model)
    if not _is_written(path):
        from ...convert.quantize import quantize  # needs gguf, which takes long to import

        path.parent.mkdir(parents=True, exist_ok=True)
        warnings.warn(
            f"writing {model.path.name} in four bits to {path}, once", SelfSpecWarning, stacklevel=2
        )
        with locked(path, "do without twin", WAIT_S):
            if not _is_written(path):
                quantize(model.path, path, TYPE)
    return path


def can_have_twin(model: Model) -> bool:
    """Return whether a twin takes much less memory than the model."""
    return model.file.bytes_per_weight >= BYTES_MIN


def _path(model: Model) -> Path:
    return paths.cache("twins") / f"{model.fingerprint[:32]}-{TYPE}.gguf"


def _is_written(path: Path) -> bool:
    try:
        gguf_file.check(path)
    except ModelFileError:
        return False
    return True


class TwinDrafter(LayerSkipDrafter):
    """Drafts with the weights of a twin, in a fork that reads the model's K/V of the text."""

    name = "twin"

    def __init__(self, context: Context, twin: Model) -> None:
        super().__init__(context, LayerMask.full(context.model.n_layer), share=False)
        self._twin = twin

    @property
    def mask(self) -> LayerMask | None:
        return None

    def costs(self) -> CostTable:
        return costs_with_second(self._context, self._twin.file.weight_bytes())

    def _pass(self, limit: DraftLimit) -> Pass:
        return replace(super()._pass(limit), mask=None, weights=self._twin.handle)
