"""Searches: the mask that makes generation fastest, within a budget."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from ..costs.expected import Gain, PassCosts, gain, gains
from ..errors import ArgumentError, MaskError
from ..masks import profiles
from ..masks.layer_mask import LayerMask
from ..masks.profiles import Profile
from ..masks.space import SHARE, Space, Unit
from ..runtime.context import Context
from ..runtime.model import Model
from . import session, strategies
from .bounded import Bounded
from .objectives import About, Objective
from .options import Options
from .report import Point, point
from .rounds import Follow, Scored, best_of, ignore
from .runner import Budget, run
from .scorer import Scorer
from .session import Session

STRATEGY = "climb"
OBJECTIVE = "expected-speed"
MAX_COST = 0.6  # of a drafted token over a plain one
N_TRIALS = 100
N_START = 3  # masks of an earlier scan to start from


@dataclass(frozen=True, slots=True)
class SearchResult:
    """What a search found.

    about: the objective. trials: masks in the order they were tried.
    best: of the trials and of what was known before. point: its cost and expected speed.
    costs: of masked passes, by which `point` and `sweep` are computed.
    results: the file that keeps the scores.
    profile: the best mask, for `save`; None where it is not expected to pay, and where the
        objective does not tell.
    """

    strategy: str
    objective: str
    about: About
    trials: tuple[Scored, ...]
    best: Scored
    point: Point
    costs: PassCosts
    results: Path
    profile: Profile | None

    @property
    def mask(self) -> LayerMask:
        """The best mask."""
        return self.best.mask

    def save(self) -> Path | None:
        """Make the best mask the model's profile, which generate uses by itself; the file, or None
        where there is nothing to save."""
        return None if self.profile is None else profiles.save(self.profile)

    def sweep(self) -> dict[int, list[Gain]]:
        """Expected speeds by the first block skipped, for draft lengths from 1 on: of a search of
        all exits the blocks before each exit."""
        counted = (t for t in self.trials if t.score.n_runs)
        return {t.mask.first_skipped: gains(t.score, t.mask, self.costs) for t in counted}


def search(
    model: Model | Context | str | Path,
    strategy: str | strategies.Factory = STRATEGY,
    objective: str = OBJECTIVE,
    *,
    trials: int | None = None,
    minutes: float | None = None,
    unit: Unit | str = Unit.BOTH,
    share: float = SHARE,
    max_cost: float = MAX_COST,
    progress: Follow = ignore,
    **options: Unpack[Options],
) -> SearchResult:
    """Try masks that a strategy asks for, until the budget is used up.

    >>> found = search("model.gguf", minutes=10)                           # doctest: +SKIP
    >>> print(found.mask, found.point.speed, found.save())                 # doctest: +SKIP

    model: a path is opened and closed here; of a Context all sequences are used.
    strategy: a name, or what makes strategies, such as
        ``strategies.load("optuna", storage="sqlite:///study.db")``.
    objective: which mask is better than another, a name; see objectives/.
    trials, minutes: the budget, whichever is used up first; default: 100 trials. A round of masks
        that has begun is finished.
    unit: what masks are made of.
    share: of the units, skipped at most; above 0, 1 at most.
    max_cost: for objectives that do not weigh costs themselves, the cost of a drafted token over a
        plain one, above 0, 1 at most.
    progress: called with every score. What it raises ends the search; the file of results keeps the
        scores, and the same call need not measure them again.
    options: text, chunks, out and so on, see options.Options.

    Starts from what an earlier scan of the same text has left in the file of results.

    Raises what session.opened raises, and ArgumentError for names that do not exist.
    """
    if not 0 < max_cost <= 1:
        raise ArgumentError(f"max_cost is above 0 and at most 1, got {max_cost:g}")
    chosen = strategies.resolve(strategy)
    budget = Budget(N_TRIALS if trials is None and minutes is None else trials, minutes)
    with session.opened(model, objective, **options, keep=True, follow=progress) as opened:
        goal: Objective = opened.objective
        if not goal.about.weighs_cost:
            goal = Bounded(goal, opened.costs, max_cost)
        scorer = Scorer(goal, opened.scores)
        setting = strategies.Setting(
            space=Space.of(opened.context.mask_support, Unit(unit)),
            share=share,
            start=start_masks(opened),
            seed=opened.seed,
            context=opened.context,
            chunk=opened.texts[0],
        )
        outcomes = run(chosen(setting), scorer, budget, progress)
        tried = tuple(scored for outcome in outcomes for scored in outcome.scored)
        best = best_of([*tried, *map(scorer.one, opened.known_masks())])
        return _result(opened, chosen.name, tried, best)


def start_masks(opened: Session) -> tuple[LayerMask, ...]:
    """What is known, every other block, and the best of what is in the file of results."""
    masks = opened.known_masks()
    try:
        masks.append(LayerMask.alternate(opened.model.n_layer))
    except MaskError:
        pass
    measured = [
        (gain(score, mask, opened.costs).speed, mask)
        for mask, (n_chunks, score) in opened.results.totals().items()
        if n_chunks >= len(opened.texts) and score.n_runs and mask.n_active < 2 * mask.n_layer
    ]
    measured.sort(key=lambda item: -item[0])
    masks += [mask for _speed, mask in measured[:N_START]]
    return tuple(dict.fromkeys(masks))


def _result(
    opened: Session, strategy: str, tried: tuple[Scored, ...], best: Scored
) -> SearchResult:
    shown = point(opened.objective, best, opened.costs)
    profile = None
    if shown.speed is not None and shown.speed > 1:
        profile = opened.profile(shown, f"search {strategy}")
    return SearchResult(
        strategy=strategy,
        objective=opened.objective_name,
        about=opened.objective.about,
        trials=tried,
        best=best,
        point=shown,
        costs=opened.costs,
        results=opened.results.path,
        profile=profile,
    )
