"""The sublayers that a model allows to skip, and masks of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce
from itertools import groupby

import numpy as np

from ..errors import ArgumentError
from .layer_mask import LayerMask

SHARE = 0.8  # share of the units; masks that skip more hardly ever agree with the model


@dataclass(frozen=True, slots=True)
class MaskSupport:
    """The blocks of a model that a mask may skip, for each kind of sublayer."""

    n_layer: int
    attn: frozenset[int]
    ffn: frozenset[int]

    @property
    def complete(self) -> bool:
        return len(self.attn) == len(self.ffn) == self.n_layer


class Unit(StrEnum):
    """The unit that a search skips or keeps."""

    ATTN = "attn"
    FFN = "ffn"
    BOTH = "both"  # attention and feed-forward sublayers, each alone
    BLOCK = "block"


@dataclass(frozen=True, slots=True)
class Space:
    """The units that a model allows to skip: one mask per unit, in the order of blocks."""

    n_layer: int
    units: tuple[LayerMask, ...]

    @classmethod
    def of(cls, support: MaskSupport, unit: Unit) -> Space:
        """Return the space of a model. Raises ArgumentError when no unit can be skipped."""
        n, units = support.n_layer, []
        for il in range(n):
            attn, ffn = il in support.attn, il in support.ffn
            if unit in (Unit.ATTN, Unit.BOTH) and attn:
                units.append(LayerMask.skipping(n, attn=[il]))
            if unit in (Unit.FFN, Unit.BOTH) and ffn:
                units.append(LayerMask.skipping(n, ffn=[il]))
            if unit == Unit.BLOCK and attn and ffn and n > 1:
                units.append(LayerMask.skipping(n, attn=[il], ffn=[il]))
        if not units:
            raise ArgumentError(
                f"no {unit} unit of this model can be skipped, see pyselfspec models info"
            )
        return cls(n, tuple(units))

    def mask(self, chosen: Iterable[int]) -> LayerMask:
        """Return the mask that skips these units."""
        return reduce(LayerMask.__or__, (self.units[i] for i in chosen), self.full)

    def inside(self, mask: LayerMask) -> frozenset[int]:
        """Return the units that a mask skips whole."""
        return frozenset(
            i
            for i, unit in enumerate(self.units)
            if unit.skip_attn <= mask.skip_attn and unit.skip_ffn <= mask.skip_ffn
        )

    @property
    def full(self) -> LayerMask:
        return LayerMask.full(self.n_layer)

    def count(self, share: float) -> int:
        """Return the number of units in this share, 0 to 1, of all: at least one, never a whole
        model."""
        whole = all(
            len(set().union(*(getattr(unit, skipped) for unit in self.units))) == self.n_layer
            for skipped in ("skip_attn", "skip_ffn")
        )
        return max(1, min(round(share * len(self.units)), len(self.units) - whole))


def neighbour(space: Space, mask: LayerMask, rng: np.random.Generator) -> LayerMask | None:
    """Return a random mask that skips one unit or block more, or less, or another one instead. None
    if no such mask skips something, but not more than a search would."""
    here = space.inside(mask)
    units = [frozenset({i}) for i in range(len(space.units))]
    numbers = range(len(units))
    blocks = groupby(numbers, key=lambda i: space.units[i].first_skipped)
    units += [block for _il, group in blocks if len(block := frozenset(group)) > 1]
    inside = [unit for unit in units if unit <= here]
    outside = [unit for unit in units if not unit & here]

    def one_of(units: list[frozenset[int]]) -> frozenset[int]:
        return units[rng.integers(len(units))] if units else frozenset()

    for way in rng.permutation(["more", "less", "other"]):
        less = one_of(inside) if way != "more" else frozenset()
        more = one_of(outside) if way != "less" else frozenset()
        there = here - less | more
        if there != here and 0 < len(there) <= max(space.count(SHARE), len(here) - 1):
            return space.mask(there)
    return None
