"""Chart of a scan: the score of every unit, and of masks that skip more and more units."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..selection.report import ScanReport
from . import entitle

COLOURS = {"attention": "#3b6fb6", "feed-forward": "#e08a2e", "block": "#6a8f5a"}


def draw(found: ScanReport, title: str) -> Figure:
    """Draw bars for the units of each block and, if there is one, the trade-off curve."""
    has_curve = found.has_curve
    figure = Figure(figsize=(11 if has_curve else 7, 4), layout="constrained")
    axes = figure.subplots(1, 2 if has_curve else 1, squeeze=False)[0]
    entitle(figure, title)
    _bars(axes[0], found)
    if has_curve:
        _curve(axes[1], found)
    return figure


def _bars(axes: Axes, found: ScanReport) -> None:
    kinds = [kind for kind in COLOURS if any(u.kind == kind for u in found.units)]
    width = 0.8 / max(1, len(kinds))
    for i, kind in enumerate(kinds):
        units = [u for u in found.units if u.kind == kind]
        offset = (i - (len(kinds) - 1) / 2) * width
        axes.bar(
            [u.block + offset for u in units],
            [max(0.0, u.lost) for u in units],
            width,
            yerr=[u.lost_error for u in units],
            color=COLOURS[kind],
            label=f"{kind} skipped",
        )
    axes.set(xlabel="block", ylabel=found.about.lost, title="one unit skipped")
    axes.set_yscale("symlog", linthresh=0.1)
    axes.set_ylim(bottom=0)
    axes.legend()


def _curve(axes: Axes, found: ScanReport) -> None:
    axes.errorbar(
        [100 * p.share for p in found.curve],
        [p.shown.value for p in found.curve],
        [p.shown.error or 0.0 for p in found.curve],
        marker="o",
        capsize=2,
        color="#333333",
    )
    if not found.about.higher_is_better:  # perplexities grow without bound
        axes.set_yscale("log")
    axes.set(
        xlabel="sublayers skipped, %", ylabel=found.about.label, title="units skipped together"
    )
    axes.grid(alpha=0.3)
