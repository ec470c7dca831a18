"""Scans: which parts of a model can be skipped. One file each, named as users call it.

A scan is a module here with a function ``scan(space, plan)``: a generator that yields the passes it
wants measured and is sent their scores. It knows no model, so it can be tested without one. The
command line and the conformance tests find it by listing this folder.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from ...errors import ArgumentError
from ...masks.space import Space
from ...util import by_name
from ..measuring import Measuring, Pass, Progress, Scored

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Prune:
    """Which candidates of a pass the next one leaves out.

    share: of the candidates that are more than needed, so that the end is always reached.
    count: instead, this many, as llama.cpp's pull request 3565 does with 2: then about a third of
    all parts is the most that can be skipped.
    """

    share: float = 0.1
    count: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.share < 1:
            raise ArgumentError(f"the share to prune is at least 0 and below 1, got {self.share:g}")
        if self.count is not None and self.count < 0:
            raise ArgumentError(f"0 or more candidates are pruned, got {self.count}")

    def keep(self, ranked: Sequence[T], n_needed: int) -> list[T]:
        """Candidates that stay, of those left after the best was taken, best first."""
        if self.count is not None:
            n_out = self.count if len(ranked) + 1 >= 2 * self.count else 0
        else:
            n_out = int(self.share * max(0, len(ranked) - n_needed))
        return list(ranked[: len(ranked) - n_out])


@dataclass(frozen=True, slots=True)
class Plan:
    """share: of the units that the last mask skips."""

    share: float = 0.5
    prune: Prune = Prune()

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ArgumentError(f"the share to skip is above 0 and at most 1, got {self.share:g}")


Passes = Generator[Pass, list[Scored], None]


class Scan(Protocol):
    def __call__(self, space: Space, plan: Plan) -> Passes: ...


def names() -> tuple[str, ...]:
    """Names of all scans, as the command line spells them."""
    return by_name.names(__path__)


def load(name: str) -> Scan:
    """The ``scan`` function of a file. Raises ArgumentError for a name that is no file here."""
    found: Scan = by_name.load(__name__, "scan", name).scan
    return found


def run(passes: Passes, measuring: Measuring) -> Generator[Progress, None, list[Scored]]:
    """Measure what a scan asks for; returns the best mask of each pass, or all masks of passes in
    which every one counts."""
    found: list[Scored] = []
    try:
        request = next(passes)
        while True:
            scored = yield from measuring.scores(request)
            found += [min(scored, key=lambda s: s.rank)] if request.best_only else scored
            request = passes.send(scored)
    except StopIteration:
        return found


def in_order(candidates: Sequence[int], scored: Sequence[Scored]) -> list[int]:
    """Candidates with the best first; of equal ones the lower block."""
    ranks = {c: s.rank for c, s in zip(candidates, scored, strict=True)}
    return sorted(candidates, key=lambda c: (ranks[c], c))
