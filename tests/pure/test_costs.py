"""Arithmetic on costs, against the formulas written out."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from simulation import BF16, Q8_0, table

from pyselfspec.costs.speedup import best_length
from pyselfspec.costs.table import N_WIDTH, CostTable
from pyselfspec.costs.timed import N_FORGET, N_RECENT, TimedCosts


def test_a_step_is_the_sum_of_its_passes():
    costs = table(c=0.3, growth=Q8_0, shared=0.25, plain_us=1000).levels[0]
    assert costs.step_us(0, 0) == 1000
    # three guesses, the blocks below for the third, and a check of the rest over four tokens
    assert costs.step_us(3, 3) == pytest.approx(3 * 300 + 250 + 0.75 * 1000 * Q8_0[3])
    # a dropped guess runs through no blocks below
    assert costs.step_us(3, 2) == pytest.approx(3 * 300 + 0.75 * 1000 * Q8_0[2])
    assert costs.step_us(1, 0) == pytest.approx(300 + 750)


def test_the_staircase_is_climbed_at_once():
    """Eight Q8_0 tokens cost less than five: lengths 4 to 6 are never best."""
    costs = table(0.1, Q8_0, shared=0.1).levels[0]
    lengths = {best_length(costs, a / 100)[1] for a in range(100)}
    assert {3, 7} <= lengths and not lengths & {4, 5, 6}


def test_costs_between_levels_and_beyond():
    low = replace(table(plain_us=100).levels[0], n_past=10)
    high = replace(table(plain_us=200).levels[0], n_past=110)
    costs = CostTable((low, high))
    assert costs.at(10).full_us == low.full_us
    assert costs.at(60).plain_us == pytest.approx(150)
    assert costs.at(210).plain_us == pytest.approx(300)
    assert costs.at(60).verify_us == pytest.approx([1.5 * us for us in low.verify_us])
    assert CostTable((low,)).at(5000) == replace(low, n_past=5000)


def test_noise_between_levels_does_not_reach_zero():
    low = replace(table(plain_us=200).levels[0], n_past=0)
    high = replace(table(plain_us=100).levels[0], n_past=100)
    assert CostTable((low, high)).at(100_000).plain_us > 0


# timings correct a table


def timed(costs, n_drafted, draft_us, verify_us, dropped=False):
    costs.observe(0, n_drafted + dropped, n_drafted, draft_us, verify_us)


def test_timings_scale_the_table():
    true = table(0.4, BF16, plain_us=3000).levels[0]
    costs = TimedCosts(table(0.2, BF16, plain_us=1000))
    assert costs.at(0).plain_us == 1000
    for _ in range(N_RECENT + 1):
        timed(costs, 0, 0, 3000)
        timed(costs, 3, round(true.drafting_us(3, 3)), round(true.verifying_us(3, 3)))
    now = costs.at(0)
    assert now.plain_us == pytest.approx(true.plain_us, rel=0.01)
    assert now.verify_us[3] == pytest.approx(true.verify_us[3], rel=0.01)
    # what was not timed leans on what was
    assert now.verify_us[5] == pytest.approx(true.verify_us[5], rel=0.01)
    assert now.drafting_us(3, 3) == pytest.approx(true.drafting_us(3, 3), rel=0.01)


@pytest.mark.parametrize("seed", range(3))
def test_a_machine_that_gets_faster_does_not_make_narrow_passes_look_dear(seed):
    """After a prompt processors are slow for a while: what was timed then, and what later, cannot
    be compared."""
    true = table(0.0, 0.25, shared=0.0, plain_us=1000).levels[0]
    costs = TimedCosts(table(0.0, 0.25, shared=0.0, plain_us=700))
    rng = np.random.default_rng(seed)
    print(f"seed {seed}")
    slow = 2.5
    for i in range(60):
        n = 0 if i < 4 else int(rng.integers(4))
        us = slow * true.full_us[n] * float(np.exp(rng.normal(0, 0.02)))
        costs.observe(0, 0, 0, 0, us, n_copied=n)
        slow = 1 + 0.93 * (slow - 1)
        if i >= 40:
            now = costs.at(0)
            for w in range(4):
                assert now.full_us[w] / now.plain_us == pytest.approx(1 + 0.25 * w, rel=0.15)


@pytest.mark.parametrize("seed", range(4))
def test_a_machine_whose_speed_jumps_does_not_make_rare_widths_look_slow(seed):
    """The neighbours of a virtual machine come and go. A width that looks too slow would not be
    timed again."""
    true = table(0.0, 0.18, shared=0.0, plain_us=1000).levels[0]
    costs = TimedCosts(table(0.0, 0.25, shared=0.0, plain_us=700))
    rng = np.random.default_rng(seed)
    for i in range(1200):
        n = 1 if rng.random() < 0.8 else int(rng.choice([2, 3, 5, 7]))
        slow = 1.65 if i // 150 % 2 else 1.0
        costs.observe(0, 0, 0, 0, slow * true.full_us[n] * np.exp(rng.normal(0, 0.03)), n_copied=n)
        if i > 300 and i % 150 > 20:
            now = costs.at(0)
            assert now.full_us[5] / now.full_us[1] == pytest.approx(1.9 / 1.18, rel=0.15)


def test_the_first_time_and_hiccups_do_not_count():
    costs = TimedCosts(table(plain_us=1000))
    for us in (90_000, 1000, 50_000, 1000, 1000):
        timed(costs, 0, 0, us)
    assert costs.at(0).plain_us == pytest.approx(1000)


def test_a_pass_may_need_several_times_to_be_prepared():
    """CUDA records a graph at the second pass, which takes four times as long here."""
    costs = TimedCosts(table(plain_us=1000), n_preparing=2)
    true = table(plain_us=1000).levels[0]
    for slow in (9, 4, 1):
        timed(costs, 0, 0, slow * 1000)
        timed(costs, 4, slow * true.drafting_us(4, 4), slow * true.verifying_us(4, 4))
    now = costs.at(0)
    assert now.plain_us == pytest.approx(1000)
    assert now.step_us(4, 4) == pytest.approx(true.step_us(4, 4))


def test_timings_are_forgotten():
    costs = TimedCosts(table(plain_us=1000))
    for us in [1000] * 20 + [2000] * N_RECENT:
        timed(costs, 0, 0, us)
    assert costs.at(0).plain_us == pytest.approx(2000)


def test_it_knows_whether_plain_passes_were_made():
    costs = TimedCosts(table())
    assert not costs.knows_plain
    timed(costs, 2, 100, 100)
    assert not costs.knows_plain
    timed(costs, 0, 0, 100)
    assert costs.knows_plain


def copied(costs, n, us, times=4):
    for _ in range(times):
        costs.observe(0, 0, 0, 0, us, n_copied=n)


def test_passes_over_copies_are_full_ones_whatever_drafts_share():
    costs = TimedCosts(table(0.3, 0.25, shared=0.5, plain_us=1000))
    timed(costs, 0, 0, 1000)
    timed(costs, 0, 0, 1000)
    before = costs.at(0)
    copied(costs, 3, 1100)
    now = costs.at(0)
    assert now.full_us[3] == pytest.approx(1100)
    assert now.verify_us == before.verify_us
    assert costs.n_copies_known > costs.n_known


def test_copies_that_come_before_any_plain_step_stand_for_it():
    """A busy machine, or a table without units, does not make them look expensive."""
    costs = TimedCosts(table(0.0, 0.25, shared=0.0, plain_us=1000))
    copied(costs, 1, 7 * 1250)
    assert costs.at(0).full_us[1] / costs.at(0).plain_us == pytest.approx(1.25)


def test_widths_between_those_timed_lean_on_both():
    costs = TimedCosts(table(growth=0.25, shared=0.0, plain_us=1000))
    for _ in range(3):
        timed(costs, 0, 0, 1000)
    copied(costs, 4, 1040)
    full = costs.at(0).full_us
    assert full[0] == 1000 and full[4] == pytest.approx(1040)
    ratios = [full[n] / (1000 + 250 * n) for n in range(5)]
    assert all(a - b == pytest.approx((1 - 0.52) / 4) for a, b in itertools.pairwise(ratios))


def test_a_width_timed_badly_is_forgotten_while_decoding_plainly():
    costs = TimedCosts(table(growth=0.25, plain_us=1000))
    copied(costs, 1, 9000)
    assert costs.at(0).full_us[1] == pytest.approx(9000)
    for _ in range(5 * N_FORGET):
        timed(costs, 0, 0, 1000)
    assert costs.at(0).full_us[1] == pytest.approx(1250)


def test_the_first_pass_of_a_draft_runs_what_was_copied():
    costs = table(0.3, 0.25, shared=0.25, plain_us=1000).levels[0]
    assert costs.drafting_us(2, 1, 0) == 600
    assert costs.drafting_us(2, 1, 3) == pytest.approx(300 * 1.75 + 300)
    assert costs.verifying_us(2, 1, 3) == costs.verify_us[4]
    assert costs.verifying_us(0, 0, 3) == costs.full_us[3]
    assert costs.drafting_us(0, 0, 3) == 0


def test_a_width_that_was_disturbed_when_it_was_timed_is_tried_all_the_same():
    disturbed = list(BF16)
    disturbed[3] = 20.0
    costs = TimedCosts(table(0.3, disturbed, plain_us=1000)).at(0)
    assert costs.verify_us[3] == pytest.approx(750 * BF16[4])
    assert costs.verify_us[4] == pytest.approx(750 * BF16[4])


def test_a_new_width_of_a_verification_pass_does_not_hide_what_its_draft_took():
    costs = TimedCosts(table(0.2, plain_us=1000))
    for n in (1, 2, 3, 4, 5):
        timed(costs, n, n * 400 + 250, 1000)
    assert costs.at(0).token_us > 300


# beside other texts


@pytest.mark.parametrize("growth", [0.0, 0.25, Q8_0, BF16], ids=["free", "flat", "Q8_0", "BF16"])
@pytest.mark.parametrize(("n_texts", "n_rows"), [(1, 1), (3, 4), (7, 8)])
def test_a_draft_pays_where_all_texts_together_gain(growth, n_texts, n_rows):
    """Theorem: its tokens over what its time counts beat plain decoding exactly where the tokens of
    all texts over the time of the pass rise."""
    costs = table(0.3, growth).levels[0]
    counted = costs.in_batch(n_texts, n_rows, costs.full_us)
    for n in range(1, N_WIDTH - n_rows):
        before, after = (costs.full_us[n_rows + k] for k in (0, n))
        for gained in (0.05, 0.2, 0.5, 1, 2, n):
            own = (1 + gained) / counted.full_us[n] > 1 / counted.plain_us
            of_all = (n_texts + 1 + gained) / after > (n_texts + 1) / before
            assert own == of_all, (n, gained)


def test_alone_costs_are_as_they_are():
    costs = table().levels[0]
    assert costs.in_batch(0, 0, ()) is costs


def test_a_table_that_falls_makes_no_pass_cheaper_than_a_narrower_one():
    falling = [1.0 + 0.1 * i for i in range(8)] + [1.8 - 0.02 * i for i in range(8)]
    costs = table(growth=falling, plain_us=1000).levels[0]
    counted = costs.in_batch(3, 500, costs.full_us)
    assert 0 < counted.plain_us <= min(counted.full_us)


def test_passes_wider_than_the_table_rise_as_its_second_half_does():
    costs = table(growth=0.25, plain_us=1000).levels[0]
    counted = costs.in_batch(1, 40, costs.full_us)
    assert counted.plain_us == pytest.approx(1000 * (1 + 0.25 * 40))
    assert counted.full_us[4] - counted.plain_us == pytest.approx(2 * 1000 * 0.25 * 4)
