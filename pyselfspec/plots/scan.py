"""Picture of a scan: what every part is worth, and what skipping more and more of them costs."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..selection.scan_report import ScanReport

COLOURS = {"attention": "#3b6fb6", "feed-forward": "#e08a2e", "block": "#6a8f5a"}


def draw(found: ScanReport, title: str) -> Figure:
    """Bars per block for its parts; where there is one, the trade-off curve beside them."""
    has_curve = found.has_curve
    figure = Figure(figsize=(11 if has_curve else 7, 4), layout="constrained")
    axes = figure.subplots(1, 2 if has_curve else 1, squeeze=False)[0]
    figure.suptitle(title)
    _bars(axes[0], found)
    if has_curve:
        _curve(axes[1], found)
    return figure


def _bars(axes: Axes, found: ScanReport) -> None:
    kinds = [kind for kind in COLOURS if any(p.part == kind for p in found.parts)]
    width = 0.8 / max(1, len(kinds))
    for i, kind in enumerate(kinds):
        parts = [p for p in found.parts if p.part == kind]
        offset = (i - (len(kinds) - 1) / 2) * width
        axes.bar(
            [p.block + offset for p in parts],
            [max(0.0, p.score.mean_excess) for p in parts],
            width,
            yerr=[p.score.stderr_excess for p in parts],
            color=COLOURS[kind],
            label=f"{kind} skipped",
        )
    lost = "agreement lost" if found.measure.falls else "nats per token lost"
    axes.set(xlabel="block", ylabel=lost, title="one part skipped")
    axes.set_yscale("symlog", linthresh=0.1)
    axes.set_ylim(bottom=0)
    axes.legend()


def _curve(axes: Axes, found: ScanReport) -> None:
    measure = found.measure
    axes.errorbar(
        [100 * p.share for p in found.curve],
        [measure.value(p.score) for p in found.curve],
        [measure.error(p.score) for p in found.curve],
        marker="o",
        capsize=2,
        color="#333333",
    )
    if not measure.falls:
        axes.set_yscale("log")
    axes.set(xlabel="parts skipped, %", ylabel=measure.label, title="parts skipped together")
    axes.grid(alpha=0.3)
