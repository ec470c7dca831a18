"""Which candidates of a round the next one leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from ...errors import ArgumentError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Prune:
    """share: of the candidates that are more than needed, so that the end is always reached.
    count: instead, this many, as llama.cpp's pull request 3565 does with 2: then about a third of
    all units is the most that can be skipped.
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
class Pruning:
    """Options of strategies whose rounds have ever fewer candidates."""

    prune: Prune = Prune()
