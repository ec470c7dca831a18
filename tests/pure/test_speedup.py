"""The formula for the speed-up, against the arithmetic of each of its users written out."""

import random
import re
from pathlib import Path

import numpy as np
import pytest
from parameters import for_seeds
from simulation import BF16, FEW_ROWS, K_QUANT, NARROW, Q8_0, table

from pyselfspec.costs.speedup import best_length, expected_tokens, gains, speedup
from pyselfspec.masks.layer_mask import LayerMask
from pyselfspec.masks.score import Score
from pyselfspec.speculate.controllers._acceptance import N_PROB, Acceptance
from pyselfspec.speculate.controllers._choice import COPY_LENGTHS
from pyselfspec.speculate.controllers._decision import P_KEEP_MIN, Decision, best_rule
from pyselfspec.util.pass_width import MAX_DRAFT, MAX_PASS_WIDTH, N_WIDTH

GROWTHS = [BF16, FEW_ROWS, K_QUANT, NARROW, Q8_0, 0.1]
MASK = LayerMask.early_exit(4, 2)


def random_costs(rng):
    growth, shared = rng.choice(GROWTHS), rng.choice((0.0, 0.3))
    return table(rng.uniform(0.1, 0.9), growth, shared=shared).levels[0]


@pytest.mark.parametrize("a", [0.0, 0.3, 0.8, 1.0])
@pytest.mark.parametrize("c", [0.05, 0.5])
def test_it_is_theorem_3_8(a, c):
    tokens = expected_tokens(a**n for n in range(1, 9))
    for n in range(9):
        numerator = n + 1 if a == 1 else (1 - a ** (n + 1)) / (1 - a)
        assert speedup(tokens[n], n * c + 1) == pytest.approx(numerator / (n * c + 1))


@for_seeds(50)
def test_the_best_length_for_a_rate(seed):
    rng = random.Random(seed)
    costs, rate = random_costs(rng), rng.random()
    best, n_best, tokens = 1.0, 0, 1.0
    for n in range(1, len(costs.verify_us)):
        tokens += rate**n
        speed = tokens * costs.plain_us / costs.step_us(n, n)
        if speed > best:
            best, n_best = speed, n
    assert best_length(costs, rate) == (best, n_best)


@for_seeds(50)
def test_gains_of_a_mask(seed):
    rng = np.random.default_rng(seed)
    score = Score.of_drafts(rng.random((3, 32)) < rng.uniform(0.3, 1))

    class Costs:
        def step(self, _mask, n_draft):
            return 1 + 0.17 * n_draft

    pairs = list(zip(score.n_right_runs, score.n_runs, strict=True))
    for n, found in enumerate(gains(score, MASK, Costs()), 1):
        tokens = 1 + sum(right / n_runs for right, n_runs in pairs[:n])
        assert found.n_draft == n
        assert found.speed == pytest.approx(tokens / (1 + 0.17 * n), rel=1e-14)
    assert n == MAX_DRAFT


@for_seeds(50)
def test_the_best_rule_for_drafts(seed):
    rng = random.Random(seed)
    costs, acceptance = random_costs(rng), Acceptance()
    acceptance.observe((p, rng.random() < p) for p in (rng.random() for _ in range(40)))
    n_most, n_copied = rng.randrange(1, 11), rng.randrange(5)
    share, rate = map(np.array, acceptance.rows())
    best = (0.0, 0.0, 0.0)
    for row in range(N_PROB):
        kept, right = share[row:].sum(), (share * rate)[row:].sum()
        if kept < P_KEEP_MIN:
            continue
        for n in range(1, n_most + 1):
            us = kept**n * costs.step_us(n, n, n_copied)
            for i in range(1, n + 1):
                dropped = kept ** (i - 1) * (1 - kept)
                us += dropped * costs.step_us(i, i - 1, n_copied)
            tokens = 1 + sum(right**i for i in range(1, n + 1))
            best = max(best, ((n_copied + tokens) / us, tokens, us))
    rule = best_rule(costs, acceptance, n_most, n_copied)
    assert (n_copied + rule.tokens) / rule.us == pytest.approx(best[0], rel=1e-12)
    assert rule.speed == rule.tokens / rule.us
    decision = Decision(rule, rule, costs)
    assert decision.speedup == pytest.approx(rule.speed * costs.plain_us, rel=1e-15)


def test_widths_follow_from_the_exact_width_of_the_library():
    header = (
        Path(__file__).parents[2] / "pyselfspec" / "native" / "abi" / "selfspec.h"
    )  # not part of the wheel
    found = re.search(r"#define SELFSPEC_EXACT_WIDTH (\d+)", header.read_text(encoding="utf-8"))
    assert found is not None and int(found[1]) == MAX_PASS_WIDTH
    assert MAX_DRAFT + 1 == N_WIDTH <= MAX_PASS_WIDTH
    assert COPY_LENGTHS[-1] == MAX_DRAFT
