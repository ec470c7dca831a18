"""What a scan found, in numbers; see tables.py for how they are shown. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..costs.expected import PassCosts, gain
from ..masks.layer_mask import LayerMask
from ..masks.score import Score
from .objectives import About, Objective
from .rounds import Scored, best_of


@dataclass(frozen=True, slots=True)
class Shown:
    """A score as the objective shows it. error: standard error of the value, None: not known."""

    value: float
    error: float | None
    n_tokens: int

    @property
    def text(self) -> str:
        return f"{self.value:.3f}" if self.value < 1000 else f"{self.value:.3g}"


@dataclass(frozen=True, slots=True)
class UnitScore:
    """A unit skipped alone.

    kind: "attention", "feed-forward" or "block".
    lost: mean excess loss per token, with its standard error.
    rank: 1 is the least harmful.
    cost: its share of a full pass, 0..1.
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
    """The best mask found of those that skip as much.

    cost: of a token through the mask, over that of one through the full model.
    speed: expected, over plain decoding, with drafts of n_draft tokens; None where the score does
        not count drafts.
    """

    mask: LayerMask
    score: Score
    shown: Shown
    cost: float
    speed: float | None
    n_draft: int | None

    @property
    def share(self) -> float:
        """Of all sublayers, skipped."""
        return 1 - self.mask.n_active / (2 * self.mask.n_layer)


@dataclass(frozen=True, slots=True)
class ScanReport:
    """units: by block. curve: by the share skipped, the full model first where it was scored."""

    about: About
    full: Shown
    units: tuple[UnitScore, ...]
    curve: tuple[Point, ...]

    @property
    def has_curve(self) -> bool:
        """Whether there is more on it than the full model and one mask."""
        return len(self.curve) > 2

    @property
    def best(self) -> Point | None:
        """The point with the best expected speed, None where nothing is expected to pay."""
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
    """full: the full model. totals: chunks and score of every mask measured. found: masks that the
    scan chose. units: what was skipped at a time."""
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
