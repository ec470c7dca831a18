"""What a scan found, as numbers for a table, for JSON and for a picture. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..costs.expected import PassCosts, gain
from ..masks.layer_mask import LayerMask
from ..masks.score import Score
from .measuring import Scored


@dataclass(frozen=True, slots=True)
class Measure:
    """How an objective's scores are shown."""

    name: str
    label: str
    falls: bool  # whether skipping makes the number smaller

    def value(self, score: Score) -> float:
        return score.agreement if self.falls else score.perplexity

    def text(self, score: Score) -> str:
        value = self.value(score)
        return f"{value:.3f}" if value < 1000 else f"{value:.3g}"

    def error(self, score: Score) -> float:
        """Standard error of the value; of a perplexity, of its distance from the full model's."""
        return score.stderr if self.falls else score.perplexity * score.stderr_excess


MEASURES = {
    "match": Measure("match", "agreement", falls=True),
    "ppl": Measure("ppl", "perplexity", falls=False),
}


@dataclass(frozen=True, slots=True)
class Part:
    """A unit skipped alone. rank: 1 is the least harmful. cost: its share of a full pass."""

    block: int
    part: str  # "attention", "feed-forward" or "block"
    score: Score
    n_chunks: int
    rank: int
    cost: float


@dataclass(frozen=True, slots=True)
class Point:
    """The best mask found of those that skip as much."""

    mask: LayerMask
    score: Score
    cost: float
    speed: float | None  # expected, over plain decoding; of match scores only
    n_draft: int | None

    @property
    def share(self) -> float:
        """Of all parts, skipped."""
        return 1 - self.mask.n_active / (2 * self.mask.n_layer)


@dataclass(frozen=True, slots=True)
class ScanReport:
    measure: Measure
    full: Score
    parts: tuple[Part, ...]
    curve: tuple[Point, ...]  # by the share skipped

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
    objective: str,
    full: Score,
    totals: Mapping[LayerMask, tuple[int, Score]],
    found: Sequence[Scored],
    units: Sequence[LayerMask],
    costs: PassCosts,
) -> ScanReport:
    """totals: chunks and score of every mask measured. found: what the scan chose. units: what was
    skipped at a time."""
    measure = MEASURES[objective]
    alone = [(unit, *totals[unit]) for unit in units if unit in totals]
    ranked = sorted(alone, key=lambda item: item[2].mean_excess)
    ranks = {unit: i for i, (unit, _n, _score) in enumerate(ranked, 1)}
    parts = tuple(
        Part(unit.first_skipped, _part(unit), score, n_chunks, ranks[unit], 1 - costs.draft(unit))
        for unit, n_chunks, score in alone
    )
    best: dict[int, Scored] = {}
    for scored in found:
        n = scored.mask.n_active
        if scored.complete and (n not in best or scored.rank < best[n].rank):
            best[n] = scored
    curve = tuple(_point(measure, best[n], costs) for n in sorted(best, reverse=True))
    return ScanReport(measure, full, parts, curve)


def _part(unit: LayerMask) -> str:
    if unit.skip_attn and unit.skip_ffn:
        return "block"
    return "attention" if unit.skip_attn else "feed-forward"


def _point(measure: Measure, scored: Scored, costs: PassCosts) -> Point:
    return point(scored.mask, scored.score, costs, expects=measure.falls)


def point(mask: LayerMask, score: Score, costs: PassCosts, *, expects: bool) -> Point:
    """expects: whether the score is of match, from which a speed can be expected."""
    expected = gain(score, mask, costs) if expects else None
    return Point(
        mask,
        score,
        costs.draft(mask),
        expected.speed if expected else None,
        expected.n_draft if expected else None,
    )


def to_dict(found: ScanReport) -> dict[str, Any]:
    """For JSON."""
    measure = found.measure

    def numbers(score: Score) -> dict[str, float | int]:
        error = measure.error(score)
        return {measure.label: measure.value(score), "stderr": error, "n_tokens": score.n}

    return {
        "objective": measure.name,
        "full": numbers(found.full),
        "parts": [
            {"block": p.block, "part": p.part, "rank": p.rank, "cost": p.cost, **numbers(p.score)}
            for p in found.parts
        ],
        "curve": [
            {
                "mask": p.mask.to_dict(),
                "skipped": p.share,
                "cost": p.cost,
                "expected_speed": p.speed,
                "draft_max": p.n_draft,
                **numbers(p.score),
            }
            for p in found.curve
        ],
    }


def to_lines(found: ScanReport) -> list[str]:
    """The tables, for people: one line per block, one per point of the curve."""
    measure = found.measure
    kinds = [
        k for k in ("attention", "feed-forward", "block") if any(p.part == k for p in found.parts)
    ]
    lines = [f"full model: {measure.label} {measure.text(found.full)}", ""]
    lines.append("block" + "".join(f"  {kind:>16}  rank  cost" for kind in kinds))
    cells = {(p.block, p.part): _cell(measure, p) for p in found.parts}
    empty = " " * len("  " + " " * 16 + "  rank  cost")
    for il in sorted({p.block for p in found.parts}):
        lines.append(f"{il:5}" + "".join(cells.get((il, kind), empty) for kind in kinds))
    if found.has_curve:
        lines += ["", f"skipped  cost  {measure.label:>10}" + "  expected" * measure.falls]
        for point in found.curve:
            speed = f"{point.speed:9.2f}x" if point.speed is not None else ""
            value = measure.text(point.score)
            lines.append(f"{point.share:7.0%}  {point.cost:4.2f}  {value:>10}{speed}")
    return lines


def _cell(measure: Measure, part: Part) -> str:
    error = measure.error(part.score)
    value = f"{measure.text(part.score)} ± " + (f"{error:.3f}" if error < 100 else f"{error:.2g}")
    return f"  {value:>16}  {part.rank:4}  {part.cost:4.0%}"


NOTHING_PAYS = "no mask is expected to make generation faster; the profile stays as it is"


def best_line(point: Point) -> str:
    mask = point.mask
    return (
        f"best mask: skips {len(mask.skip_attn)} attention, {len(mask.skip_ffn)} feed-forward parts"
        f" · cost {point.cost:.2f} · agreement {point.score.agreement:.2f} · expected "
        f"{point.speed or 0:.2f}x with {point.n_draft} drafted"
    )
