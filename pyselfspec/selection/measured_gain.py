"""A short measurement of a mask's gain, before it becomes a model's profile."""

from __future__ import annotations

from statistics import median
from typing import Unpack

from ..masks.layer_mask import LayerMask
from ..runtime.model import Model
from ..util.progress import OnProgress, Progress, ignore_progress
from . import scoring
from .options import ScanOptions


def measured_gain(
    model: Model,
    mask: LayerMask,
    *,
    progress: OnProgress = ignore_progress,
    **options: Unpack[ScanOptions],
) -> float:
    """Return the speed of generation with a mask over that of plain decoding.

    Continues each chunk of the text once in both ways, one right after the other; the result is the
    median ratio, so that one disturbed text does not decide. Raises the errors of
    scoring.open_scoring.
    """
    full = LayerMask.full(mask.n_layer)
    with scoring.open_scoring(model, "measured-speed", progress=progress, **options) as opened:
        ratios, n_chunks = [], opened.objective.n_chunks
        for chunk in range(n_chunks):
            progress(Progress("measuring the gain", chunk, n_chunks))
            plain, drafted = opened.objective.scores(chunk, full, [full, mask])
            ratios.append(plain.mean / drafted.mean)
        progress(Progress("measuring the gain", n_chunks, n_chunks))
    return median(ratios)
