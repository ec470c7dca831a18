"""Other masks tried while a text is being generated, and taken over where they are better.

After Xia et al., "SWIFT: On-the-Fly Self-Speculative Decoding", section 4.1,
https://arxiv.org/abs/2410.06916: the tokens that the full model has just chosen tell for any mask
which of them a draft would have got right, with one masked pass over them that reads the full
model's K/V. Unlike there a trial compares two masks on the same tokens, the one in use and a
neighbour of it, by the speed to be expected; and it is made only when there is time for it.

Masks change what is drafted and when, never the text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..costs.calibration import mask_costs
from ..costs.expected import PassCosts
from ..costs.table import N_WIDTH, CostTable
from ..errors import ArgumentError
from ..masks.layer_mask import LayerMask
from ..masks.score import Score
from ..masks.space import Space, Unit
from ..runtime import _lib
from ..runtime.context import Context
from ..runtime.kv import KVSequence
from ..runtime.passes import Pass, Rows
from .candidates import State
from .controllers import Controller, Decision, explain
from .drafters import Drafter, Hears, drafted
from .requests import Request, Work
from .types import Draft, DraftLimit, Step, Verdict

SHARE = 0.03  # of the time
N_TRIM = 8  # candidates after which freed memory is given back
WINDOW = N_WIDTH  # tokens of a trial: wider passes cost more per token on CPUs


@dataclass(frozen=True, slots=True)
class Adapt:
    """share: of the time, for trials at most.
    state: to go on from; None: start with the mask that would be used anyway.
    """

    share: float = SHARE
    state: State | None = None

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ArgumentError(
                f"the share of the time is above 0 and at most 1, got {self.share:g}"
            )

    def state_for(self, mask: LayerMask, seed: int) -> State:
        """The state to begin with, for a text that would draft with this mask."""
        return self.state or State(mask, seed)


Built = tuple[Drafter, Controller]


class Adaptation:
    """Drafter and controller in one: passes everything on to those of the mask in use, and makes
    trials before drafts.

    build: a new drafter and a new controller for a mask, since what the old ones have learned is
        true of the old mask only.
    clock: nanoseconds.

    The time of trials is measured, so which masks are tried when depends on the machine, unless the
    share is 1. The order of masks depends on the seed in the state.

    Raises ArgumentError for a context without room for trials.
    """

    def __init__(
        self,
        context: Context,
        state: State,
        build: Callable[[LayerMask], Built],
        share: float = SHARE,
        costs: PassCosts | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        if context.n_seq_max < 2 or context.n_batch < WINDOW or not context.can_rollback:
            raise ArgumentError(
                "trying masks needs a K/V cache that can take tokens back, n_seq_max of at least 2 "
                f"and n_batch of at least {WINDOW}"
            )
        self.state = self.began = state
        self._context = context
        self._space = Space.of(context.mask_support, Unit.BOTH)
        self._costs = costs or mask_costs(context)
        self._build = build
        self._share = share
        self._clock = clock
        self._drafter, self.controller = build(state.mask)
        self._seq = context.sequence()
        self._n_used = 0  # tokens of the text that are the prompt's or were in a trial
        self._costs_of_trial: float | None = None  # by the table
        self._us: float | None = None  # of the last trial, over what the table says

    # as a drafter

    @property
    def mask(self) -> LayerMask:
        return self.state.mask

    @property
    def identity(self) -> Mapping[str, Any]:
        return self._drafter.identity

    def costs(self) -> CostTable:
        return self._drafter.costs()

    def begin(self, seq: KVSequence, history: Sequence[int]) -> None:
        self._seq = seq
        self._n_used = len(history)
        self._drafter.begin(seq, history)

    def draft(self, history: Sequence[int], limit: DraftLimit) -> Work[Draft]:
        drafter = self._drafter
        if self._has_room(history):
            yield from self._compare(history)
        if self._drafter is not drafter:
            return Draft()  # the limit is that of the controller before
        return (yield from drafted(drafter, history, limit))

    def hear(self, draft: Draft, verdict: Verdict, rows: range, best: Callable[[int], int]) -> None:
        if isinstance(self._drafter, Hears):
            self._drafter.hear(draft, verdict, rows, best)

    def accept(self, verdict: Verdict) -> None:
        self._drafter.accept(verdict)

    def close(self) -> None:
        self._drafter.close()

    # as a controller

    def limit(self, n_past: int) -> DraftLimit:
        return self.controller.limit(n_past)

    def observe(self, step: Step) -> None:
        self.state = replace(
            self.state, n_steps=self.state.n_steps + 1, step_us=self.state.step_us + step.us
        )
        self.controller.observe(step)

    def explain(self) -> Decision | None:
        return explain(self.controller)

    def summary(self) -> dict[str, int]:
        """What has been done since the beginning, ready for JSON."""
        now, began = self.state, self.began
        return {
            "n_tried": now.n_candidates - began.n_candidates,
            "n_changes": now.n_changes - began.n_changes,
            "trial_us": now.trial_us - began.trial_us,
        }

    # trials

    def _has_room(self, history: Sequence[int]) -> bool:
        """Enough new tokens, cells for them once more, and a sequence to try them in."""
        n = len(history)
        room = n - 1 + WINDOW <= self._context.n_ctx and self._context.has_spare
        return n - self._n_used >= WINDOW and room

    def _compare(self, history: Sequence[int]) -> Work[None]:
        """Try both masks on the last tokens, if there is time for it."""
        if self.state.candidate is None:
            self.state, self._costs_of_trial = self.state.with_candidate(self._space), None
        state = self.state
        if state.candidate is None:
            return
        expected = self._costs_of_trial
        if expected is None:
            expected = sum(self._costs.wide(m, WINDOW) for m in (state.mask, state.candidate))
            self._costs_of_trial = expected  # asked for before every step
        # a step takes longer than a plain token, so the first estimate is on the safe side
        unit_us = self._us or state.step_us / state.n_steps
        if not state.affords(expected * unit_us, self._share):
            return
        start = self._clock()
        score, candidate_score = yield from self._scores(history, (state.mask, state.candidate))
        self.state = state.evaluated(score, candidate_score, self._costs)
        if self.state.mask != state.mask:
            self._drafter.close()
            self._drafter, self.controller = self._build(self.state.mask)
            self._drafter.begin(self._seq, history)
        us = (self._clock() - start) // 1000
        self._us = us / expected
        self._n_used = len(history)
        if self.state.n_candidates % N_TRIM == 0 and self.state.candidate is None:
            _lib.release_memory()  # of graphs of masks that were tried
        self.state = replace(self.state, trial_us=self.state.trial_us + us)

    def _scores(self, history: Sequence[int], masks: Sequence[LayerMask]) -> Work[list[Score]]:
        """Of each mask, which of the last tokens it would have drafted."""
        pos = len(history) - 1 - WINDOW
        given, wanted = history[pos:-1], np.array(history[pos + 1 :])
        scores = []
        with self._context.spare_sequence() as fork:
            self._seq.fork(fork.seq_id)
            for mask in masks:
                fork.rollback(pos)
                answer = yield Request(Rows.of(fork.seq_id, pos, given), Pass(mask))
                drafted = [answer.argmax(row)[0] for row in range(len(given))]
                scores.append(Score.of_drafts((np.array(drafted) == wanted)[None]))
        return scores
