"""A shared pass verifies the draft tokens of several texts that pay off together."""

import itertools
import random
from math import prod

import pytest
from drafts import draft_of
from parameters import for_seeds

from pyselfspec.costs.account import LOSS_PASSES, RATE_MIN
from pyselfspec.runtime.pass_result import BatchLoad
from pyselfspec.speculate.shared_passes import (
    GAIN_MIN,
    LOSS_SHARE,
    N_FIRST,
    N_GAINED,
    WIDTHS,
    SharedPasses,
)
from pyselfspec.speculate.types import Draft, Step, Verdict

N_MOST = 32
STEEP = tuple(1000.0 * n for n in range(1, N_MOST + 1))
FLAT = (1000.0,) * N_MOST
BESIDE = BatchLoad(1, 1, STEEP)


def survival(chances):
    return tuple(prod(chances[:n]) for n in range(1, len(chances) + 1))


@for_seeds(60)
def test_no_other_numbers_give_more_tokens_per_time(seed):
    """All combinations, counted out."""
    rng = random.Random(seed)
    us = tuple(sorted(rng.uniform(1000, 6000) for _ in range(N_MOST)))
    n_rows = rng.randrange(2, 8)
    texts = [
        survival([rng.random() ** 0.3 for _ in range(rng.randrange(5))])
        for _ in range(rng.randrange(1, 4))
    ]

    def speed(numbers):
        tokens = n_rows + sum(sum(t[:n]) for t, n in zip(texts, numbers, strict=True))
        return tokens / us[n_rows + sum(numbers) - 1]

    found = SharedPasses(us, N_MOST, 1).n_verified(n_rows, texts)
    assert n_rows + sum(found) in WIDTHS
    allowed = (
        numbers
        for numbers in itertools.product(*(range(len(t) + 1) for t in texts))
        if n_rows + sum(numbers) in WIDTHS
    )
    best, plain = max(map(speed, allowed)), speed([0] * len(texts))
    if best > (1 + GAIN_MIN) * plain:
        assert speed(found) == pytest.approx(best)
    else:
        assert found == [0] * len(texts)


def test_rows_that_cost_nothing_are_filled_and_none_beyond_the_widest_pass():
    sure = [(1.0,) * 15] * 4
    assert sum(SharedPasses(FLAT, N_MOST, 1).n_verified(4, sure)) == N_MOST - 4
    assert sum(SharedPasses(FLAT, 5, 1).n_verified(4, sure)) == 1
    assert SharedPasses(FLAT, N_MOST, 1).n_verified(N_MOST + 3, sure) == [0] * 4


def test_times_by_width_are_learned_however_rare_they_are():
    """Most passes of eight texts are plain; the few wide ones are what decides."""
    passes = SharedPasses(STEEP, N_MOST, 1)
    for n in range(400):
        passes.observe(8, 5000.0)
        if n % 50 == 0:
            passes.observe(16, 6000.0)
    assert passes.full_us[7] == pytest.approx(5000, rel=0.01)
    assert passes.full_us[15] == pytest.approx(6000, rel=0.01)
    before = passes.full_us
    for _ in range(20):
        passes.observe(N_MOST + 1, 1.0)
    assert passes.full_us == before  # a pass wider than all of these teaches nothing


def timed_plain(n_texts):
    """Shared passes of which plain ones were timed: what steps do between them takes no time."""
    passes = SharedPasses(FLAT, N_MOST, 1)
    for _ in range(N_FIRST):
        assert passes.n_rests > 0
        passes.settle([step(0, Draft())] * n_texts, 0.0, 0.0)
    assert passes.n_rests == 0
    return passes


def step(n_accepted, draft, removal_us=0):
    return Step(draft, Verdict.of_chain(n_accepted, 1, False), 1000, BESIDE, removal_us)


@pytest.mark.parametrize("n_texts", [2, 8])
def test_looking_up_what_never_comes_is_given_up(n_texts):
    passes, spent_us = SharedPasses(FLAT, N_MOST, 1), 0
    n_passes, rests = 2000, passes.n_rests
    for _ in range(n_passes):
        asks = rests == 0
        between_us = n_texts * (50 + 130 * asks)
        passes.settle([step(0, Draft(draft_us=100 if asks else 0))] * n_texts, 0.0, between_us)
        rests = max(rests - 1, passes.n_rests)
        spent_us += asks * n_texts * 130
    assert spent_us <= (LOSS_SHARE * n_passes + LOSS_PASSES + 1) * (FLAT[0] + n_texts * 50)
    # it goes on trying
    assert spent_us >= RATE_MIN * LOSS_SHARE * n_passes * (FLAT[0] + n_texts * 50)


def test_what_one_text_gains_another_may_lose():
    passes = timed_plain(2)
    right = draft_of((1, 1), (0.9, 0.9), n_copied=2, draft_us=100)
    wrong = draft_of((1, 1), (0.9, 0.9), n_copied=2, draft_us=100)
    for _ in range(500):
        passes.settle([step(2, right), step(0, wrong)], 400.0, 200.0)
        assert passes.n_rests == 0
    n = 0
    while passes.n_rests == 0:  # each costs 0.4 passes and two look-ups of 0.1 and more
        passes.settle([step(0, wrong), step(0, wrong)], 400.0, 200.0)
        n += 1
    assert n <= (N_GAINED + LOSS_PASSES) / 0.6 + 2


def test_draft_passes_of_one_text_keep_the_others_waiting():
    passes = timed_plain(2)
    for _ in range(20):
        drafted = draft_of((1,), (0.9,), draft_us=1000)
        passes.settle([step(1, drafted), step(0, Draft())], 0.0, 0.0)
    assert passes.n_rests > 0  # half a token gained for a pass lost


@pytest.mark.parametrize("removal_us", [0, 900])
def test_removing_rejected_tokens_is_part_of_what_drafts_cost(removal_us):
    """It is work between passes, but no look-up."""
    passes = timed_plain(2)
    half_right = draft_of((1, 1), (0.9, 0.9), n_copied=2, draft_us=100)
    for _ in range(20):
        steps = [step(1, half_right, removal_us)] * 2
        passes.settle(steps, 300.0, 200.0 + 2 * removal_us)
    assert (passes.n_rests > 0) == (removal_us > 0)


@pytest.mark.parametrize("n_texts", [2, 8])
def test_no_text_looks_up_what_could_not_pay_if_all_of_it_were_right(n_texts):
    """No draft pays if a row costs as much as a text; drafts do if it costs nothing."""
    passes = SharedPasses(STEEP, N_MOST, 1)
    for _ in range(N_FIRST + 5):
        passes.settle([step(0, Draft())] * n_texts, 0.0, 0.0)
    assert passes.n_rests > 0
    for _ in range(100):  # until the median of recent passes is this one
        for n in range(n_texts, N_MOST + 1):
            passes.observe(n, 1000.0)
    passes.settle([step(0, Draft())] * n_texts, 0.0, 0.0)
    assert passes.n_rests == 0
