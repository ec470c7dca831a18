"""Generation without a model: steps with synthetic acceptance at synthetic costs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from drafts import draft_of

from pyselfspec.costs.table import N_WIDTH, Costs, CostTable
from pyselfspec.speculate.limits import DraftDecision
from pyselfspec.speculate.types import Draft, Step, Verdict

RIGHT, WRONG = 1, 0  # the target draws 1 all the time


def table(
    c: float = 0.27,
    growth: Sequence[float] | float = 0.25,
    shared: float = 0.25,
    plain_us: float = 20_000.0,
) -> CostTable:
    """c: of a draft token, shared: of what draft and verification share, both over a plain token.

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
# the same with kernels for few rows: Q4_0 and Q4_K_M with AVX-512, Q4_0 with AVX2, a tiny model
FEW_ROWS = interpolated({1: 1, 2: 1.03, 3: 1.1, 4: 1.18, 5: 1.36, 6: 1.56, 8: 2.0, 16: 3.9})
K_QUANT = interpolated({1: 1, 2: 1.14, 3: 1.25, 4: 1.41, 5: 1.58, 6: 1.79, 8: 2.3, 16: 4.5})
NARROW = interpolated({1: 1, 2: 1.28, 3: 1.64, 4: 2, 5: 2.8, 6: 3.1, 7: 3.5, 8: 3.8, 16: 7})
TINY = interpolated({1: 1, 2: 1.48, 3: 1.98, 4: 2.0, 5: 2.23, 6: 2.47, 7: 2.91, 8: 3.11, 16: 5.8})


def informed(chance: float, rng: np.random.Generator) -> float:
    """The probability of a drafter that knows when it is right, but thinks too well of itself."""
    return float(chance**0.6)


def uninformed(chance: float, rng: np.random.Generator) -> float:
    """Return the probability of a token among many candidates, right or wrong, as random weights
    give it."""
    return float(rng.uniform(0.02, 0.2))


def silent(chance: float, rng: np.random.Generator) -> None:
    """Return no probability, as a drafter that copies earlier text."""


@dataclass
class Text:
    """Draft tokens of which a share ``alpha`` is right on average, more where ``prob`` says so.

    alpha: may depend on the tokens generated so far. prob: of the drafter, from the chance that the
    token is right.
    """

    alpha: Callable[[int], float] | float
    rng: np.random.Generator
    n_tokens: int = 0
    prob: Callable[[float, np.random.Generator], float | None] = informed

    def draft_token(self) -> tuple[float | None, bool]:
        alpha = self.alpha(self.n_tokens) if callable(self.alpha) else self.alpha
        chance = self.rng.beta(2 * alpha, 2 * (1 - alpha)) if 0 < alpha < 1 else alpha
        return self.prob(chance, self.rng), bool(self.rng.random() < chance)


def draft(text: Text, limit: Any) -> Draft:
    tokens: list[int] = []
    probs: list[Any] = []
    after = DraftDecision.GO_ON
    while after is DraftDecision.GO_ON:
        p, right = text.draft_token()
        token = RIGHT if right else WRONG
        # without probabilities, only a probe drops a token
        after = limit.after([*probs, float(math.isfinite(limit.p_min)) if p is None else p])
        if after is DraftDecision.DROP:
            return draft_of(tokens, probs, dropped=(token, p))
        tokens.append(token)
        probs.append(p)
    return draft_of(tokens, probs)


@dataclass
class Device:
    """A device of its own, whose work is not over when a pass returns.

    is_asynchronous: the last pass of a draft, whose result nobody reads, is waited for in the
        verification. n_compiling: how many plain passes the first pass of each kind takes longer.
    """

    is_asynchronous: bool = False
    n_compiling: float = 0.0
    known: set[tuple[int, int]] = field(default_factory=set)

    def first_us(self, plain_us: float, n_proposed: int, n_drafted: int) -> float:
        kind = bool(n_proposed), n_drafted
        is_new = n_drafted > 0 and kind not in self.known
        self.known.add(kind)
        return self.n_compiling * plain_us * is_new


def run(
    controller: Any,
    text: Text,
    true: CostTable,
    n_tokens: int,
    noise: float = 0.03,
    hiccups: float = 0.0,
    device: Device | None = None,
) -> tuple[float, list[Step]]:
    """Speed over plain decoding, and the steps.

    hiccups: share of the passes that take ten times as long; plain decoding has as many.
    device: where passes are computed; None: on a CPU.
    """
    costs = true.levels[0]
    rng = text.rng
    device = device or Device()

    def timed(us: float) -> float:
        slow = 10 if hiccups and rng.random() < hiccups else 1
        return slow * us * float(np.exp(rng.normal(0, noise)))

    spent = 0.0
    steps = []
    while text.n_tokens < n_tokens:
        limit = controller.limit(text.n_tokens).capped(n_tokens - text.n_tokens - 1)
        made = draft(text, limit) if limit.n_max else Draft()
        n_right = next((i for i, t in enumerate(made.token_ids) if t == WRONG), len(made.tokens))
        n_proposed = made.n_proposed
        drafting = timed(costs.drafting_us(n_proposed, len(made.tokens)))
        verifying = timed(costs.verifying_us(n_proposed, len(made.tokens)))
        verifying += device.first_us(costs.plain_us, n_proposed, len(made.tokens))
        late = costs.last_us if device.is_asynchronous and n_proposed else 0.0
        made = replace(made, draft_us=round(drafting - late))
        removes = costs.removal_us and n_right < len(made.tokens)
        removing = timed(costs.removal_us) if removes else 0.0
        verdict = Verdict.of_chain(n_right, RIGHT, False)
        step = Step(made, verdict, round(verifying + late), removal_us=round(removing))
        steps.append(step)
        controller.observe(step)
        text.n_tokens += len(step.tokens)
        spent += drafting + verifying + removing
    return text.n_tokens * costs.plain_us * (1 + 9 * hiccups) / spent, steps


def converse(
    make: Callable[[Any], Any],
    texts: Sequence[Text],
    true: CostTable,
    n_tokens: int,
    noise: float = 0.03,
    hiccups: float = 0.0,
    device: Device | None = None,
) -> list[float]:
    """Speeds of several texts in a row; make: a controller from the memory of the one before."""
    memory, speeds = None, []
    for text in texts:
        controller = make(memory)
        speeds.append(run(controller, text, true, n_tokens, noise, hiccups, device)[0])
        memory = getattr(controller, "memory", None)
    return speeds
