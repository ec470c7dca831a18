"""Searches for the mask that makes generation fastest, within a budget."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from ..costs.speedup import Gain, PassCosts, gain, gains
from ..errors import ArgumentError, MaskError
from ..masks import profiles
from ..masks.layer_mask import LayerMask
from ..masks.profiles import Profile
from ..masks.space import SHARE, Space, Unit
from ..runtime.context import Context
from ..runtime.model import Model
from ..util.progress import OnProgress, ignore_progress
from . import scoring, strategies
from .cost_cap import CostCap
from .objectives import About, Objective
from .options import ScanOptions
from .report import Point, point
from .rounds import Scored, best_of
from .runner import Budget, run
from .scorer import Scorer
from .scoring import Scoring

STRATEGY = "climb"
OBJECTIVE = "expected-speed"
MAX_COST = 0.6  # of a draft token over a token of plain decoding
N_TRIALS = 100
N_START = 3  # number of masks of an earlier scan to start from


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Result of a search.

    about: the objective. trials: masks in the order they were scored.
    best: best of the trials and of the masks in use before. point: its cost and expected speed.
    costs: costs of masked passes, from which `point` and `sweep` are computed.
    results: the file of all scores.
    profile: the best mask, for `save`; None if it is not expected to be faster than plain decoding
        or the objective gives no speed.
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
        """Make the best mask the model's profile, which generate uses by default.

        Returns the profile's path, None if there is nothing to save.
        """
        return None if self.profile is None else profiles.save(self.profile)

    def sweep(self) -> dict[int, list[Gain]]:
        """Return expected speeds by the first skipped block, for draft lengths from 1 on. For the
        strategy exit that is the number of blocks before each exit."""
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
    progress: OnProgress = ignore_progress,
    **options: Unpack[ScanOptions],
) -> SearchResult:
    """Score the masks of a strategy until the budget is used up.

    >>> found = search("model.gguf", minutes=10)                           # doctest: +SKIP
    >>> print(found.mask, found.point.speed, found.save())                 # doctest: +SKIP

    model: a path is opened and closed here; of a Context all sequences are used.
    strategy: a name, or a factory such as
        ``strategies.load("optuna", storage="sqlite:///study.db")``.
    objective: name of the objective, see objectives/.
    trials, minutes: the budget, whichever is used up first; default: 100 trials. A round of masks
        that has begun is finished.
    unit: the units that masks are made of.
    share: largest share of the units to skip, above 0 and at most 1.
    max_cost: for objectives that do not weigh costs, the largest time of a draft token over that of
        a token of plain decoding, above 0 and at most 1.
    progress: called with every score. An exception that it raises ends the search; the file of
        results keeps the scores, and an equal call does not measure them again.
    options: text, chunks, results and others, see options.ScanOptions.

    Starts from the scores of earlier scans in the file of results.

    Raises the errors of scoring.open_scoring, and ArgumentError for unknown names.
    """
    if not 0 < max_cost <= 1:
        raise ArgumentError(f"max_cost is above 0 and at most 1, got {max_cost:g}")
    chosen = strategies.resolve(strategy)
    budget = Budget(N_TRIALS if trials is None and minutes is None else trials, minutes)
    with scoring.open_scoring(
        model, objective, **options, reads_states=chosen.reads_states, keep=True, progress=progress
    ) as opened:
        goal: Objective = opened.objective
        if not goal.about.weighs_cost:
            goal = CostCap(goal, opened.costs, max_cost)
        scorer = Scorer(goal, opened.scores)
        setting = strategies.Setting(
            space=Space.of(opened.context.mask_support, Unit(unit)),
            share=share,
            start=start_masks(opened),
            seed=opened.seed,
            context=opened.context,
            chunk=opened.texts[0],
        )
        rounds = run(chosen(setting), scorer, budget, progress)
        tried = tuple(scored for each in rounds for scored in each.scored)
        best = best_of([*tried, *map(scorer.one, opened.current_masks())])
        return _result(opened, chosen.name, tried, best)


def start_masks(opened: Scoring) -> tuple[LayerMask, ...]:
    """Return masks to start from: those in use, every other block, the best of earlier scans."""
    masks = opened.current_masks()
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
    opened: Scoring, strategy: str, tried: tuple[Scored, ...], best: Scored
) -> SearchResult:
    best_point = point(opened.objective, best, opened.costs)
    profile = None
    if best_point.speed is not None and best_point.speed > 1:
        profile = opened.profile(best_point, f"layers search {strategy}")
    return SearchResult(
        strategy=strategy,
        objective=opened.objective_name,
        about=opened.objective.about,
        trials=tried,
        best=best,
        point=best_point,
        costs=opened.costs,
        results=opened.results.path,
        profile=profile,
    )
