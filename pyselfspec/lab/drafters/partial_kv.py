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

from collections.abc import Sequence
from dataclasses import dataclass

from ...costs.by_bytes import BYTES_PER_US, costs_by_bytes
from ...costs.table import Costs, CostTable
from ...errors import ArgumentError
from ...masks.layer_mask import LayerMask
from ...runtime.context import Context
from ...runtime.ffi.load import llama
from ...runtime.kv import KVSequence
from ...runtime.passes import Pass, Rows
from ...speculate.drafters import Drafter
from ...speculate.drafters._chain import Chain
from ...speculate.limits import DraftLimit
from ...speculate.pass_requests import PassRequest, Work
from ...speculate.types import Draft


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


def make(context: Context, options: Options) -> PartialKVDrafter:
    """Return a drafter. Raises ArgumentError for a part that is not smaller than the context."""
    n_seen = options.n_first + options.n_last
    if n_seen >= context.n_ctx:
        raise ArgumentError(
            f"n_first and n_last are {n_seen} tokens together, and the context has "
            f"{context.n_ctx}; drafts are to see less than the whole text"
        )
    return PartialKVDrafter(context, options)


class PartialKVDrafter(Drafter):
    """Drafts in a fork that holds a part of the text.

    Raises UnsupportedError for a memory that cannot remove any tail, ArgumentError for a context
    without a sequence to spare.
    """

    name = "partial-kv"

    def __init__(self, context: Context, options: Options) -> None:
        super().__init__(context)
        context.abilities.require_rollback()
        context.require_spare()
        self._mask = options.mask or LayerMask.full(context.model.n_layer)
        self._mask.require(context.model.n_layer)
        self._n_first, self._n_last = options.n_first, options.n_last
        self._seq = context.sequence()

    @property
    def mask(self) -> LayerMask:
        return self._mask

    def costs(self) -> CostTable:
        """Return estimates from the bytes of weights and K/V that passes read."""
        context, file = self._context, self._context.model.file
        base = costs_by_bytes(file, self._mask, shares=False).levels[0]
        kv_bytes = file.kv_bytes(1, context.options.type_k, context.options.type_v)  # of a token
        attending = 1 - len(self._mask.skip_attn) / self._mask.n_layer
        n_seen = self._n_first + self._n_last

        def level(n_past: int) -> Costs:
            longer = 1 + kv_bytes * n_past / file.weight_bytes()
            full_us = tuple(us * longer for us in base.full_us)
            seen_us = attending * kv_bytes * min(n_past, n_seen) / BYTES_PER_US
            return Costs(n_past, full_us, full_us, base.token_us + seen_us, 0.0)

        return CostTable(tuple(level(n_past) for n_past in (0, n_seen, context.n_ctx)))

    def begin(self, seq: KVSequence, history: Sequence[int]) -> None:
        self._seq = seq

    def draft(self, history: Sequence[int], limit: DraftLimit) -> Draft | Work[Draft]:
        can = limit.n_max > 0 and self._context.has_spare
        return self._drafted(history, limit) if can else Draft()

    def _drafted(self, history: Sequence[int], limit: DraftLimit) -> Work[Draft]:
        chain = Chain(Draft(), limit, self._context.model.is_eog, self.name)
        head = self._context.best_head if limit.draw is None else "logits"
        token, pos = history[-1], len(history) - 1
        with self._context.spare_sequence() as fork:
            self._fork_part(fork, pos)
            while chain.is_open:
                rows = Rows.of(fork.seq_id, pos, [token], "last")
                result = yield PassRequest(rows, Pass(self._mask, head=head))
                pick = limit.select(result, 0)
                chain.add(pick)
                token, pos = pick.token, pos + 1
        return chain.draft()

    def _fork_part(self, fork: KVSequence, n_past: int) -> None:
        """Make the fork hold the first tokens of the text and the last ones. The cells are shared;
        the fork's record of tokens ends with the first ones."""
        self._seq.fork(fork.seq_id)
        first, last = self._n_first, n_past - self._n_last
        if first < last:
            with self._context.lock():
                memory = llama.llama_get_memory(self._context.handle)
                llama.llama_memory_seq_rm(memory, fork.seq_id, first, last)
            self._context.sequence_table.truncate(fork.seq_id, first)
