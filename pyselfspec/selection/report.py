"""The results of a scan as data; tables.py formats them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..costs.speedup import PassCosts, gain
from ..masks.layer_mask import LayerMask
from ..masks.score import Score
from .objectives import About, Objective
from .rounds import Scored, best_of


@dataclass(frozen=True, slots=True)
class Shown:
    """A score as the objective displays it. error: standard error of value, None if unknown."""

    value: float
    error: float | None
    n_tokens: int

    @property
    def text(self) -> str:
        return f"{self.value:.3f}" if self.value < 1000 else f"{self.value:.3g}"


@dataclass(frozen=True, slots=True)
class UnitScore:
    """The score of a mask that skips one unit only.

    kind: "attention", "feed-forward" or "block".
    lost: mean excess loss per token, with its standard error.
    rank: 1 for the least harmful unit.
    cost: the unit's share of a full pass, 0 to 1.
    """

    block: int
    kind: str
    shown: Shown
    lost: float
    lost_error: float
    n_chunks: int
    rank: int
    cost: float


@dataclass(frozen=True, slots=True)
class Point:
    """The best mask of one size.

    cost: time of a draft token, over that of a token of plain decoding.
    speed: expected speed over plain decoding with drafts of n_draft tokens; None if the objective
        does not count accepted drafts.
    """

    mask: LayerMask
    score: Score
    shown: Shown
    cost: float
    speed: float | None
    n_draft: int | None

    @property
    def share(self) -> float:
        """Share of all sublayers that the mask skips."""
        return 1 - self.mask.n_active / (2 * self.mask.n_layer)


@dataclass(frozen=True, slots=True)
class ScanReport:
    """Scores of single units, by block, and the best mask of each size, the full model first."""

    about: About
    full: Shown
    units: tuple[UnitScore, ...]
    curve: tuple[Point, ...]

    @property
    def has_curve(self) -> bool:
        """Whether the curve has more than the full model and one mask."""
        return len(self.curve) > 2

    @property
    def best(self) -> Point | None:
        """The point with the highest expected speed above 1, None if there is none."""
        paying = [p for p in self.curve if p.speed is not None and p.speed > 1]
        return max(paying, key=lambda p: p.speed or 0.0, default=None)


def report(
    objective: Objective,
    full: Scored,
    totals: Mapping[LayerMask, tuple[int, Score]],
    found: Sequence[Scored],
    units: Sequence[LayerMask],
    costs: PassCosts,
) -> ScanReport:
    """Return the report of a scan.

    full: score of the full model. totals: number of chunks and score of every measured mask.
    found: masks that the scan selected. units: the units of the search space.
    """
    alone = [(unit, *totals[unit]) for unit in units if unit in totals]
    ranked = sorted(alone, key=lambda item: -objective.value(item[0], item[2]))
    ranks = {unit: i for i, (unit, _n, _score) in enumerate(ranked, 1)}
    shown_units = tuple(
        UnitScore(
            block=unit.first_skipped,
            kind=_kind(unit),
            shown=shown(objective, unit, score),
            lost=score.mean_excess,
            lost_error=score.stderr_excess,
            n_chunks=n_chunks,
            rank=ranks[unit],
            cost=1 - costs.draft(unit),
        )
        for unit, n_chunks, score in alone
    )
    by_size: dict[int, list[Scored]] = {}
    for scored in (full, *found):
        if scored.complete:
            by_size.setdefault(scored.mask.n_active, []).append(scored)
    best = [best_of(by_size[n]) for n in sorted(by_size, reverse=True)]
    curve = tuple(point(objective, scored, costs) for scored in best)
    return ScanReport(objective.about, shown(objective, full.mask, full.score), shown_units, curve)


def shown(objective: Objective, mask: LayerMask, score: Score) -> Shown:
    return Shown(objective.shown(mask, score), objective.error(score), score.n)


def point(objective: Objective, scored: Scored, costs: PassCosts) -> Point:
    mask, score = scored.mask, scored.score
    expected = gain(score, mask, costs) if score.n_runs else None
    return Point(
        mask,
        score,
        shown(objective, mask, score),
        costs.draft(mask),
        expected.speed if expected else None,
        expected.n_draft if expected else None,
    )


def _kind(unit: LayerMask) -> str:
    if unit.skip_attn and unit.skip_ffn:
        return "block"
    return "attention" if unit.skip_attn else "feed-forward"
