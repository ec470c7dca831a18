"""Which mask is in use, which one is compared with it, and which one wins: the state that masks are
adapted with, pure and kept across runs.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from ..costs.expected import PassCosts, gain
from ..errors import ArgumentError
from ..masks.layer_mask import LayerMask
from ..masks.profiles import Fingerprinted
from ..masks.score import Score
from ..masks.space import Space, neighbour
from ..util import paths, records

N_WINDOWS = 4  # to win before a candidate is taken over
MARGIN = 0.02  # by which it must be faster then


@dataclass(frozen=True, slots=True)
class State:
    """mask: the one in use. candidate: the one that is compared with it, if any, so far on
    n_windows windows, with the scores of both.

    seed, n_candidates: make the next candidate, n_candidates having been decided on. n_changes:
    candidates taken over. step_us, trial_us, n_steps: what has been spent on what, over all texts.
    """

    mask: LayerMask
    seed: int = 0
    n_candidates: int = 0
    n_changes: int = 0
    candidate: LayerMask | None = None
    n_windows: int = 0
    score: Score = field(default_factory=Score)
    candidate_score: Score = field(default_factory=Score)
    n_steps: int = 0
    step_us: int = 0
    trial_us: int = 0

    def __post_init__(self) -> None:
        counts = (
            self.seed,
            self.n_candidates,
            self.n_changes,
            self.n_windows,
            self.n_steps,
            self.step_us,
            self.trial_us,
        )
        if not all(n >= 0 for n in counts):
            raise ArgumentError("counts are whole numbers, 0 or more")
        if self.n_windows >= N_WINDOWS:
            raise ArgumentError(f"n_windows is below {N_WINDOWS}, got {self.n_windows}")
        if self.candidate is not None:
            self.candidate.require(self.mask.n_layer)

    def with_candidate(self, space: Space) -> State:
        """With a candidate, if there is any."""
        if self.candidate is not None:
            return self
        rng = np.random.default_rng([self.seed, self.n_candidates])
        return replace(self, candidate=neighbour(space, self.mask, rng))

    def evaluated(self, score: Score, candidate_score: Score, costs: PassCosts) -> State:
        """After one more window: a candidate is dropped as soon as it is not ahead."""
        assert self.candidate is not None
        score, candidate_score = self.score + score, self.candidate_score + candidate_score
        n_windows = self.n_windows + 1
        over = replace(
            self,
            candidate=None,
            n_candidates=self.n_candidates + 1,
            n_windows=0,
            score=Score(),
            candidate_score=Score(),
        )
        expected = gain(candidate_score, self.candidate, costs).speed
        lead = expected / gain(score, self.mask, costs).speed
        if lead <= 1 + MARGIN * (n_windows == N_WINDOWS):
            return over
        if n_windows == N_WINDOWS:
            return replace(over, mask=self.candidate, n_changes=self.n_changes + 1)
        return replace(self, n_windows=n_windows, score=score, candidate_score=candidate_score)

    def affords(self, trial_us: float, share: float) -> bool:
        """Whether a trial of that length leaves trials within their share of the time."""
        trials_us = self.trial_us + trial_us
        return trials_us <= share * (trials_us + self.step_us)


#
# kept across runs
#


def _from_format_1(data: records.Data) -> records.Data:
    names = {
        "model_sha256": "fingerprint",
        "rival": "candidate",
        "n_rivals": "n_candidates",
        "rival_score": "candidate_score",
    }
    flat = {names.get(key, key): value for key, value in data.items()}
    ours = {name: flat.pop(name, None) for name in ("model", "fingerprint")}
    return {**ours, "state": flat}


@dataclass(frozen=True, slots=True)
class StateFile:
    """A state with the model it belongs to."""

    FORMAT: ClassVar[int] = 2
    OLDER: ClassVar[records.Older] = {1: _from_format_1}

    model: str  # file name
    fingerprint: str
    state: State


def save(state: State, model: Fingerprinted, path: Path) -> None:
    """Raises ArgumentError for a path that cannot be a file."""
    records.save(path, StateFile(paths.shown(model.path.name), model.fingerprint, state))


def load(path: Path, model: Fingerprinted) -> State:
    """Raises ArgumentError for a file that is no state, or one of another model."""
    found = records.load(
        path, StateFile, what="state of adapting", fix="give one that was saved, or a new name"
    )
    if found.fingerprint != model.fingerprint:
        raise ArgumentError(
            f"{path} belongs to another model ({found.model}); give a file of this model, or a new "
            "one"
        )
    found.state.mask.require(model.n_layer)
    return found.state
