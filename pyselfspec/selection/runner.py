"""Runs a strategy: gets rounds of masks from it and returns their scores to it. Pure."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from ..errors import ArgumentError
from ..util.progress import OnProgress, Progress, ignore_progress
from .rounds import Round, Scored, best_of
from .scorer import Scorer
from .strategies import Strategy


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits of a search: number of masks, minutes, or both; the first one reached ends it.

    A round that has begun is finished. Raises ArgumentError without a limit or for limits of 0.
    """

    trials: int | None = None
    minutes: float | None = None

    def __post_init__(self) -> None:
        if self.trials is None and self.minutes is None:
            raise ArgumentError("a search needs a budget: give trials or minutes")
        if self.trials is not None and self.trials < 1:
            raise ArgumentError(f"trials is 1 or more, got {self.trials}")
        if self.minutes is not None and not self.minutes > 0:
            raise ArgumentError(f"minutes is more than 0, got {self.minutes:g}")

    def used(self, n_trials: int, seconds: float) -> float:
        """Return the used share of the budget; 1 or more if nothing is left."""
        of_trials = n_trials / self.trials if self.trials else 0.0
        of_time = seconds / (60 * self.minutes) if self.minutes else 0.0
        return max(of_trials, of_time)


@dataclass(frozen=True, slots=True)
class ScoredRound:
    """A round with the scores of its masks, in the same order."""

    round: Round
    scored: tuple[Scored, ...]

    @property
    def chosen(self) -> tuple[Scored, ...]:
        """The best mask if only the best counts, else all."""
        return (best_of(self.scored),) if self.round.best_only else self.scored


def run(
    strategy: Strategy,
    scorer: Scorer,
    budget: Budget | None = None,
    progress: OnProgress = ignore_progress,
) -> list[ScoredRound]:
    """Run a strategy to its end or until the budget is used up, and return all rounds.

    A mask that a strategy repeats counts as another trial but is not scored again.
    """
    rounds: list[ScoredRound] = []
    start = time.monotonic()
    n_trials = 0

    def used(n_trials: int) -> float:
        return budget.used(n_trials, time.monotonic() - start) if budget else 0.0

    def report(state: Progress) -> None:
        share = used(n_trials + 1)  # with the mask being scored
        total = round(state.n_done / share) if share else state.n_total
        progress(replace(state, n_total=max(state.n_done, total)))

    while used(n_trials) < 1:
        request = strategy.ask()
        if request is None:
            break
        scored = scorer.score(request, report)
        strategy.tell(scored)
        rounds.append(ScoredRound(request, tuple(scored)))
        n_trials += len(scored)
    return rounds
