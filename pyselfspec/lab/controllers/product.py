"""Drafts that go on while all of their tokens together are likely to be accepted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ...costs.table import CostTable
from ...errors import ArgumentError
from ...speculate.controllers._acceptance import Learned
from ...speculate.limits import DraftDecision, DraftLimit
from ...speculate.types import Step


@dataclass(frozen=True, slots=True)
class ProductLimit(DraftLimit):
    """Drops the token that takes the product of all probabilities below ``bound``."""

    bound: float = 0.0

    def after(self, probs: Sequence[float]) -> DraftDecision:
        if math.prod(probs) < self.bound:
            return DraftDecision.DROP
        return DraftDecision.STOP if len(probs) >= self.n_max else DraftDecision.GO_ON


@dataclass(frozen=True, slots=True)
class Product:
    """Draft while the product of the probabilities is at least ``bound``."""

    n_max: int = 12
    bound: float = 0.4

    def __post_init__(self) -> None:
        if self.n_max < 1:
            raise ArgumentError(f"n_max is 1 token or more, got {self.n_max}")
        if not 0.0 <= self.bound <= 1.0:
            raise ArgumentError(f"bound is 0 to 1, got {self.bound:g}")

    def limit(self, n_past: int) -> DraftLimit:
        return ProductLimit(self.n_max, bound=self.bound)

    def observe(self, step: Step) -> None:
        pass


def make(costs: CostTable, memory: Learned | None = None) -> Product:
    return Product()
