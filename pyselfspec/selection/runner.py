"""Runs a strategy: asks for rounds of masks, has them scored, tells the scores. Pure."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from ..errors import ArgumentError
from .rounds import Follow, Progress, Round, Scored, best_of, ignore
from .scorer import Scorer
from .strategies import Strategy


@dataclass(frozen=True, slots=True)
class Budget:
    """Masks to try, or minutes, or whichever is used up first. At least one of them is given.

    A round that has begun is finished.
    """

    trials: int | None = None
    minutes: float | None = None

    def __post_init__(self) -> None:
        if self.trials is None and self.minutes is None:
            raise ArgumentError("a search needs a budget: trials or minutes")
        if self.trials is not None and self.trials < 1:
            raise ArgumentError(f"a search makes 1 trial or more, got {self.trials}")
        if self.minutes is not None and not self.minutes > 0:
            raise ArgumentError(f"a search takes more than 0 minutes, got {self.minutes:g}")

    def used(self, n_trials: int, seconds: float) -> float:
        """The share of it that is used up, 1 or more when nothing is left."""
        of_trials = n_trials / self.trials if self.trials else 0.0
        of_time = seconds / (60 * self.minutes) if self.minutes else 0.0
        return max(of_trials, of_time)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A round with its scores, in its order."""

    round: Round
    scored: tuple[Scored, ...]

    @property
    def chosen(self) -> tuple[Scored, ...]:
        """The best where only the best counts, else all."""
        return (best_of(self.scored),) if self.round.best_only else self.scored


def run(
    strategy: Strategy, scorer: Scorer, budget: Budget | None = None, follow: Follow = ignore
) -> list[Outcome]:
    """Ask and tell until the strategy ends or the budget is used up; without one, to the end.

    A mask that is asked for again counts again, but is not scored again.
    """
    outcomes: list[Outcome] = []
    start = time.monotonic()
    n_trials = 0

    def used(n_trials: int) -> float:
        return budget.used(n_trials, time.monotonic() - start) if budget else 0.0

    def estimate(progress: Progress) -> None:
        share = used(n_trials + 1)  # with the one at work
        total = round(progress.n_done / share) if share else progress.n_total
        follow(replace(progress, n_total=max(progress.n_done, total)))

    while used(n_trials) < 1:
        request = strategy.ask()
        if request is None:
            break
        scored = scorer.score(request, estimate)
        strategy.tell(scored)
        outcomes.append(Outcome(request, tuple(scored)))
        n_trials += len(scored)
    return outcomes
