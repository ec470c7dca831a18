"""Draft with the model or a mask of it, reading K/V of the first and the last tokens of the text
only.

Meant for long texts, in which attention costs more than the weights: a draft token reads a few
hundred cells of K/V, however long the text is. The first tokens are kept since attention relies on
them (Xiao et al., "Efficient Streaming Language Models with
Attention Sinks", https://arxiv.org/abs/2309.17453). Drafting with a part of the K/V is from Sun et
al., "TriForce", https://arxiv.org/abs/2404.11912, and Chen et al., "MagicDec",
https://arxiv.org/abs/2408.11049. Here no K/V is copied or computed for it: the draft's own sequence
shares these cells, at their positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...costs.by_bytes import costs_by_kv
from ...costs.lookup import calibrated_costs
from ...costs.table import CostTable
from ...errors import ArgumentError
from ...masks.layer_mask import LayerMask
from ...runtime.context import Context
from ...runtime.kv import KVSequence
from ...runtime.sequence_table import Part
from ...speculate.drafters import layer_skip


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the drafter.

    n_first, n_last: number of tokens that drafts read at the beginning and at the end of the text;
        256 together by default, the number of cells that llama.cpp processes at once.
    mask: sublayers that draft passes also skip; None: none.
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
    """Return a drafter. Raises ArgumentError for a part that is not smaller than the context."""
    part = Part(options.n_first, options.n_last)
    if sum(part) >= context.n_ctx:
        raise ArgumentError(
            f"n_first and n_last are {sum(part)} tokens together, and the context has "
            f"{context.n_ctx}; drafts are to see less than the whole text"
        )
    return Drafter(context, options.mask or LayerMask.full(context.model.n_layer), part)


class Drafter(layer_skip.Drafter):
    """Drafts in a fork that holds a part of the text."""

    name = "partial-kv"

    def __init__(self, context: Context, mask: LayerMask, part: Part) -> None:
        super().__init__(context, mask, share=False)
        self._part = part

    @property
    def identity(self) -> Mapping[str, Any]:
        return {"drafter": self.name, "mask": self._mask.to_dict(), **self._part._asdict()}

    def costs(self) -> CostTable:
        known = calibrated_costs(self._context, self.identity)
        if known is not None:
            return known
        context, file = self._context, self._context.model.file
        kv_bytes = file.kv_bytes(1, context.type_k, context.type_v)
        return costs_by_kv(file, self._mask, kv_bytes, sum(self._part), context.n_ctx)

    def _fork_into(self, fork: KVSequence) -> None:
        self._seq.fork(fork.seq_id, self._part)
