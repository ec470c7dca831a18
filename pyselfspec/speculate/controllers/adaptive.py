"""A threshold that follows the acceptance.

Zhang et al., "Draft & Verify: Lossless Large Language Model Acceleration via Self-Speculative
Decoding", https://arxiv.org/abs/2309.08168, section 3.4, with the parameters of its authors' code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...costs.table import CostTable
from ..types import After, DraftLimit, Step
from ._memory import Memory


@dataclass(frozen=True, slots=True)
class StopBelow(DraftLimit):
    """Stops after a token of lower probability than ``threshold``, which is still checked."""

    threshold: float = 0.0

    def after(self, probs: Any) -> After:
        stops = probs[-1] < self.threshold or len(probs) >= self.n_max
        return After.STOP if stops else After.GO_ON


@dataclass(slots=True)
class Adaptive:
    """Raise the threshold while fewer than ``target`` of the drafted tokens are accepted, lower it
    while more are, but not when the draft was as long as allowed.

    memory, inertia: weight of the past in the mean acceptance and in the threshold.
    epsilon: how far the threshold wants to move per step; it moves ``(1 - inertia) * epsilon``.
    """

    n_max: int = 12
    threshold: float = 0.8
    target: float = 0.9
    epsilon: float = 0.01
    memory: float = 0.5
    inertia: float = 0.9
    acceptance: float = 0.9  # running mean, which starts at the target

    def limit(self, n_past: int) -> DraftLimit:
        return StopBelow(self.n_max, threshold=self.threshold)

    def observe(self, step: Step) -> None:
        n = step.n_drafted
        if n == 0:
            return
        self.acceptance = self.memory * self.acceptance + (1 - self.memory) * step.n_accepted / n
        wanted = self.threshold
        if self.acceptance < self.target:
            wanted += self.epsilon
        elif n < self.n_max:
            wanted -= self.epsilon
        self.threshold = self.inertia * self.threshold + (1 - self.inertia) * wanted


def make(costs: CostTable, memory: Memory | None = None) -> Adaptive:
    return Adaptive()
