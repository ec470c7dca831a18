"""Draft with the model itself, or with a mask of it, over a part of the text: its first tokens and
its last ones.

For long texts, where attention costs more than the weights: a draft token pays for a few hundred
cells of K/V, however long the text is, and the cells of all others are skipped. The first tokens
are kept since attention leans on them (Xiao et al., "Efficient Streaming Language Models with
Attention Sinks", https://arxiv.org/abs/2309.17453). Drafting with a part of the K/V is from Sun et
al., "TriForce", https://arxiv.org/abs/2404.11912, and Chen et al., "MagicDec",
https://arxiv.org/abs/2408.11049. Here nothing is copied or computed for it: the cells are lent to a
sequence of the draft's own, at the positions that they have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...costs.by_bytes import costs_by_kv
from ...costs.calibration import measured_costs
from ...costs.table import CostTable
from ...errors import ArgumentError
from ...masks.layer_mask import LayerMask
from ...runtime.context import Context
from ...runtime.kv import KVSequence
from ...runtime.ledger import Part
from . import layer_skip


@dataclass(frozen=True, slots=True)
class Options:
    """n_first, n_last: tokens that drafts see, at the beginning and at the end of the text; by
        default 256 together, which is how many cells llama.cpp looks at in one go.
    mask: what drafts skip besides; None: nothing.
    """

    n_first: int = 4
    n_last: int = 252
    mask: LayerMask | None = None

    def __post_init__(self) -> None:
        if self.n_first < 0:
            raise ArgumentError(f"n_first is 0 or more, got {self.n_first}")
        if self.n_last < 1:
            raise ArgumentError(f"n_last is 1 or more, got {self.n_last}")


def make(context: Context, options: Options) -> Drafter:
    """Raises ArgumentError for a part that is no smaller than the context."""
    part = Part(options.n_first, options.n_last)
    if sum(part) >= context.n_ctx:
        raise ArgumentError(
            f"n_first and n_last are {sum(part)} tokens together, and the context has "
            f"{context.n_ctx}; drafts are to see less than the whole text"
        )
    return Drafter(context, options.mask or LayerMask.full(context.model.n_layer), part)


class Drafter(layer_skip.Drafter):
    """Drafts in a fork that holds a part of the text."""

    def __init__(self, context: Context, mask: LayerMask, part: Part) -> None:
        super().__init__(context, mask, share=False)
        self._part = part

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"drafter": "partial-kv", "mask": self._mask.to_dict(), **self._part._asdict()}

    def costs(self) -> CostTable:
        known = measured_costs(self._context, self.identity)
        if known is not None:
            return known
        context, file = self._context, self._context.model.file
        kv_bytes = file.kv_bytes(1, context.type_k, context.type_v)
        return costs_by_kv(file, self._mask, kv_bytes, sum(self._part), context.n_ctx)

    def _fork_into(self, fork: KVSequence) -> None:
        self._seq.fork(fork.seq_id, self._part)
