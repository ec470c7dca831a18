"""Bars of speeds, and llama.cpp's kernels to compare with: for bench and demo."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import click
from rich.table import Table
from rich.text import Text

from ..bench.figures import Row
from ..bench.tables import short
from ..bench.upstream import Opener, UpstreamKernels
from ..errors import SelfSpecError
from ..runtime.model import Model

N_BAR = 24  # characters of the longest


@dataclass(frozen=True, slots=True)
class Speed:
    """The speed of a variant. prompt_per_second: prompt tokens, None where unknown."""

    name: str
    tokens_per_second: float
    prompt_per_second: float | None

    @classmethod
    def of(cls, row: Row) -> Speed:
        """Return the medians of a row of bench."""
        read = row.prompt_per_second
        return cls(row.variant, row.tokens_per_second.median, None if read is None else read.median)


def bars(speeds: Sequence[Speed]) -> Table:
    """Return a line for each speed: a bar, and tokens per second of the text and of the prompt."""
    highest = max((each.tokens_per_second for each in speeds), default=0.0) or 1.0
    table = Table.grid(padding=(0, 1))
    for justify in ("left", "left", "right", "right"):
        table.add_column(justify=justify)
    for each in speeds:
        length = round(N_BAR * each.tokens_per_second / highest)
        read = each.prompt_per_second
        table.add_row(
            each.name,
            Text("█" * length, "green"),
            f"{short(each.tokens_per_second)} tokens/s",
            "" if read is None else f"prompt {short(read)} tokens/s",
        )
    return table


@contextmanager
def upstream_kernels(model: Model, opener: Opener) -> Iterator[UpstreamKernels | None]:
    """Yield a process that opens the model too and uses llama.cpp's kernels; None, with a line on
    stderr, where it cannot."""
    with ExitStack() as stack:
        process = None
        try:
            process = stack.enter_context(UpstreamKernels(model, opener))
        except SelfSpecError as error:
            click.echo(f"llama.cpp's kernels are not measured: {error}", err=True)
        yield process
