"""Other masks tried while a text is being generated, and taken over where they are better.

After Xia et al., "SWIFT: On-the-Fly Self-Speculative Decoding", section 4.1,
https://arxiv.org/abs/2410.06916: the tokens that the full model has just chosen tell for any mask
which of them a draft would have got right, with one masked pass over them that reads the full
model's K/V. Unlike there a trial compares two masks on the same tokens, the one in use and a
neighbour of it, by the speed to be expected; and it is made only when there is time for it.

Masks change what is drafted and when, never the text.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from ..costs.expected import PassCosts, gain
from ..costs.table import N_WIDTH
from ..errors import ArgumentError, SelfSpecError
from ..masks.layer_mask import LayerMask
from ..masks.score import Score
from ..masks.space import Space, Unit, neighbour
from ..runtime.context import Context
from ..runtime.kv import KVSequence
from ..runtime.model import Model
from ..util.files import replacing
from .controllers import Controller
from .drafters import Drafter
from .types import Draft, DraftLimit, Step, Verdict

SHARE = 0.03  # of the time
WINDOW = N_WIDTH  # tokens of a trial: wider passes cost more per token on CPUs
N_WINDOWS = 4  # to win before a rival is taken over
MARGIN = 0.02  # by which it must be faster then
TRIAL_SEQ_ID = 1
FORMAT = 1
SCORES = ("score", "rival_score")


#
# which mask is next, and which one wins
#


@dataclass(frozen=True, slots=True)
class State:
    """mask: the one in use. rival: the one that is compared with it, if any, so far on n_windows
    windows, with the scores of both.

    seed, n_rivals: make the next rival, n_rivals having been judged. n_changes: rivals taken over.
    step_us, trial_us, n_steps: what has been spent on what, over all texts.
    """

    mask: LayerMask
    seed: int = 0
    n_rivals: int = 0
    n_changes: int = 0
    rival: LayerMask | None = None
    n_windows: int = 0
    score: Score = field(default_factory=Score)
    rival_score: Score = field(default_factory=Score)
    n_steps: int = 0
    step_us: int = 0
    trial_us: int = 0

    def challenged(self, space: Space) -> State:
        """With a rival, if there is any."""
        if self.rival is not None:
            return self
        rng = np.random.default_rng([self.seed, self.n_rivals])
        rival = neighbour(space, self.mask, rng)
        return replace(self, rival=rival)

    def judged(self, score: Score, rival_score: Score, costs: PassCosts) -> State:
        """After one more window: a rival is dropped as soon as it is not ahead."""
        assert self.rival is not None
        score, rival_score = self.score + score, self.rival_score + rival_score
        n_windows = self.n_windows + 1
        over = replace(
            self,
            rival=None,
            n_rivals=self.n_rivals + 1,
            n_windows=0,
            score=Score(),
            rival_score=Score(),
        )
        lead = gain(rival_score, self.rival, costs).speed / gain(score, self.mask, costs).speed
        if lead <= 1 + MARGIN * (n_windows == N_WINDOWS):
            return over
        if n_windows == N_WINDOWS:
            return replace(over, mask=self.rival, n_changes=self.n_changes + 1)
        return replace(self, n_windows=n_windows, score=score, rival_score=rival_score)

    def affords(self, trial_us: float, share: float) -> bool:
        """Whether a trial of that length leaves trials within their share of the time."""
        trials_us = self.trial_us + trial_us
        return trials_us <= share * (trials_us + self.step_us)

    def to_dict(self) -> dict[str, Any]:
        rival = None if self.rival is None else self.rival.to_dict()
        return asdict(self) | {"mask": self.mask.to_dict(), "rival": rival}

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """Raises KeyError, TypeError or a SelfSpecError for anything that is no state."""
        values = {f.name: data[f.name] for f in fields(cls)}
        numbers = [v for k, v in values.items() if k not in ("mask", "rival", *SCORES)]
        if not all(type(n) is int and n >= 0 for n in numbers):
            raise ArgumentError("counts are whole numbers, 0 or more")
        if values["n_windows"] >= N_WINDOWS:
            raise ArgumentError(f"n_windows is below {N_WINDOWS}, got {values['n_windows']}")
        values |= {name: Score.from_dict(data[name]) for name in SCORES}
        values["mask"] = LayerMask.from_dict(data["mask"])
        if data["rival"] is not None:
            values["rival"] = LayerMask.from_dict(data["rival"]).require(values["mask"].n_layer)
        return cls(**values)


#
# kept across runs
#


def save(state: State, model: Model, path: Path) -> None:
    """Raises ArgumentError for a path that cannot be a file."""
    data = {"format": FORMAT, "model": model.path.name, "model_sha256": model.fingerprint}
    with replacing(path) as unfinished:
        unfinished.write_text(json.dumps(data | state.to_dict()) + "\n", encoding="utf-8")


def load(path: Path, model: Model) -> State:
    """Raises ArgumentError for a file that is no state, or one of another model."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["format"] != FORMAT:
            raise ArgumentError(f"its format is {data['format']}, known is {FORMAT}")
        state, sha256, name = State.from_dict(data), data["model_sha256"], data["model"]
    except (ValueError, KeyError, TypeError, RecursionError, SelfSpecError) as error:
        raise ArgumentError(f"{path} is no state of --adapt ({error}); remove it") from None
    if sha256 != model.fingerprint:
        raise ArgumentError(
            f"{path} belongs to another model ({name}); give a file of this model, or a new one"
        )
    state.mask.require(model.n_layer)
    return state


