"""Chart of a sweep over exits and draft lengths: a heat map of expected speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure

from . import entitle


def draw(speeds: Mapping[int, Sequence[float]], title: str) -> Figure:
    """Draw the heat map. speeds: by exit, one per draft length from 1 on."""
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    exits = sorted(speeds)
    image = axes.imshow(
        [speeds[keep] for keep in exits], aspect="auto", origin="lower", cmap="viridis"
    )
    axes.set_yticks(range(len(exits)), [str(keep) for keep in exits])
    n_lengths = len(speeds[exits[0]])
    axes.set_xticks(range(n_lengths), [str(n) for n in range(1, n_lengths + 1)])
    axes.set(xlabel="tokens drafted", ylabel="blocks before the exit")
    entitle(figure, title)
    figure.colorbar(image, label="expected speed over plain decoding")
    return figure
