"""Agreement of masked passes with the full model: the share of its tokens that a draft would have
predicted.

A draft reads the full model's K/V for the text and its own K/V for the tokens it has drafted. So
the full model decodes a chunk once, and masked passes decode windows of its second half in forks
that see the full model's K/V before the window. The tokens of a window are given ("teacher
forcing") and decoded in one batch; a run of equal tokens is a draft that would have been accepted.

Xia et al., "SWIFT: On-the-Fly Self-Speculative Decoding", section 4.1,
https://arxiv.org/abs/2410.06916. Perplexity does not fit drafts: there the mask also applies to the
context, and predictions are compared with the text instead of the model's tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ...errors import ArgumentError
from ...masks.layer_mask import LayerMask
from ...masks.score import Score
from ...runtime.kv import KVSequence
from ..chunks import first_scored
from ..masked_passes import MaskedPasses, TextPart
from . import About, Setting


class Objective:
    """Scores count the tokens of masked passes that differ from the full model's.

    Sequences 0 to n_kept - 1 of the context keep the full model's K/V of the latest chunks; the
    next sequence is for windows.

    Raises ArgumentError for a window larger than a batch and for too few sequences.
    """

    about: ClassVar[About] = About(label="agreement", lost="agreement lost", n_chunks=4)

    def __init__(self, setting: Setting) -> None:
        context, window, n_kept = setting.context, setting.window, setting.n_kept
        if not 1 <= window <= context.n_batch:
            raise ArgumentError(f"window is 1 to {context.n_batch} tokens, got {window}")
        if context.n_seq_max <= n_kept:
            raise ArgumentError(
                f"keeping {n_kept} chunks needs a context with n_seq_max of {n_kept + 1} or more, "
                f"got {context.n_seq_max}"
            )
        self._context = context
        self._chunks = setting.chunks
        self._window = window
        self._cache_bytes = setting.cache_bytes
        self._kept: dict[int, int] = {}  # chunk of each sequence
        self._n_kept = n_kept
        # the full model's tokens by chunk, int32 [n_windows, window]
        self._targets: dict[int, NDArray[np.int32]] = {}
        self.n_sublayers = 0

    @property
    def n_chunks(self) -> int:
        return len(self._chunks)

    def scores(self, chunk: int, base: LayerMask, masks: Sequence[LayerMask]) -> Iterator[Score]:
        target = self._load(chunk)
        windows = self._windows(chunk)
        targets = self._targets[chunk]

        def place(pos: int) -> KVSequence:
            draft = target.fork(self._n_kept)
            draft.rollback(pos)
            return draft

        passes = MaskedPasses(self._context, windows, base, place, self._cache_bytes)
        for mask in masks:
            before = passes.n_sublayers
            got = [self._best(self._window) for decoded in passes.run(mask)]
            self._context.sequence(self._n_kept).drop()
            self.n_sublayers += passes.n_sublayers - before
            yield Score.of_drafts(np.array(got, np.int32) == targets)

    def value(self, mask: LayerMask, score: Score) -> float:
        """Return the share of tokens that equal the full model's, 0 to 1."""
        return score.agreement

    def shown(self, mask: LayerMask, score: Score) -> float:
        return score.agreement

    def error(self, score: Score) -> float | None:
        return score.stderr

    def _windows(self, chunk: int) -> list[TextPart]:
        """Return the whole windows in the second half of a chunk."""
        tokens, n = self._chunks[chunk], self._window
        starts = range(first_scored(len(tokens)), len(tokens) - n + 1, n)
        if not starts:
            raise ArgumentError(
                f"a window of {n} tokens does not fit into the second half of a chunk of "
                f"{len(tokens)} tokens; give a smaller window or a larger n_ctx (--chunk-size)"
            )
        return [TextPart(tokens[pos : pos + n], pos, "all") for pos in starts]

    def _load(self, chunk: int) -> KVSequence:
        """Return the sequence with the full model's K/V of a chunk."""
        seq_id = chunk % self._n_kept
        seq = self._context.sequence(seq_id)
        if self._kept.get(seq_id) != chunk:
            seq.drop()
            windows = self._windows(chunk)
            self._kept.pop(seq_id, None)
            self._context.prefill(self._chunks[chunk][: windows[0].pos], seq)
            targets = []
            for window in windows:  # the width of the masked passes: rounding depends on it
                self._context.decode(window.tokens, seq=seq)
                targets.append(self._best(self._window))
            self._targets[chunk] = np.array(targets, np.int32)
            self._kept[seq_id] = chunk
            self.n_sublayers += 2 * self._context.model.n_layer * seq.n_past
        return seq

    def _best(self, n_rows: int) -> list[int]:
        """Return the likeliest next token of each row of the last batch."""
        return [self._context.argmax(row)[0] for row in range(n_rows)]
