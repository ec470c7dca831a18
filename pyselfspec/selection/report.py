"""What a scan found, as numbers for a table, for JSON and for a picture. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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


def to_dict(found: ScanReport) -> dict[str, Any]:
    """For JSON."""
    label = found.about.label.replace(" ", "_")

    def numbers(shown: Shown) -> dict[str, float | int | None]:
        return {label: shown.value, "stderr": shown.error, "n_tokens": shown.n_tokens}

    return {
        "full": numbers(found.full),
        "units": [
            {"block": u.block, "unit": u.kind, "rank": u.rank, "cost": u.cost, **numbers(u.shown)}
            for u in found.units
        ],
        "curve": [
            {
                "mask": p.mask.to_dict(),
                "skipped": p.share,
                "cost": p.cost,
                "expected_speed": p.speed,
                "draft_max": p.n_draft,
                **numbers(p.shown),
            }
            for p in found.curve
        ],
    }


def to_lines(found: ScanReport) -> list[str]:
    """The tables, for people: one line per block, one per point of the curve."""
    label, everything = found.about.label, ("attention", "feed-forward", "block")
    kinds = [kind for kind in everything if any(u.kind == kind for u in found.units)]
    lines = [f"full model: {label} {found.full.text}", ""]
    lines.append("block" + "".join(f"  {kind:>16}  rank  cost" for kind in kinds))
    cells = {(u.block, u.kind): _cell(u) for u in found.units}
    empty = " " * len("  " + " " * 16 + "  rank  cost")
    for il in sorted({u.block for u in found.units}):
        lines.append(f"{il:5}" + "".join(cells.get((il, kind), empty) for kind in kinds))
    if found.has_curve:
        expects = any(point.speed is not None for point in found.curve)
        width = max(10, len(label))
        lines += ["", f"skipped  cost  {label:>{width}}" + "  expected" * expects]
        for point in found.curve:
            speed = f"{point.speed:9.2f}x" if point.speed is not None else ""
            value = f"{point.shown.text:>{width}}"
            lines.append(f"{point.share:7.0%}  {point.cost:4.2f}  {value}{speed}")
    return lines


def _cell(unit: UnitScore) -> str:
    value, error = unit.shown.text, unit.shown.error
    if error is not None:
        value += " ± " + (f"{error:.3f}" if error < 100 else f"{error:.2g}")
    return f"  {value:>16}  {unit.rank:4}  {unit.cost:4.0%}"


NOTHING_PAYS = "no mask is expected to make generation faster; the profile stays as it is"


def best_line(best: Point, label: str) -> str:
    """label: of the objective, for masks of which no speed is expected."""
    mask = best.mask
    what = (
        f"best mask: skips {len(mask.skip_attn)} attention, {len(mask.skip_ffn)} feed-forward "
        f"sublayers · cost {best.cost:.2f} · "
    )
    if best.speed is None:
        return f"{what}{label} {best.shown.text}"
    return (
        f"{what}agreement {best.score.agreement:.2f} · expected {best.speed:.2f}x with "
        f"{best.n_draft} drafted"
    )