#
# while generating
#


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


Equipment = tuple[Drafter, Controller]


class Adaptation:
    """Drafter and controller in one: passes everything on to those of the mask in use, and makes
    trials before steps.

    equip: a new drafter and a new controller for a mask, since what the old ones have learned is
        true of the old mask only.
    clock: nanoseconds.

    The time of trials is measured, so which masks are tried when depends on the machine, unless the
    share is 1. The order of masks depends on the seed in the state.
    """

    def __init__(
        self,
        context: Context,
        state: State,
        costs: PassCosts,
        equip: Callable[[LayerMask], Equipment],
        share: float = SHARE,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        small = context.n_seq_max <= TRIAL_SEQ_ID or context.n_batch < WINDOW
        if small or not context.can_rollback:
            raise ArgumentError(
                "trying masks needs a K/V cache that can take tokens back, n_seq_max of at least "
                f"{TRIAL_SEQ_ID + 1} and n_batch of at least {WINDOW}"
            )
        self.state = self.began = state
        self._context = context
        self._space = Space.of(context.mask_support, Unit.BOTH)
        self._costs = costs
        self._equip = equip
        self._share = share
        self._clock = clock
        self._drafter, self.controller = equip(state.mask)
        self._history: list[int] = []
        self._n_used = 0  # tokens of history that are the prompt's or were in a trial
        self._costs_of_trial: float | None = None  # by the table
        self._us: float | None = None  # of the last trial, over what the table says

    def begin(self, history: Sequence[int]) -> None:
        self._history = list(history)
        self._n_used = len(history)
        self._drafter.begin(history)

    def limit(self, n_past: int) -> DraftLimit:
        if self._has_room():
            self._challenge()
        return self.controller.limit(n_past)

    def draft(self, history: Sequence[int], limit: DraftLimit) -> Draft:
        return self._drafter.draft(history, limit)

    def accept(self, verdict: Verdict) -> None:
        self._drafter.accept(verdict)

    def observe(self, step: Step) -> None:
        self._history += step.tokens
        us = step.draft.draft_us + step.verify_us
        self.state = replace(
            self.state, n_steps=self.state.n_steps + 1, step_us=self.state.step_us + us
        )
        self.controller.observe(step)

    def summary(self) -> dict[str, int]:
        """What has been done since the beginning, ready for JSON."""
        now, began = self.state, self.began
        return {
            "n_tried": now.n_rivals - began.n_rivals,
            "n_changes": now.n_changes - began.n_changes,
            "trial_us": now.trial_us - began.trial_us,
        }

    def _has_room(self) -> bool:
        """Enough new tokens, and cells for them once more."""
        n = len(self._history)
        return n - self._n_used >= WINDOW and n - 1 + WINDOW <= self._context.n_ctx

    def _challenge(self) -> None:
        if self.state.rival is None:
            self.state, self._costs_of_trial = self.state.challenged(self._space), None
        state = self.state
        if state.rival is None:
            return
        expected = self._costs_of_trial
        if expected is None:
            expected = sum(self._costs.wide(m, WINDOW) for m in (state.mask, state.rival))
            self._costs_of_trial = expected  # asked for before every step
        # a step takes longer than a plain token, so the first guess is on the safe side
        unit_us = self._us or state.step_us / state.n_steps
        if not state.affords(expected * unit_us, self._share):
            return
        start = self._clock()
        score, rival_score = self._scores((state.mask, state.rival))
        self.state = state.judged(score, rival_score, self._costs)
        if self.state.mask != state.mask:
            self._drafter, self.controller = self._equip(self.state.mask)
            self._drafter.begin(self._history)
        us = (self._clock() - start) // 1000
        self._us = us / expected
        self._n_used = len(self._history)
        self.state = replace(self.state, trial_us=self.state.trial_us + us)

    def _scores(self, masks: Sequence[LayerMask]) -> list[Score]:
        """Of each mask, which of the last tokens it would have drafted."""
        pos = len(self._history) - 1 - WINDOW
        given, wanted = self._history[pos:-1], np.array(self._history[pos + 1 :])
        fork = self._context.sequence(0).fork(TRIAL_SEQ_ID)
        try:
            return [
                Score.of_drafts((self._guesses(fork, pos, given, mask) == wanted)[None])
                for mask in masks
            ]
        finally:
            fork.drop()

    def _guesses(
        self, fork: KVSequence, pos: int, given: Sequence[int], mask: LayerMask
    ) -> np.ndarray[Any, np.dtype[np.int32]]:
        """The likeliest token after each of these, the text before them being the full model's."""
        fork.rollback(pos)
        self._context.decode(given, seq=fork, pos=pos, mask=mask)
        return np.array([self._context.argmax(row)[0] for row in range(len(given))], np.int32)
