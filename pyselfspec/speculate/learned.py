"""What texts have taught about a model on this machine, kept between runs in the user's cache
folder: what passes cost by their width, and how often copies are right.

Estimates to begin with, never needed: a file that is missing, or of no use, costs a few steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from ..costs.calibration import MAX_US, costs_of_copies, key_of
from ..costs.table import N_WIDTH, CostTable
from ..costs.timed import TimedCosts
from ..errors import ArgumentError
from ..runtime.context import Context
from ..util import paths, records
from .ngrams import LENGTHS, N_SURENESS, Chances, Counts

OF_EARLIER = 0.5  # of the chance of a match in the same text: prior of one in an earlier text
OF_SIBLING = 0.5  # the same of what else has followed it, where the copy is wrong


@dataclass(frozen=True, slots=True)
class Learned:
    """widths: times of full passes over 1 to N_WIDTH tokens over that of one.
    copies, earlier: right and all copies by kind of match, see ngrams.Chances.
    """

    FORMAT: ClassVar[int] = 1

    widths: tuple[float, ...]
    copies: Counts
    earlier: Counts

    def __post_init__(self) -> None:
        if len(self.widths) != N_WIDTH or not all(0 < w < MAX_US for w in self.widths):
            raise ArgumentError("widths are not what they can be")
        for counts in (self.copies, self.earlier):
            shape = {len(row) for row in counts}
            if len(counts) != len(LENGTHS) or shape != {N_SURENESS}:
                raise ArgumentError("copies are not counted by kind of match")
            if not all(0 <= right <= n < MAX_US and n for row in counts for right, n in row):
                raise ArgumentError("counts are not what they can be")


def path_of(context: Context) -> Path:
    """Where it is kept: by model, build, devices, threads and kind of attention."""
    return paths.cache("learned") / f"{key_of(context, {}).folder.name}.json"


def load(context: Context) -> Learned | None:
    """What was kept, None where there is nothing of use. Read once per context."""

    def read() -> Learned | None:
        with suppress(OSError, ArgumentError):
            return records.load(path_of(context), Learned, what="file of what was learned")
        return None

    found: Learned | None = context.once(("learned",), read)
    return found


def widths(context: Context) -> tuple[float, ...] | None:
    """Times of full passes by their width, as kept."""
    kept = load(context)
    return kept.widths if kept else None


def costs(context: Context, drafter: Mapping[str, Any]) -> CostTable:
    """What passes cost for a drafter without any of its own, as far as is known; drafter: its
    identity."""
    return costs_of_copies(context, drafter, widths(context))


def copies(context: Context) -> Chances:
    """Of copies from the text itself: what was kept, and what this context adds to it."""
    kept = load(context)
    found: Chances = context.once(
        ("chances of copies",), lambda: Chances(counts=kept.copies if kept else None)
    )
    return found


def earlier_copies(context: Context) -> Chances:
    """The same of copies from earlier texts."""
    kept = load(context)
    found: Chances = context.once(
        ("chances of earlier copies",),
        lambda: Chances(OF_EARLIER, kept.earlier if kept else None),
    )
    return found


def siblings(context: Context) -> Chances:
    """Of what else has followed a match, where the copy is wrong. Not kept."""
    found: Chances = context.once(("chances of siblings",), lambda: Chances(OF_SIBLING))
    return found


def save(context: Context, timings: TimedCosts) -> None:
    """Keep for the next run what this one has learned, if passes over copies were timed. A folder
    that cannot be written to is no reason to fail."""
    if not timings.knows_widths:
        return
    full_us = timings.at(0).rising().full_us
    ratios = tuple(us / full_us[0] for us in full_us)
    with suppress(OSError, ArgumentError):
        learned = Learned(ratios, copies(context).counts, earlier_copies(context).counts)
        path = path_of(context)
        path.parent.mkdir(parents=True, exist_ok=True)
        records.save(path, learned)
