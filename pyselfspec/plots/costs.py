"""Chart of costs of passes, and of the speed-up that drafting can reach with them."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..costs.speedup import best_length
from ..costs.table import N_WIDTH, Costs, CostTable
from . import entitle


def draw(table: CostTable, by_bytes: CostTable, title: str) -> Figure:
    """Draw costs of passes over their width, measured and estimated from weight bytes, and the best
    draft length with its speed-up over the acceptance rate."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    entitle(figure, title)
    left, right = figure.subplots(1, 2)
    widths = range(1, N_WIDTH + 1)
    for costs in table.levels:
        plain = costs.plain_us
        name = f"{costs.n_past} tokens of context"
        left.plot(widths, [us / plain for us in costs.full_us], "o-", label=f"full, {name}")
        if not costs.only_copies:
            left.plot(
                widths, [us / plain for us in costs.verify_us], "s--", label=f"verification, {name}"
            )
    first = table.levels[0]
    if not first.only_copies:
        _draw_drafts(left, first, by_bytes.levels[0])
    left.set(xlabel="tokens in the pass", ylabel="time over a plain token", ylim=(0, None))
    left.legend(fontsize="small")

    rates = np.linspace(0, 0.99, 100)
    best = [best_length(first, float(rate)) for rate in rates]
    speed = right.plot(rates, [speed for speed, _ in best], label="best speed over plain")
    right.set(xlabel="acceptance", ylabel="speed over plain decoding")
    lengths = right.twinx()
    n_best = [n for _, n in best]
    length = lengths.step(rates, n_best, color="tab:orange", label="best draft length")
    lengths.set(ylabel="best draft length, tokens", ylim=(0, max(n_best) + 1))
    right.legend(handles=[*speed, *length], loc="upper left")
    return figure


def _draw_drafts(axes: Axes, measured: Costs, by_bytes: Costs) -> None:
    axes.axhline(measured.token_us / measured.plain_us, color="grey", label="draft token")
    axes.axhline(
        by_bytes.token_us / by_bytes.plain_us,
        color="grey",
        linestyle=":",
        label="draft token by weight bytes",
    )
