"""A picture of what was said of the chances of draft tokens, and of what happened."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from tools.records import Record

N_LEAST = 20  # tokens of a bin that is drawn


def points(n_said: Sequence[int], n_right: Sequence[int]) -> list[tuple[float, float, int]]:
    """Return for each bin of probabilities with enough tokens its middle, the share of right
    tokens, and their number."""
    n_bin = len(n_said)
    return [
        ((i + 0.5) / n_bin, right / n, n)
        for i, (n, right) in enumerate(zip(n_said, n_right, strict=True))
        if n >= N_LEAST
    ]


def draw(runs: dict[str, Record], title: str) -> Figure:
    """runs: by a label, with ``n_said`` and ``n_right``."""
    figure = Figure(figsize=(5, 5), layout="constrained")
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="grey", linewidth=1)
    for label, run in runs.items():
        found = points(run["n_said"], run["n_right"])
        x, y, n = (list(column) for column in zip(*found, strict=True)) if found else ([], [], [])
        axes.plot(x, y, "o-", label=f"{label}, {sum(n)} tokens")
    axes.set(
        xlabel="chance that was expected",
        ylabel="share that was right",
        xlim=(0, 1),
        ylim=(0, 1),
        title=title,
    )
    axes.legend(fontsize="small")
    return figure


def save(path: Path, records: Sequence[Record], together: Sequence[Record]) -> None:
    """One line per record; together: the run over all kinds of each."""
    runs = {
        f"{record['model']}, temperature {record['temp']:g}": run
        for record, run in zip(records, together, strict=True)
    }
    draw(runs, "draft tokens").savefig(path)
