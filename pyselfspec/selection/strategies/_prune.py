"""Removes the worst candidates of a round from the next one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from ...errors import ArgumentError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Prune:
    """How many candidates are removed after each round.

    share: share of the candidates that are not needed to reach the target size.
    count: a fixed number instead. llama.cpp's pull request 3565 removes 2, which limits the mask to
        about a third of all units.
    """

    share: float = 0.1
    count: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.share < 1:
            raise ArgumentError(f"the share to prune is 0 or more and below 1, got {self.share:g}")
        if self.count is not None and self.count < 0:
            raise ArgumentError(f"the count to prune is 0 or more, got {self.count}")

    def keep(self, ranked: Sequence[T], n_needed: int) -> list[T]:
        """Return the candidates that remain of those after the best one, best first."""
        if self.count is not None:
            n_out = self.count if len(ranked) + 1 >= 2 * self.count else 0
        else:
            n_out = int(self.share * max(0, len(ranked) - n_needed))
        return list(ranked[: len(ranked) - n_out])


@dataclass(frozen=True, slots=True)
class Pruning:
    """Options of strategies that prune candidates."""

    prune: Prune = Prune()
