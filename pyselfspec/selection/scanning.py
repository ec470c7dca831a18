"""Scans: how much skipping each unit of a model costs, and which units can be skipped together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from ..errors import ArgumentError
from ..masks import profiles
from ..masks.profiles import Profile
from ..masks.space import Space, Unit
from ..runtime.context import Context
from ..runtime.model import Model
from ..util.progress import OnProgress, ignore_progress
from . import scoring, strategies
from .options import ScanOptions
from .report import Point, ScanReport, report
from .rounds import Confident, GiveUp, Never, Round, Scored
from .runner import run
from .scorer import Scorer
from .scoring import Scoring

STRATEGY = "rank"
OBJECTIVE = "agreement"
SHARE = 0.5


@dataclass(frozen=True, slots=True)
class ScanResult:
    """Result of a scan.

    report: see ScanReport. results: the file of all scores.
    profile: the best mask, for `save`; None if no mask is expected to be faster than plain decoding
        or the objective gives no speed.
    """

    strategy: str
    objective: str
    report: ScanReport
    results: Path
    profile: Profile | None

    @property
    def best(self) -> Point | None:
        """The mask with the highest expected speed above 1, None if there is none."""
        return self.report.best

    def save(self) -> Path | None:
        """Make the best mask the model's profile, which generate uses by default.

        Returns the profile's path, None if there is nothing to save.
        """
        return None if self.profile is None else profiles.save(self.profile)


def scan(
    model: Model | Context | str | Path,
    strategy: str | strategies.Factory = STRATEGY,
    objective: str = OBJECTIVE,
    *,
    unit: Unit | str = Unit.BOTH,
    share: float = SHARE,
    give_up: GiveUp | None = None,
    progress: OnProgress = ignore_progress,
    **options: Unpack[ScanOptions],
) -> ScanResult:
    """Score the masks of a strategy, to its end.

    >>> found = scan("model.gguf", "greedy", chunks=4)                     # doctest: +SKIP
    >>> if found.best is not None:                                         # doctest: +SKIP
    ...     print(found.best.mask, found.best.speed, found.save())

    model: a path is opened and closed here; of a Context all sequences are used.
    strategy: a name, or a factory such as
        ``strategies.load("greedy", prune=strategies.Prune(count=2))``.
    objective: name of the objective, see objectives/.
    unit: the units that masks are made of.
    share: share of the units that the last mask skips, above 0 and at most 1.
    give_up: which masks need not be scored on all chunks; default: masks that are surely not the
        best, if the objective allows to tell.
    progress: called with every score. An exception that it raises ends the scan; the file of
        results keeps the scores, and an equal call continues.
    options: text, chunks, results and others, see options.ScanOptions.

    Raises the errors of scoring.open_scoring, and ArgumentError for unknown names and for
    strategies that never end.
    """
    chosen = strategies.resolve(strategy)
    if chosen.endless:
        raise ArgumentError(
            f"the strategy {chosen.name} never ends; use it with search, which has a budget"
        )
    with scoring.open_scoring(
        model, objective, **options, reads_states=chosen.reads_states, progress=progress
    ) as opened:
        space = Space.of(opened.context.mask_support, Unit(unit))
        setting = strategies.Setting(
            space, share, seed=opened.seed, context=opened.context, chunk=opened.texts[0]
        )
        about = opened.objective.about
        rule = give_up or (Never() if about.weighs_cost else Confident())
        scorer = Scorer(opened.objective, opened.scores, give_up=rule)
        rounds = run(chosen(setting), scorer, progress=progress)
        found = [scored for each in rounds for scored in each.chosen]
        return _result(opened, scorer, space, chosen.name, found, progress)


def _result(
    opened: Scoring,
    scorer: Scorer,
    space: Space,
    strategy: str,
    found: Sequence[Scored],
    progress: OnProgress,
) -> ScanResult:
    """Return the report, with the full model and the masks in use now."""
    tells = opened.objective.about.counts_drafts and strategy != "single"
    current = opened.current_masks() if tells else []
    reference = Round(space.full, (space.full, *current), best_only=False)
    full, *others = scorer.score(reference, progress)
    numbers = report(
        opened.objective, full, opened.scores.totals(), [*others, *found], space.units, opened.costs
    )
    profile = None
    if tells and numbers.best is not None:
        profile = opened.profile(numbers.best, f"scan-layers {strategy}")
    return ScanResult(strategy, opened.objective_name, numbers, opened.results.path, profile)
