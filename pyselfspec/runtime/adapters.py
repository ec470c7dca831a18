"""LoRA adapters: small changes of a model's weights, from files of their own.

An adapter adds a product of two narrow matrices to a product with a weight. The model's file stays
as it is, and each pass chooses adapters and their scales. Pure; adapter_files.py loads them.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import ArgumentError


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


MAX_SCALE = 1000.0  # far beyond any use; much larger ones give logits that are no numbers

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
