"""Perplexity of masked passes, computed as llama.cpp's perplexity program does.

Chunks of n_ctx tokens, the K/V cache empty before each, the second half scored: the first half
gives the model some context. The mask holds for the whole chunk. So the number says what a model
without these parts is worth; for what a draft is worth see match.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ..masks.layer_mask import LayerMask
from ..masks.score import Score, token_loss
from ..runtime.context import Context
from ..runtime.kv import KVSequence
from .chunks import first_scored
from .masked_passes import CACHE_BYTES, Batch, MaskedPasses

Tokens = tuple[int, ...]


class Perplexity:
    """Scores masks on chunks of a text, in nats per token.

    context: room for one chunk; its sequence 0 is used.
    """

    name = "ppl"

    def __init__(
        self, context: Context, chunks: Sequence[Tokens], *, cache_bytes: int = CACHE_BYTES
    ) -> None:
        self._context = context
        self._chunks = chunks
        self._cache_bytes = cache_bytes
        self._full: dict[int, NDArray[np.float64]] = {}  # losses of the full model, by chunk
        self.n_parts = 0  # attention and feed-forward parts run so far, per token

    @property
    def n_chunks(self) -> int:
        return len(self._chunks)

    def scores(self, chunk: int, base: LayerMask, masks: Sequence[LayerMask]) -> Iterator[Score]:
        """A score for each mask, in turn. What masks share with base runs once, see MaskedPasses
        on their best order."""
        if chunk not in self._full:
            full = LayerMask.full(base.n_layer)
            self._full[chunk] = self._losses(chunk, self._passes(chunk, full), full)
        passes = self._passes(chunk, base)
        for mask in masks:
            yield Score.of(self._losses(chunk, passes, mask), self._full[chunk])

    def _passes(self, chunk: int, base: LayerMask) -> MaskedPasses:
        return MaskedPasses(
            self._context,
            batches(self._chunks[chunk], self._context.n_batch),
            base,
            self._place,
            self._cache_bytes,
        )

    def _place(self, pos: int) -> KVSequence:
        seq = self._context.sequence()
        seq.rollback(pos)
        return seq

    def _losses(self, chunk: int, passes: MaskedPasses, mask: LayerMask) -> NDArray[np.float64]:
        """Float64 [n_tokens scored]."""
        tokens = self._chunks[chunk]
        before = passes.n_parts
        rows = (row for decoded in passes.run(mask) for row in decoded.rows())
        targets = tokens[first_scored(len(tokens)) + 1 :]
        losses = [token_loss(row, token) for row, token in zip(rows, targets, strict=True)]
        self.n_parts += passes.n_parts - before
        return np.array(losses)


def batches(chunk: Tokens, n_batch: int) -> list[Batch]:
    """A chunk as batches, those of its context without outputs. Its last token predicts nothing
    that is scored and is left out.

    >>> [(b.pos, len(b.tokens), b.outputs) for b in batches((1, 2, 3, 4, 5, 6, 7, 8), 3)]
    [(0, 3, 'none'), (3, 1, 'none'), (4, 3, 'all')]
    """
    first = first_scored(len(chunk))
    found = []
    for start, end in ((0, first), (first, len(chunk) - 1)):
        for pos in range(start, end, n_batch):
            part = chunk[pos : min(pos + n_batch, end)]
            found.append(Batch(part, pos, "all" if start else "none"))
    return found
