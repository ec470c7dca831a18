"""Generation without a model: steps with synthetic acceptance at synthetic costs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pyselfspec.costs.table import N_WIDTH, Costs, CostTable
from pyselfspec.speculate.types import After, Draft, Step, Verdict

RIGHT, WRONG = 1, 0  # the target draws 1 all the time


def table(
    c: float = 0.27,
    growth: Sequence[float] | float = 0.25,
    shared: float = 0.25,
    plain_us: float = 20_000.0,
) -> CostTable:
    """c: of a guess, shared: of what draft and check share, both over a plain token.

    growth: what each further token of a pass costs over the first, or the cost of each width.
    """
    if isinstance(growth, float):
        growth = [1 + growth * i for i in range(N_WIDTH)]
    full = tuple(plain_us * w for w in growth)
    check = tuple((1 - shared) * us for us in full)
    return CostTable((Costs(0, full, check, c * plain_us, shared * plain_us),))


def interpolated(points: dict[int, float]) -> list[float]:
    """Costs of all widths from those of a few."""
    widths = range(1, N_WIDTH + 1)
    return [float(v) for v in np.interp(widths, list(points), list(points.values()))]


# measured on two cores: blocks of four rows make a staircase
Q4_0 = interpolated({1: 1, 2: 1.73, 3: 2.41, 4: 2.50, 5: 3.26, 6: 4.01, 7: 4.68, 8: 4.88, 16: 6.96})
Q8_0 = interpolated({1: 1, 2: 2.01, 3: 2.31, 4: 2.44, 5: 3.55, 6: 3.66, 7: 4.04, 8: 3.57, 16: 6.3})
BF16 = interpolated({1: 1, 2: 1.2, 3: 1.29, 4: 1.38, 5: 1.4, 6: 1.45, 7: 1.67, 8: 1.7, 16: 2.37})


@dataclass
class Text:
    """Guesses of which a share ``alpha`` is right on average, more where the drafter is surer.

    The drafter is overconfident. alpha: may depend on the tokens generated so far.
    """

    alpha: Callable[[int], float] | float
    rng: np.random.Generator
    n_tokens: int = 0

    def guess(self) -> tuple[float, bool]:
        alpha = self.alpha(self.n_tokens) if callable(self.alpha) else self.alpha
        chance = self.rng.beta(2 * alpha, 2 * (1 - alpha)) if 0 < alpha < 1 else alpha
        return float(chance**0.6), bool(self.rng.random() < chance)


def draft(text: Text, limit: Any) -> Draft:
    tokens: list[int] = []
    probs: list[float] = []
    after = After.GO_ON
    while after is After.GO_ON:
        p, right = text.guess()
        token = RIGHT if right else WRONG
        after = limit.after([*probs, p])
        if after is After.DROP:
            return Draft(tuple(tokens), tuple(probs), dropped=(token, p))
        tokens.append(token)
        probs.append(p)
    return Draft(tuple(tokens), tuple(probs))


def run(
    controller: Any, text: Text, true: CostTable, n_tokens: int, noise: float = 0.03
) -> tuple[float, list[Step]]:
    """Speed over plain decoding, and the steps."""
    costs = true.levels[0]
    spent = 0.0
    steps = []
    while text.n_tokens < n_tokens:
        limit = controller.limit(text.n_tokens).capped(n_tokens - text.n_tokens - 1)
        made = draft(text, limit) if limit.n_max else Draft()
        n_right = next((i for i, t in enumerate(made.tokens) if t == WRONG), len(made.tokens))
        n_guesses = len(made.tokens) + (made.dropped is not None)
        drafting, checking = (
            us * float(np.exp(text.rng.normal(0, noise)))
            for us in (
                costs.draft_us(n_guesses, len(made.tokens)),
                costs.verify_us(n_guesses, len(made.tokens)),
            )
        )
        made = Draft(made.tokens, made.probs, round(drafting), None, made.dropped)
        step = Step(made, Verdict.of_chain(n_right, RIGHT, False), round(checking))
        steps.append(step)
        controller.observe(step)
        text.n_tokens += len(step.tokens)
        spent += drafting + checking
    return text.n_tokens * costs.plain_us / spent, steps
