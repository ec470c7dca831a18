"""A drafter and a controller that do as a test says. Numpy only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..costs.table import N_WIDTH, Costs, CostTable
from ..speculate.drafters import Drafter
from ..speculate.limits import DraftLimit
from ..speculate.types import Draft, Step, Verdict
from .fake_model import Broken, FakeModel


@dataclass
class FakeDrafter(Drafter):
    """Drafts the script's most likely tokens without passes, as if by passes.

    has_probs: whether its tokens have probabilities. fail_at: the n-th draft (from 1) raises
    Broken.
    """

    model: FakeModel
    verdicts: list[Verdict] = field(default_factory=list)
    limits: list[DraftLimit] = field(default_factory=list)
    has_probs: bool = True
    fail_at: int | None = None
    n_closed: int = 0

    name = "fake"

    def costs(self) -> CostTable:
        widths = tuple(1000.0 + 100 * i for i in range(N_WIDTH))
        return CostTable((Costs(0, widths, widths, 1.0, 0.0),))

    def begin(self, seq: Any, history: Sequence[int]) -> None:
        self.begun_with = list(history)

    def draft(self, history: Sequence[int], limit: DraftLimit) -> Draft:
        if limit.n_max == 0:
            return Draft()
        self.limits.append(limit)
        if len(self.limits) == self.fail_at:
            raise Broken
        tokens: list[int] = []
        probs: list[float] = []
        while len(tokens) < limit.n_max:
            p = self.model.draft([*history, *tokens])
            tokens.append(int(p.argmax()))
            probs.append(float(p.max()))
        return Draft.chain(tokens, probs if self.has_probs else None)

    def accept(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)

    def close(self) -> None:
        self.n_closed += 1


@dataclass
class FakeController:
    """Walks a list of draft lengths, round and round, and keeps the steps it sees."""

    lengths: Sequence[int]
    p_min: float = 0.0
    steps: list[Step] = field(default_factory=list)

    def limit(self, n_past: int) -> DraftLimit:
        return DraftLimit(self.lengths[len(self.steps) % len(self.lengths)], self.p_min)

    def observe(self, step: Step) -> None:
        self.steps.append(step)
