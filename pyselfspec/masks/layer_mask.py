"""The attention and feed-forward sublayers of a model that a pass skips. Pure.

Block numbers are 0-based as in GGUF's ``blk.N.``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from ..errors import MaskError
from ..util import records

SKIP_ATTN = 1
SKIP_FFN = 2
EXAMPLE = '{"n_layer": 12, "skip_attn": [4], "skip_ffn": [4, 5]}'


@dataclass(frozen=True, slots=True)
class LayerMask:
    """The attention and feed-forward sublayers of a model that a pass skips.

    Raises MaskError for a block outside ``0..n_layer-1`` and for a mask that skips everything.

    >>> LayerMask.early_exit(4, keep=3).skip_attn
    frozenset({3})
    """

    n_layer: int
    skip_attn: frozenset[int] = frozenset()
    skip_ffn: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        object.__setattr__(self, "skip_attn", frozenset(self.skip_attn))
        object.__setattr__(self, "skip_ffn", frozenset(self.skip_ffn))
        if self.n_layer < 1:
            raise MaskError(f"a mask needs at least one block, got n_layer = {self.n_layer}")
        for sublayer, blocks in (("attention", self.skip_attn), ("feed-forward", self.skip_ffn)):
            outside = sorted(il for il in blocks if not 0 <= il < self.n_layer)
            if outside:
                raise MaskError(
                    f"the mask skips the {sublayer} of block {outside[0]}, "
                    f"but the model has {self.n_layer} blocks (0 to {self.n_layer - 1})"
                )
        if self.n_active == 0:
            raise MaskError(
                f"the mask skips all {self.n_layer} blocks; at least one sublayer of one must run"
            )

    @classmethod
    def full(cls, n_layer: int) -> LayerMask:
        """Return the mask that skips nothing."""
        return cls(n_layer)

    @classmethod
    def skipping(
        cls, n_layer: int, *, attn: Iterable[int] = (), ffn: Iterable[int] = ()
    ) -> LayerMask:
        """Return a mask from lists of blocks to skip."""
        return cls(n_layer, frozenset(attn), frozenset(ffn))

    @classmethod
    def early_exit(cls, n_layer: int, keep: int) -> LayerMask:
        """Run blocks ``0..keep-1`` only, as LayerSkip's exit after ``keep`` blocks."""
        if not 1 <= keep <= n_layer:
            raise MaskError(f"an exit keeps 1 to {n_layer} blocks, got {keep}")
        rest = frozenset(range(keep, n_layer))
        return cls(n_layer, rest, rest)

    @classmethod
    def enter_at(cls, n_layer: int, first: int) -> LayerMask:
        """Run blocks ``first..n_layer-1`` only, for a pass that starts from hidden states."""
        if not 0 <= first < n_layer:
            raise MaskError(f"the first block to run is 0 to {n_layer - 1}, got {first}")
        below = frozenset(range(first))
        return cls(n_layer, below, below)

    @classmethod
    def alternate(cls, n_layer: int) -> LayerMask:
        """Skip every odd block but the first and the last: where SWIFT starts its search.

        Xia et al., "SWIFT: On-the-Fly Self-Speculative Decoding", section 4.1,
        https://arxiv.org/abs/2410.06916
        """
        odd = frozenset(range(1, n_layer - 1, 2))
        return cls(n_layer, odd, odd)

    @property
    def n_active(self) -> int:
        """Sublayers that run, 0..2 * n_layer."""
        return 2 * self.n_layer - len(self.skip_attn) - len(self.skip_ffn)

    @property
    def first_active(self) -> int:
        """The first block that is not skipped whole, where hidden states enter."""
        skipped = self.skip_attn & self.skip_ffn
        return next(il for il in range(self.n_layer) if il not in skipped)

    @property
    def first_skipped(self) -> int:
        """The first block with a skipped sublayer, n_layer when nothing is skipped.

        All blocks before it compute equal results with the mask and without.
        """
        return min(self.skip_attn | self.skip_ffn, default=self.n_layer)

    @property
    def last_active(self) -> int:
        """The last block that is not skipped whole."""
        skipped = self.skip_attn & self.skip_ffn
        return next(il for il in reversed(range(self.n_layer)) if il not in skipped)

    def first_difference(self, other: LayerMask) -> int:
        """Return the first block in which the masks differ, n_layer for equal masks."""
        other.require(self.n_layer)
        differing = (self.skip_attn ^ other.skip_attn) | (self.skip_ffn ^ other.skip_ffn)
        return min(differing, default=self.n_layer)

    def __or__(self, other: LayerMask) -> LayerMask:
        """Skip what either mask skips."""
        other.require(self.n_layer)
        return LayerMask(
            self.n_layer, self.skip_attn | other.skip_attn, self.skip_ffn | other.skip_ffn
        )

    def require(self, n_layer: int) -> LayerMask:
        """Return this mask. Raises MaskError when it was made for another number of blocks."""
        if self.n_layer != n_layer:
            raise MaskError(
                f"the mask is for {self.n_layer} blocks, not for {n_layer}; "
                "use one made for this model"
            )
        return self

    def to_bytes(self) -> bytes:
        """Return one byte per block: 1 skips attention, 2 skips feed-forward, 3 both."""
        return _mask_bytes(self)

    def to_dict(self) -> dict[str, Any]:
        return records.to_dict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LayerMask:
        """Return a mask from parsed JSON. Raises MaskError for other data than a mask."""
        try:
            return records.convert(data, cls, partial=True)
        except records.RecordError as error:
            if isinstance(error.__cause__, MaskError):
                raise error.__cause__ from None
            raise MaskError(f"this is no mask ({error}); a mask is like {EXAMPLE}") from None

    def to_json(self) -> str:
        return records.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> LayerMask:
        """Return a mask from JSON text. Raises MaskError for any other text."""
        try:
            return cls.from_dict(records.parse(text))
        except records.RecordError as error:
            raise MaskError(f"the mask is {error}") from None


@lru_cache(maxsize=256)
def _mask_bytes(mask: LayerMask) -> bytes:
    """Return the bytes of a mask. Cached, since every draft token needs them."""
    return bytes(
        SKIP_ATTN * (il in mask.skip_attn) + SKIP_FFN * (il in mask.skip_ffn)
        for il in range(mask.n_layer)
    )


def entry(base: LayerMask, mask: LayerMask) -> int:
    """Return the block where a pass can start from the base's states: 0 for none, and never after
    the last block that runs."""
    return min(base.first_difference(mask), mask.last_active)
