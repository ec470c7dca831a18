"""Arithmetic on costs, against the formulas written out."""

import itertools
import math
from dataclasses import replace

import pytest
from simulation import BF16, Q8_0, table

from pyselfspec.costs.by_bytes import guessed_costs
from pyselfspec.costs.table import N_WIDTH, CostTable
from pyselfspec.costs.timed import N_RECENT, TimedCosts
from pyselfspec.gguf import file as gguf_file
from pyselfspec.masks.layer_mask import LayerMask
from tools.models import tiny_gguf


def test_a_step_is_the_sum_of_its_passes():
    costs = table(c=0.3, growth=Q8_0, shared=0.25, plain_us=1000).levels[0]
    assert costs.step_us(0, 0) == 1000
    # three guesses, the blocks below for the third, and a check of the rest over four tokens
    assert costs.step_us(3, 3) == pytest.approx(3 * 300 + 250 + 0.75 * 1000 * Q8_0[3])
    # a dropped guess runs through no blocks below
    assert costs.step_us(3, 2) == pytest.approx(3 * 300 + 0.75 * 1000 * Q8_0[2])
    assert costs.step_us(1, 0) == pytest.approx(300 + 750)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.6, 0.8, 0.95])
@pytest.mark.parametrize("growth", [0.05, 0.25, Q8_0, BF16], ids=["gpu", "flat", "Q8_0", "BF16"])
def test_best_length_is_the_best_of_all(growth, alpha):
    costs = table(0.27, growth).levels[0]
    speeds = {0: 1.0}
    for n in range(1, N_WIDTH):
        tokens = (1 - alpha ** (n + 1)) / (1 - alpha)
        cycle = n * 0.27 + 0.25 + costs.check_us[n] / costs.plain_us
        speeds[n] = tokens / cycle
    best = max(speeds, key=speeds.get)
    assert costs.speedup(alpha) == (pytest.approx(speeds[best]), best)


def test_the_staircase_is_climbed_at_once():
    """Eight Q8_0 tokens cost less than five: lengths 4 to 6 are never best."""
    costs = table(0.1, Q8_0, shared=0.1).levels[0]
    lengths = {costs.speedup(a / 100)[1] for a in range(100)}
    assert {3, 7} <= lengths and not lengths & {4, 5, 6}


def test_costs_between_levels_and_beyond():
    low = replace(table(plain_us=100).levels[0], n_past=10)
    high = replace(table(plain_us=200).levels[0], n_past=110)
    costs = CostTable((low, high))
    assert costs.at(10).full_us == low.full_us
    assert costs.at(60).plain_us == pytest.approx(150)
    assert costs.at(210).plain_us == pytest.approx(300)
    assert costs.at(60).check_us == pytest.approx([1.5 * us for us in low.check_us])
    assert CostTable((low,)).at(5000) == replace(low, n_past=5000)


def test_noise_between_levels_does_not_reach_zero():
    low = replace(table(plain_us=200).levels[0], n_past=0)
    high = replace(table(plain_us=100).levels[0], n_past=100)
    assert CostTable((low, high)).at(100_000).plain_us > 0


def test_guesses_come_from_weight_bytes(tmp_path):
    file = gguf_file.check(tiny_gguf.write(tmp_path / "m.gguf", "llama", n_layer=4))
    mask = LayerMask.early_exit(4, 1)
    shared, forked = (guessed_costs(file, mask, s).levels[0] for s in (True, False))
    total = file.weight_bytes()
    block = file.blocks[0].total
    assert shared.guess_us / shared.plain_us == pytest.approx((block + file.head_bytes) / total)
    assert shared.last_us / shared.plain_us == pytest.approx(block / total)
    assert shared.check_us[0] / shared.plain_us == pytest.approx(1 - block / total)
    assert forked.check_us == forked.full_us and forked.last_us == 0
    assert all(a < b for a, b in itertools.pairwise(shared.check_us))


# timings correct a table


def timed(costs, n_drafted, draft_us, verify_us, dropped=False):
    costs.observe(0, n_drafted + dropped, n_drafted, draft_us, verify_us)


def test_timings_scale_the_table():
    true = table(0.4, BF16, plain_us=3000).levels[0]
    costs = TimedCosts(table(0.2, BF16, plain_us=1000))
    assert costs.at(0).plain_us == 1000
    for _ in range(N_RECENT + 1):
        timed(costs, 0, 0, 3000)
        timed(costs, 3, round(true.draft_us(3, 3)), round(true.verify_us(3, 3)))
    now = costs.at(0)
    assert now.plain_us == pytest.approx(true.plain_us, rel=0.01)
    assert now.check_us[3] == pytest.approx(true.check_us[3], rel=0.01)
    # what was not timed leans on what was
    assert now.check_us[5] == pytest.approx(true.check_us[5], rel=0.01)
    assert now.draft_us(3, 3) == pytest.approx(true.draft_us(3, 3), rel=0.01)


def test_the_first_time_and_hiccups_do_not_count():
    costs = TimedCosts(table(plain_us=1000))
    for us in (90_000, 1000, 50_000, 1000, 1000):
        timed(costs, 0, 0, us)
    assert costs.at(0).plain_us == pytest.approx(1000)


def test_timings_are_forgotten():
    costs = TimedCosts(table(plain_us=1000))
    for us in [1000] * 20 + [2000] * N_RECENT:
        timed(costs, 0, 0, us)
    assert costs.at(0).plain_us == pytest.approx(2000)


def test_new_kinds_of_passes_are_counted():
    costs = TimedCosts(table())
    assert costs.n_new(0, 0) == 1
    assert costs.n_new(1, 0) == 2  # a guess, a check of one token
    timed(costs, 0, 100, 100, dropped=True)
    assert costs.n_new(1, 0) == 0
    assert costs.n_new(2, 2) == 2  # the last token's blocks below, a check of three
    assert math.isfinite(costs.at(0).plain_us)
