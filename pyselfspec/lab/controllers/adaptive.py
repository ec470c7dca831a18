"""A threshold on the probability that follows the acceptance rate.

Zhang et al., "Draft & Verify: Lossless Large Language Model Acceleration via Self-Speculative
Decoding", https://arxiv.org/abs/2309.08168, section 3.4, with the parameters of its authors' code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...costs.table import CostTable
from ...speculate.controllers._acceptance import Learned
from ...speculate.limits import DraftDecision, DraftLimit
from ...speculate.types import Step


@dataclass(frozen=True, slots=True)
class StopBelow(DraftLimit):
    """Stops after a token of lower probability than ``threshold``, which is still verified."""

    threshold: float = 0.0

    def after(self, probs: Any) -> DraftDecision:
        stops = probs[-1] < self.threshold or len(probs) >= self.n_max
        return DraftDecision.STOP if stops else DraftDecision.GO_ON


@dataclass(slots=True)
class Adaptive:
    """Raise the threshold while fewer than ``target`` of the drafted tokens are accepted, lower it
    while more are, but not when the draft was as long as allowed.

    memory, inertia: weight of the past in the mean acceptance rate and in the threshold, 0..1.
    epsilon: step of the threshold before inertia; it moves by ``(1 - inertia) * epsilon``.
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
        goal = self.threshold
        if self.acceptance < self.target:
            goal += self.epsilon
        elif n < self.n_max:
            goal -= self.epsilon
        self.threshold = self.inertia * self.threshold + (1 - self.inertia) * goal


def make(costs: CostTable, memory: Learned | None = None) -> Adaptive:
    return Adaptive()
