"""Draft with the model itself, some of its sublayers skipped.

Zhang et al., "Draft & Verify: Lossless Large Language Model Acceleration via Self-Speculative
Decoding", https://arxiv.org/abs/2309.08168. A mask that skips all later blocks is the exit of
Elhoushi et al., "LayerSkip", https://arxiv.org/abs/2404.16710.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from ..context import Context
from ..errors import ArgumentError
from ..types import Draft, DraftLimit, LayerMask, Verdict

DRAFT_SEQ_ID = 1


class Drafter:
    """Greedy drafts in a sequence forked from the target's.

    The fork sees the full model's K/V of the text so far. Its own cells hold K/V of a masked pass,
    stale where attention was skipped, so they are dropped before the target needs the place.
    """

    def __init__(self, context: Context, mask: LayerMask) -> None:
        if context.n_seq_max <= DRAFT_SEQ_ID:
            raise ArgumentError("drafting needs a context with n_seq_max of at least 2")
        self._context = context
        self._mask = mask.require(context.model.n_layer)

    def begin(self, history: Sequence[int]) -> None:
        pass

    def draft(self, history: Sequence[int], limit: DraftLimit) -> Draft:
        start = time.perf_counter_ns()
        context = self._context
        tokens: list[int] = []
        probs: list[float] = []
        n_past = len(history) - 1
        seq = context.sequence(0).fork(DRAFT_SEQ_ID)
        try:
            token = history[-1]
            while len(tokens) < limit.n_max:
                context.decode(
                    [token], seq=seq, pos=n_past + len(tokens), mask=self._mask, outputs="last"
                )
                token, p = context.argmax(0)
                tokens.append(token)
                probs.append(p)
                if p < limit.p_min or context.model.is_eog(token):
                    break
        finally:
            seq.drop()
        return Draft(tuple(tokens), tuple(probs), (time.perf_counter_ns() - start) // 1000)

    def accept(self, verdict: Verdict) -> None:
        pass
