"""Formats the results of a scan or a search as tables and as JSON. Pure."""

from __future__ import annotations

from typing import Any

from .report import Point, ScanReport, Shown, UnitScore

NOTHING_PAYS = "no mask is expected to make generation faster; the profile stays as it is"


def to_dict(found: ScanReport) -> dict[str, Any]:
    """Return the report as data for JSON."""
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
    """Return the report as lines of text: a table of blocks and a table of the curve."""
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


def best_line(best: Point, label: str) -> str:
    """Return a line on the best mask. label: the objective's, for masks without expected speed."""
    mask = best.mask
    what = (
        f"best mask: skips {len(mask.skip_attn)} attention, {len(mask.skip_ffn)} feed-forward "
        f"sublayers · cost {best.cost:.2f} · "
    )
    if best.speed is None:
        return f"{what}{label} {best.shown.text}"
    return (
        f"{what}agreement {best.score.agreement:.2f} · expected {best.speed:.2f}x with "
        f"{best.n_draft} draft tokens"
    )
