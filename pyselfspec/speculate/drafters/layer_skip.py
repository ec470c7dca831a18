"""Draft with the model itself, some of its sublayers skipped.

Zhang et al., "Draft & Verify: Lossless Large Language Model Acceleration via Self-Speculative
Decoding", https://arxiv.org/abs/2309.08168. A mask that skips all later blocks is the exit of
Elhoushi et al., "LayerSkip", https://arxiv.org/abs/2404.16710; running the blocks that draft and
check share only once is its section 4.3, here for any mask.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ...errors import ArgumentError
from ...masks.layer_mask import LayerMask
from ...runtime.context import Context, Outputs
from ...runtime.kv import KVSequence
from ..types import After, Draft, DraftLimit, SharedBlocks, Verdict

DRAFT_SEQ_ID = 1


class Drafter:
    """Greedy drafts.

    Where the model allows it, drafts are decoded in the target's own sequence, and the states that
    enter the first block with a skip are kept: the check enters there and rewrites K/V in place.
    Else drafts are decoded in a fork, which sees the full model's K/V of the text so far and is
    dropped before the target needs the place.

    share: False asks for the fork where both would work.
    """

    def __init__(self, context: Context, mask: LayerMask, *, share: bool = True) -> None:
        self._context = context
        self._mask = mask.require(context.model.n_layer)
        self._fork_at = mask.first_skipped  # blocks below it compute the same with the mask
        self.shares = share and context.can_enter(self._fork_at)
        if self.shares:
            self._shared = LayerMask.early_exit(mask.n_layer, self._fork_at)
            self._rest = LayerMask.enter_at(mask.n_layer, self._fork_at)
        if not self.shares and context.n_seq_max <= DRAFT_SEQ_ID:
            raise ArgumentError("drafting needs a context with n_seq_max of at least 2")

    def begin(self, history: Sequence[int]) -> None:
        pass

    def draft(self, history: Sequence[int], limit: DraftLimit) -> Draft:
        start = time.perf_counter_ns()
        n_past = len(history) - 1
        seq = self._context.sequence(0)
        if not self.shares:
            seq = seq.fork(DRAFT_SEQ_ID)
        keeps = False
        try:
            draft = self._guess(seq, n_past, history[-1], limit)
            keeps = self.shares
        finally:
            if not keeps:
                seq.rollback(n_past if self.shares else 0)
        return replace(draft, draft_us=(time.perf_counter_ns() - start) // 1000)

    def _guess(self, seq: KVSequence, n_past: int, token: int, limit: DraftLimit) -> Draft:
        tokens: list[int] = []
        probs: list[float] = []
        states: list[NDArray[np.float32]] = []

        def run(token: int, mask: LayerMask, outputs: Outputs) -> None:
            at = self._fork_at if self.shares else None
            pos = n_past + len(tokens)
            done = self._context.decode(
                [token], seq=seq, pos=pos, mask=mask, hidden_at=at, outputs=outputs
            )
            if done.hidden is not None:
                states.append(done.hidden)

        dropped = None
        after = After.GO_ON
        while after is After.GO_ON:
            run(token, self._mask, self._context.best_only)
            token, p = self._context.argmax(0)
            after = limit.after([*probs, p])
            # the check's own draw tells the end of the text as well, for free
            if after is After.DROP or self._context.model.is_eog(token):
                dropped = (token, p)
                break
            tokens.append(token)
            probs.append(p)
        if self.shares and dropped is None:
            # Not another guess to drop: for the same tokens to check, that took 2 to 3 % longer per
            # step (0.85 B, Q8_0 and Q4_0, exit after a quarter), all of it the head.
            run(token, self._shared, "none")
        shared = SharedBlocks(self._rest, np.concatenate(states)) if self.shares else None
        return Draft(tuple(tokens), tuple(probs), shared=shared, dropped=dropped)

    def accept(self, verdict: Verdict) -> None:
        pass
