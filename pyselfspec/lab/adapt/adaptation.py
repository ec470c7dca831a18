"""Other masks tried while a text is generated, and taken over where they are faster.

After Xia et al., "SWIFT: On-the-Fly Self-Speculative Decoding", section 4.1,
https://arxiv.org/abs/2410.06916: the tokens that the full model has just chosen show for any mask
which of them a draft would have got right, with one masked pass over them that reads the full
model's K/V. Unlike in the paper, a trial compares two masks on the same tokens, the one in use and
a neighbour of it, by their expected speed; and it takes place only when there is time for it.

Masks change what is drafted and when, never the text.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ...costs.lookup import mask_costs
from ...costs.speedup import PassCosts
from ...costs.table import N_WIDTH
from ...errors import ArgumentError
from ...masks import profiles
from ...masks.layer_mask import LayerMask
from ...masks.score import Score
from ...masks.space import Space, Unit
from ...runtime.context import Context
from ...runtime.ffi.devices import release_memory
from ...runtime.kv import KVSequence
from ...runtime.passes import Pass, Rows
from ...speculate import hit_rates
from ...speculate.config import AUTO, DraftConfig
from ...speculate.controllers import Controller, Decision, explain
from ...speculate.drafters import Drafter, timed_draft
from ...speculate.drafters.layer_skip import default_mask
from ...speculate.limits import DraftLimit
from ...speculate.pass_requests import PassRequest, Work
from ...speculate.resolve import DraftSetup, resolve
from ...speculate.types import Draft, Step
from ...util.closable import Closing
from .state import State

SHARE = 0.03  # of the time
N_TRIM = 8  # candidates after which freed memory is given back
WINDOW = N_WIDTH  # tokens of a trial: wider passes cost more per token on CPUs


@dataclass(frozen=True, slots=True)
class Adapt:
    """Settings of adapting.

    share: largest share of the time for trials, above 0 and at most 1.
    state: the state to continue from; None: start with the mask that would be used anyway.
    """

    share: float = SHARE
    state: State | None = None

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ArgumentError(f"share must be above 0 and at most 1, got {self.share:g}")


Built = tuple[Drafter, Controller, DraftSetup | None]


def start(
    context: Context,
    config: DraftConfig | None = None,
    settings: Adapt | None = None,
    *,
    seed: int = 0,
    seq: KVSequence | None = None,
) -> Adaptation:
    """Return the adaptation for one text in this context; ``close`` it after the text.

    Its drafter and its controller are for an ordinary ``Completion``:

    >>> adaptation = start(context)                                         # doctest: +SKIP
    >>> Completion(context, "Once", adaptation.drafter, controller=adaptation.controller)

    config: how to draft; its mask is the first one. seed: decides the order of candidates.
    seq: the sequence of the text, by default sequence 0.

    Raises ArgumentError where nothing is drafted with a mask, and what `resolve` raises.
    """
    config, settings = config or DraftConfig(), settings or Adapt()
    seq_id = 0 if seq is None else seq.seq_id
    if settings.state is not None:
        if config.mask is not None:
            raise ArgumentError("adapt.state has a mask of its own; give one or the other")
        config = replace(config, mask=settings.state.mask.require(context.model.n_layer))
    first = _setup_with_mask(context, config)
    config = replace(config, draft=first.name, options=tuple(first.options.values()))

    def build(mask: LayerMask) -> Built:
        setup = resolve(context, config.with_mask(mask))
        assert setup is not None
        controller = setup.controller(config.controller, seq_id, continues=False)
        return setup.make(), controller, setup

    assert first.mask is not None
    state = settings.state or State(first.mask, seed)
    return Adaptation(context, state, build, settings.share)


def _setup_with_mask(context: Context, config: DraftConfig) -> DraftSetup:
    """Return the setup of a config; AUTO drafts with a mask even where none is known to pay."""
    setup = None if config.drafter is not None else resolve(context, config)
    if config.draft == AUTO and setup is not None and setup.mask is None:
        profiled = profiles.mask_for(context.model) if config.profile else None
        mask = profiled or default_mask(context) or LayerMask.full(context.model.n_layer)
        setup = resolve(context, replace(config, mask=mask))
    if setup is None or setup.mask is None:
        raise ArgumentError("--adapt needs a drafter that uses a mask (layer-skip)")
    return setup


class Adaptation(Closing):
    """The masks of one text: the state, and the drafter and the controller of the mask in use.

    drafter, controller: the objects to hand to a completion; they stay valid when masks change.
    build: makes a new drafter and a new controller for a mask, since what the old ones have learned
        is true of the old mask only; and returns their setup, None if there is nothing to remember.
    share: largest share of the time for trials.
    clock: returns nanoseconds.

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
        if context.n_seq_max < 2 or context.n_batch < WINDOW or not context.abilities.can_rollback:
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
        self.drafter_in_use, self.controller_in_use, self._setup = build(state.mask)
        self.drafter = AdaptingDrafter(self)
        self.controller = AdaptingController(self)
        self._seq = context.sequence()
        self._n_used = 0  # tokens of the text that are the prompt's or were in a trial
        self._costs_of_trial: float | None = None  # by the table
        self._us: float | None = None  # of the last trial, over what the table says

    def close(self) -> None:
        self.drafter_in_use.close()

    def remember(self) -> None:
        """Keep what was learned of costs and copies for the next run, see Completion.remember."""
        if self._setup is not None:
            hit_rates.save(self._context, self._setup.timings)

    def summary(self) -> dict[str, int]:
        """Return what has been done since the beginning, ready for JSON."""
        now, began = self.state, self.began
        return {
            "n_tried": now.n_candidates - began.n_candidates,
            "n_changes": now.n_changes - began.n_changes,
            "trial_us": now.trial_us - began.trial_us,
        }

    def begin(self, seq: KVSequence, history: Sequence[int]) -> None:
        """Start with a text in this sequence."""
        self._seq = seq
        self._n_used = len(history)
        self.drafter_in_use.begin(seq, history)

    def observe(self, step: Step) -> None:
        """Count the time of a step; a share of it is for trials."""
        n_steps, step_us = self.state.n_steps + 1, self.state.step_us + step.us
        self.state = replace(self.state, n_steps=n_steps, step_us=step_us)

    def try_masks(self, history: Sequence[int]) -> Work[None]:
        """Make a trial on the last tokens, if there is room and time for one."""
        if self._has_room(history):
            yield from self._compare(history)

    def _has_room(self, history: Sequence[int]) -> bool:
        """Tell whether there are enough new tokens, cells for a copy of them, and a sequence."""
        n = len(history)
        room = n - 1 + WINDOW <= self._context.n_ctx and self._context.has_spare
        return n - self._n_used >= WINDOW and room

    def _compare(self, history: Sequence[int]) -> Work[None]:
        """Try both masks on the last tokens, if there is time for it, and change to the better."""
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
            self.drafter_in_use.close()
            built = self._build(self.state.mask)
            self.drafter_in_use, self.controller_in_use, self._setup = built
            self.drafter_in_use.begin(self._seq, history)
        us = (self._clock() - start) // 1000
        self._us = us / expected
        self._n_used = len(history)
        if self.state.n_candidates % N_TRIM == 0 and self.state.candidate is None:
            release_memory()  # of graphs of masks that were tried
        self.state = replace(self.state, trial_us=self.state.trial_us + us)

    def _scores(self, history: Sequence[int], masks: Sequence[LayerMask]) -> Work[list[Score]]:
        """Score each mask by which of the last tokens a draft with it would have got right."""
        pos = len(history) - 1 - WINDOW
        given, chosen = history[pos:-1], np.array(history[pos + 1 :])
        scores = []
        with self._context.spare_sequence() as fork:
            self._seq.fork(fork.seq_id)
            for mask in masks:
                fork.rollback(pos)
                answer = yield PassRequest(Rows.of(fork.seq_id, pos, given), Pass(mask))
                drafted = [answer.argmax(row)[0] for row in range(len(given))]
                scores.append(Score.of_drafts((np.array(drafted) == chosen)[None]))
        return scores


