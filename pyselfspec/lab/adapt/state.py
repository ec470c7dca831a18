"""The state of adapting masks, kept across runs: the mask in use, the candidate that is compared
with it, and the rule by which a candidate wins. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import numpy as np

from ...costs.speedup import PassCosts, gain
from ...errors import ArgumentError
from ...masks.layer_mask import LayerMask
from ...masks.profiles import Fingerprinted
from ...masks.score import Score
from ...masks.space import Space, neighbour
from ...util import paths, records

N_WINDOWS = 4  # windows in which a candidate must be ahead before it replaces the mask
MARGIN = 0.02  # share by which it must be faster after the last of them


@dataclass(frozen=True, slots=True)
class State:
    """A mask in use and the search for a better one.

    candidate: the mask that is compared with it, if any, so far in n_windows windows; score and
        candidate_score are the scores of both masks in these.
    seed: decides, with n_candidates, which candidate is next.
    n_candidates: candidates that have been decided on. n_changes: candidates that won.
    n_steps, step_us, trial_us: steps, and microseconds of steps and of trials, over all texts.
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
            raise ArgumentError("counts are whole numbers of at least 0")
        if self.n_windows >= N_WINDOWS:
            raise ArgumentError(f"n_windows is below {N_WINDOWS}, got {self.n_windows}")
        if self.candidate is not None:
            self.candidate.require(self.mask.n_layer)

    def with_candidate(self, space: Space) -> State:
        """Return the state with a candidate, or unchanged where the mask has no neighbour."""
        if self.candidate is not None:
            return self
        rng = np.random.default_rng([self.seed, self.n_candidates])
        return replace(self, candidate=neighbour(space, self.mask, rng))

    def evaluated(self, score: Score, candidate_score: Score, costs: PassCosts) -> State:
        """Return the state after one more window; a candidate that is not ahead is dropped."""
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
        """Tell whether trials stay within their share of the time after one of trial_us."""
        trials_us = self.trial_us + trial_us
        return trials_us <= share * (trials_us + self.step_us)


@dataclass(frozen=True, slots=True)
class StateFile:
    """A state with the file name and the fingerprint of its model."""

    FORMAT: ClassVar[int] = 1

    model: str
    fingerprint: str
    state: State


def save(state: State, model: Fingerprinted, path: Path) -> None:
    """Write a state to a file. Raises ArgumentError for a path that cannot be a file."""
    records.save(path, StateFile(paths.shown(model.path.name), model.fingerprint, state))


def load(path: Path, model: Fingerprinted) -> State:
    """Read a state. Raises ArgumentError for a file that is not a state, or of another model."""
    found = records.load(
        path, StateFile, what="adaptation state", fix="give one that was saved, or a new name"
    )
    if found.fingerprint != model.fingerprint:
        raise ArgumentError(
            f"{path} belongs to another model ({found.model}); give a file of this model, or a new "
            "one"
        )
    found.state.mask.require(model.n_layer)
    return found.state
