"""Scans: what each unit of a model is worth, and what can be skipped together."""

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
from . import session, strategies
from .options import Options
from .report import Point, ScanReport, report
from .rounds import Confident, Follow, GiveUp, Never, Round, Scored, ignore
from .runner import run
from .scorer import Scorer
from .session import Session

STRATEGY = "rank"
OBJECTIVE = "agreement"
SHARE = 0.5


@dataclass(frozen=True, slots=True)
class ScanResult:
    """What a scan found.

    report: the numbers, see ScanReport. results: the file that keeps all scores.
    profile: the best mask, for `save`; None where no mask is expected to pay, and where the
        objective does not tell.
    """

    strategy: str
    objective: str
    report: ScanReport
    results: Path
    profile: Profile | None

    @property
    def best(self) -> Point | None:
        """The mask with the best expected speed, None where nothing is expected to pay."""
        return self.report.best

    def save(self) -> Path | None:
        """Make the best mask the model's profile, which generate uses by itself; the file, or None
        where there is nothing to save."""
        return None if self.profile is None else profiles.save(self.profile)


def scan(
    model: Model | Context | str | Path,
    strategy: str | strategies.Factory = STRATEGY,
    objective: str = OBJECTIVE,
    *,
    unit: Unit | str = Unit.BOTH,
    share: float = SHARE,
    give_up: GiveUp | None = None,
    progress: Follow = ignore,
    **options: Unpack[Options],
) -> ScanResult:
    """Score what a strategy asks for, to its end.

    >>> found = scan("model.gguf", "greedy", chunks=4)                     # doctest: +SKIP
    >>> if found.best is not None:                                         # doctest: +SKIP
    ...     print(found.best.mask, found.best.speed, found.save())

    model: a path is opened and closed here; of a Context all sequences are used.
    strategy: a name, or what makes strategies, such as
        ``strategies.load("greedy", prune=strategies.Prune(count=2))``.
    objective: which mask is better than another, a name; see objectives/.
    unit: what is skipped at a time.
    share: of the units, that the last mask skips; above 0, 1 at most.
    give_up: which masks need not see all of the text; default: those that are surely not the best,
        where the objective tells.
    progress: called with every score. What it raises ends the scan; the file of results keeps the
        scores, and the same call goes on from there.
    options: text, chunks, out and so on, see options.Options.

    Raises what session.opened raises, and ArgumentError for names that do not exist and for
    strategies that never end.
    """
    chosen = strategies.resolve(strategy)
    if chosen.endless:
        raise ArgumentError(f"the strategy {chosen.name} never ends by itself; use it in a search")
    with session.opened(model, objective, **options, follow=progress) as opened:
        space = Space.of(opened.context.mask_support, Unit(unit))
        setting = strategies.Setting(
            space, share, seed=opened.seed, context=opened.context, chunk=opened.texts[0]
        )
        about = opened.objective.about
        rule = give_up or (Never() if about.weighs_cost else Confident())
        scorer = Scorer(opened.objective, opened.scores, give_up=rule)
        outcomes = run(chosen(setting), scorer, follow=progress)
        found = [scored for outcome in outcomes for scored in outcome.chosen]
        return _result(opened, scorer, space, chosen.name, found, progress)


def _result(
    opened: Session,
    scorer: Scorer,
    space: Space,
    strategy: str,
    found: Sequence[Scored],
    progress: Follow,
) -> ScanResult:
    """The report, with the full model, and with what would be drafted with otherwise."""
    tells = opened.objective.about.counts_drafts and strategy != "single"
    known = opened.known_masks() if tells else []
    reference = Round(space.full, (space.full, *known), best_only=False)
    full, *others = scorer.score(reference, progress)
    numbers = report(
        opened.objective,
        full,
        opened.scores.totals(),
        [*others, *found],
        space.units,
        opened.costs,
    )
    profile = None
    if tells and numbers.best is not None:
        profile = opened.profile(numbers.best, f"scan-layers {strategy}")
    return ScanResult(strategy, opened.objective_name, numbers, opened.results.path, profile)