class AdaptingDrafter(Drafter):
    """Makes trials before drafts. Attributes that are not defined here are those of the drafter of
    the mask in use."""

    def __init__(self, adaptation: Adaptation) -> None:
        self._adaptation = adaptation

    def begin(self, seq: KVSequence, history: Sequence[int]) -> None:
        self._adaptation.begin(seq, history)

    def draft(self, history: Sequence[int], limit: DraftLimit) -> Work[Draft]:
        before = self._adaptation.drafter_in_use
        yield from self._adaptation.try_masks(history)
        if self._adaptation.drafter_in_use is not before:
            return Draft()  # the limit is that of the controller before
        return (yield from timed_draft(before, history, limit))

    def close(self) -> None:
        self._adaptation.close()


def _forwarded(name: str) -> property:
    """Return a property that is this attribute or method of the drafter in use."""
    return property(lambda self: getattr(self._adaptation.drafter_in_use, name))


for _name in {"name", *vars(Drafter)} - vars(AdaptingDrafter).keys():
    if not _name.startswith("_"):
        setattr(AdaptingDrafter, _name, _forwarded(_name))


class AdaptingController:
    """Passes everything on to the controller of the mask in use."""

    def __init__(self, adaptation: Adaptation) -> None:
        self._adaptation = adaptation

    def limit(self, n_past: int) -> DraftLimit:
        limit = self._adaptation.controller_in_use.limit(n_past)
        return replace(limit, rests=False)  # the drafter runs the trials of masks

    def observe(self, step: Step) -> None:
        self._adaptation.observe(step)
        self._adaptation.controller_in_use.observe(step)

    def explain(self) -> Decision | None:
        return explain(self._adaptation.controller_in_use)
