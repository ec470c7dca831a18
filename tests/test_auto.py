"""The default controller in a world without a model: it must not lose, and must gain where there is
something to gain.

Speeds are means over seeds, as a user would see them: total tokens over total time, plain = 1.
"""

import statistics

import numpy as np
import pytest
from simulation import BF16, Q4_0, Q8_0, Text, run, table

from pyselfspec.speculate.controllers.auto import WATCH, Auto, plain_rule, worth
from pyselfspec.speculate.controllers.fixed import Fixed
from pyselfspec.speculate.types import After, DraftLimit

WORLDS = {
    "a GPU": table(0.3, 0.05),
    "in between": table(0.3, 0.25),
    "Q4_0": table(0.27, Q4_0),
    "Q8_0": table(0.27, Q8_0),
    "BF16": table(0.27, BF16),
    "half of the blocks, a GPU": table(0.6, 0.05, shared=0.08),
    "half of the blocks, Q8_0": table(0.6, Q8_0, shared=0.08),
    "nothing shared": table(0.3, BF16, shared=0.0),
    "a dear draft": table(0.95, 0.1, shared=0.0),
}
ALPHAS = (0.02, 0.3, 0.6, 0.8, 0.95)
WRONG = {  # believed, true
    "drafts look cheaper": (table(0.15, 0.05), table(0.45, Q8_0)),
    "weight bytes, many rows dear": (table(0.27, 0.25), table(0.27, Q8_0)),
    "weight bytes, many rows cheap": (table(0.27, 0.25), table(0.3, 0.03)),
    "another scale": (table(0.27, Q8_0, plain_us=1000), table(0.27, Q8_0)),
}


def speed(make, alpha, true, n_tokens, n_runs=10):
    runs = [
        run(make(), Text(alpha, np.random.default_rng(seed)), true, n_tokens)[0]
        for seed in range(n_runs)
    ]
    return statistics.harmonic_mean(runs)


@pytest.mark.parametrize("n_tokens", [32, 128, 512])
@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("world", WORLDS)
def test_never_loses(world, alpha, n_tokens):
    least = 0.98 if n_tokens >= 128 else 0.95  # a short text cannot pay for finding out
    assert speed(lambda: Auto(WORLDS[world]), alpha, WORLDS[world], n_tokens) >= least


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("wrong", WRONG)
def test_never_loses_for_long_by_a_wrong_table(wrong, alpha):
    believed, true = WRONG[wrong]
    assert speed(lambda: Auto(believed), alpha, true, 512) >= 0.98


@pytest.mark.parametrize("alpha", [0.6, 0.8, 0.9, 0.95])
@pytest.mark.parametrize("world", ["a GPU", "in between", "Q4_0", "Q8_0", "BF16"])
def test_nearly_as_good_as_the_best_fixed_length(world, alpha):
    """The best in hindsight of every length with three bounds, which nobody knows beforehand."""
    true = WORLDS[world]
    fixed = max(
        speed(lambda n=n, p=p: Fixed(n, p), alpha, true, 512, n_runs=4)
        for n in (1, 2, 3, 5, 7, 11)
        for p in (0.0, 0.6, 0.85)
    )
    if fixed > 1.05:
        assert speed(lambda: Auto(true), alpha, true, 1024) >= 0.95 * fixed


DRIFTS = {
    "gets worse": lambda n: 0.95 if n < 500 else 0.05,
    "gets better": lambda n: 0.05 if n < 500 else 0.95,
    "changes": lambda n: 0.95 if n // 100 % 2 else 0.05,
}


@pytest.mark.parametrize("world", ["in between", "Q8_0", "BF16"])
@pytest.mark.parametrize("drift", DRIFTS)
def test_follows_the_text(drift, world):
    true = WORLDS[world]
    assert speed(lambda: Auto(true), DRIFTS[drift], true, 1500, n_runs=30) > 1.04


def test_stops_soon_after_the_text_turns_bad():
    true = WORLDS["BF16"]
    text = Text(DRIFTS["gets worse"], np.random.default_rng(1))
    _, steps = run(Auto(true), text, true, 1500)
    late = steps[-500:]
    assert sum(step.n_drafted for step in late) < 0.05 * len(late)


