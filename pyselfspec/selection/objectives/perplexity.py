"""Perplexity of masked passes, computed as llama.cpp's perplexity program does.

Each chunk starts with an empty K/V cache; its second half is scored, the first is context. The mask
applies to the whole chunk, so this measures a model without these sublayers; agreement.py measures
drafts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ...masks.layer_mask import LayerMask
from ...masks.score import Score, token_loss
from ...runtime.kv import KVSequence
from ..chunks import first_scored
from ..masked_passes import MaskedPasses, TextPart
from . import About, Setting


class Objective:
    """Scores are in nats per token. Uses sequence 0 of the context."""

    about: ClassVar[About] = About(
        label="perplexity",
        lost="nats per token lost",
        n_chunks=15,
        higher_is_better=False,
        writes_text=False,
        results="perplexity",
    )

    def __init__(self, setting: Setting) -> None:
        self._context = setting.context
        self._chunks = setting.chunks
        self._cache_bytes = setting.cache_bytes
        self._full: dict[int, NDArray[np.float64]] = {}  # losses of the full model, by chunk
        self.n_sublayers = 0

    @property
    def n_chunks(self) -> int:
        return len(self._chunks)

    def scores(self, chunk: int, base: LayerMask, masks: Sequence[LayerMask]) -> Iterator[Score]:
        if chunk not in self._full:
            full = LayerMask.full(base.n_layer)
            self._full[chunk] = self._losses(chunk, self._passes(chunk, full), full)
        passes = self._passes(chunk, base)
        for mask in masks:
            yield Score.of(self._losses(chunk, passes, mask), self._full[chunk])

    def value(self, mask: LayerMask, score: Score) -> float:
        """Return the full model's perplexity over the mask's; 1 if the mask does no harm."""
        return math.exp(-max(score.mean_excess, -700.0))

    def shown(self, mask: LayerMask, score: Score) -> float:
        return score.perplexity

    def error(self, score: Score) -> float | None:
        """Return the standard error of the difference from the full model's perplexity."""
        return score.perplexity * score.stderr_excess

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
        """Return the loss of every scored token in nats, float64 [n_scored]."""
        tokens = self._chunks[chunk]
        before = passes.n_sublayers
        rows = (row for decoded in passes.run(mask) for row in decoded.rows())
        targets = tokens[first_scored(len(tokens)) + 1 :]
        losses = [token_loss(row, token) for row, token in zip(rows, targets, strict=True)]
        self.n_sublayers += passes.n_sublayers - before
        return np.array(losses)


def batches(chunk: tuple[int, ...], n_batch: int) -> list[TextPart]:
    """Split a chunk into batches; those of its first half have no outputs. The last token is left
    out, since it predicts no scored token.

    >>> [(b.pos, len(b.tokens), b.outputs) for b in batches((1, 2, 3, 4, 5, 6, 7, 8), 3)]
    [(0, 3, 'none'), (3, 1, 'none'), (4, 3, 'all')]
    """
    first = first_scored(len(chunk))
    found = []
    for start, end in ((0, first), (first, len(chunk) - 1)):
        for pos in range(start, end, n_batch):
            piece = chunk[pos : min(pos + n_batch, end)]
            found.append(TextPart(piece, pos, "all" if start else "none"))
    return found