def test_costs_of_probing_stay_below_a_hundredth():
    """Where drafting never pays, and one guess costs half a token."""
    true = table(0.5, Q8_0, shared=0.0)
    _, steps = run(Auto(true), Text(0.3, np.random.default_rng(2)), true, 4000, noise=0)
    costs = true.levels[0]
    extra = sum(costs.step_us(s.n_guesses, s.n_drafted) / costs.plain_us - 1 for s in steps)
    n_tokens = sum(len(s.tokens) for s in steps)
    assert extra - (n_tokens - len(steps)) < 0.01 * n_tokens


@pytest.mark.parametrize("seed", range(5))
def test_guesses_that_seem_free_stay_rare_where_they_are_wrong(seed):
    """Timings of guess and check may add up to hardly more than a plain step. That is no reason to
    guess all the time: what gets lost between them shows in no calibrate."""
    true = table(0.255, BF16, shared=0.25)
    _, steps = run(Auto(true), Text(0.02, np.random.default_rng(seed)), true, 1000)
    assert sum(step.n_guesses > 0 for step in steps) < 0.2 * len(steps)


def test_a_hopeless_mask_is_not_even_watched():
    true = WORLDS["a dear draft"]
    controller = Auto(true)
    _, steps = run(controller, Text(0.9, np.random.default_rng(3)), true, 300)
    assert controller.decision.hopeless
    assert sum(step.n_guesses for step in steps) == 0


def test_plain_decoding_is_timed_now_and_then_while_drafting():
    true = WORLDS["a GPU"]
    _, steps = run(Auto(true), Text(0.95, np.random.default_rng(4)), true, 3000)
    late = steps[100:]
    n_plain = sum(step.n_guesses == 0 for step in late)
    assert 0 < n_plain < 0.05 * len(late)


def test_starts_with_plain_steps_whatever_the_table_says():
    controller = Auto(WORLDS["a GPU"])
    assert controller.limit(0).n_max == 0


def test_watching_checks_nothing():
    assert WATCH.after([1.0]) is After.DROP
    assert WATCH.capped(3) == WATCH


@pytest.mark.parametrize("alpha", [0.3, 0.9])
def test_what_it_expects_is_what_happens(alpha):
    """Predicted against actual time per token, drafting or not, once it has settled."""
    true = WORLDS["BF16"]
    controller = Auto(true)
    rng = np.random.default_rng(5)
    run(controller, Text(alpha, rng), true, 1000)
    expected = []
    observe = controller.observe

    def observed(step):
        expected.append(controller.decision.us_per_token)
        observe(step)

    controller.observe = observed
    _, steps = run(controller, Text(alpha, rng), true, 2000)
    spent = sum(step.draft.draft_us + step.verify_us for step in steps)
    actual = spent / sum(len(step.tokens) for step in steps)
    assert statistics.mean(expected) == pytest.approx(actual, rel=0.1)


# thresholds inside a draft


def test_a_cheap_step_of_the_staircase_is_worth_going_to():
    """With four tokens checked, eight cost no more: whoever keeps five guesses makes more of them
    at a chance that would not pay for one more alone."""
    steps = [1.0, 1.5, 2.0, 2.5, 4.0, 4.0, 4.0, 4.0, *[8.0] * 8]
    costs = table(0.02, steps, shared=0.02).levels[0]
    sure = plain_rule(costs)._replace(n_max=7, p_keep=1.0, chances=(0.9,) * 4)
    flat = worth(costs, sure._replace(n_max=4), np.full((8, 4), 0.9))
    ahead = worth(costs, sure, np.full((8, 4), 0.9))
    assert ahead.go_on[2] < flat.go_on[2]
    assert ahead.keep[3] < flat.keep[3]


def test_an_unlikely_guess_is_dropped_and_a_likely_one_followed():
    true = WORLDS["BF16"]
    controller = Auto(true)
    text = Text(0.9, np.random.default_rng(6))
    run(controller, text, true, 600)
    limit = next(
        limit for n in range(9) if (limit := controller.limit(600 + n)).n_max > 1 and limit != WATCH
    )
    assert isinstance(limit, DraftLimit)
    assert limit.after([0.05]) is After.DROP
    assert limit.after([0.999]) is After.GO_ON
