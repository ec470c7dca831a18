"""The default controller in a world without a model: it must not lose where drafting does not pay,
and come close to the best fixed length where it does.

Speeds are means over seeds, as a user would see them: total tokens over total time, plain = 1.
"""

import statistics
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from drafts import draft_of
from simulation import (
    BF16,
    FEW_ROWS,
    K_QUANT,
    NARROW,
    Q4_0,
    Q8_0,
    TINY,
    Device,
    Text,
    converse,
    informed,
    interpolated,
    run,
    silent,
    table,
    uninformed,
)

from pyselfspec.costs.speedup import best_length
from pyselfspec.costs.table import CostTable
from pyselfspec.costs.timed import TimedCosts
from pyselfspec.speculate import controllers
from pyselfspec.speculate.controllers._decision import decide
from pyselfspec.speculate.controllers.auto import N_FIRST, make, probe_p_min
from pyselfspec.speculate.controllers.fixed import Fixed
from pyselfspec.speculate.limits import DraftDecision, DraftLimit
from pyselfspec.speculate.types import Draft, Step, Verdict

Learned, Acceptance = controllers.Learned, controllers.Acceptance


def speed(make, alpha, true, n_tokens, n_runs=10, **options):
    runs = [
        run(make(), Text(alpha, np.random.default_rng(seed)), true, n_tokens, **options)[0]
        for seed in range(n_runs)
    ]
    return statistics.harmonic_mean(runs)


# the promise

MASKS = {
    "Q4_0": table(0.3, FEW_ROWS, shared=0.27),
    "Q4_K_M": table(0.3, K_QUANT, shared=0.27),
    "AVX2": table(0.3, NARROW, shared=0.27),
    "other kernels": table(0.27, Q8_0),
    "tiny model": table(0.38, TINY, shared=0.3, plain_us=700),
    "half of the blocks": table(0.6, FEW_ROWS, shared=0.03),
    "nothing shared": table(0.3, BF16, shared=0.0),
}
LOOKUP = table(0.001, FEW_ROWS, shared=0.0)  # drafts cost nothing, and have no probabilities
ALPHAS = (0.05, 0.3, 0.5, 0.7, 0.85, 0.95, 0.97)
WORLDS = [(m, prob, a) for m in MASKS for prob in (informed, uninformed) for a in ALPHAS]
WORLDS += [("lookup", silent, a) for a in ALPHAS]
N_SEED, N_TEXT = 8, 3  # conversations, and texts of each, the first of them cold


def best_fixed(mask, alpha):
    """Exact: the draft tokens of a text here are right independently of each other."""
    return best_length((MASKS | {"lookup": LOOKUP})[mask].levels[0], alpha)[0]


@cache
def achieved(mask, prob, alpha, noise=0.03, hiccups=0.0):
    """Speed over that of the best fixed length, or over plain decoding where none pays."""
    true = (MASKS | {"lookup": LOOKUP})[mask]
    speeds = []
    for seed in range(N_SEED):
        rngs = [np.random.default_rng(1000 * seed + i) for i in range(N_TEXT)]
        texts = [Text(alpha, rng, prob=prob) for rng in rngs]
        speeds += converse(lambda memory: make(true, memory), texts, true, 256, noise, hiccups)
    return statistics.harmonic_mean(speeds) / best_fixed(mask, alpha)


@pytest.mark.slow
def test_never_noticeably_slower_than_plain():
    hopeless = [w for w in WORLDS if best_fixed(w[0], w[2]) == 1]
    assert len(hopeless) >= 30
    assert {w: r for w in hopeless if (r := achieved(*w)) < 0.98} == {}


@pytest.mark.slow
def test_nearly_as_fast_as_the_best_fixed_length():
    """Which nobody knows beforehand. The mean loss is of all texts, the first ones included, in
    which it still has to be found."""
    paying = [w for w in WORLDS if best_fixed(w[0], w[2]) > 1.05]
    assert len(paying) >= 50
    ratios = {w: min(1.0, achieved(*w)) for w in paying}
    assert {w: r for w, r in ratios.items() if r < 0.94} == {}
    assert statistics.mean(ratios.values()) > 0.985
    assert sum(r < 0.97 for r in ratios.values()) <= len(paying) / 10


@pytest.mark.parametrize("alpha", [0.05, 0.5, 0.95])
@pytest.mark.parametrize("mask", ["Q4_0", "tiny model"])
def test_noise_and_hiccups_hardly_matter(mask, alpha):
    assert achieved(mask, informed, alpha, noise=0.15, hiccups=0.02) >= 0.95


@pytest.mark.parametrize("n_tokens", [32, 128, 512])
@pytest.mark.parametrize("alpha", [0.02, 0.3, 0.6])
@pytest.mark.parametrize("mask", MASKS)
def test_a_first_text_does_not_lose_either(mask, alpha, n_tokens):
    least = 0.98 if n_tokens >= 128 else 0.95  # a short text cannot pay for finding out
    assert speed(lambda: make(MASKS[mask]), alpha, MASKS[mask], n_tokens) >= least


# weights on a GPU; a part of the blocks on the CPU; a slow bus, over which each draft token goes
GPU = interpolated({1: 1, 8: 1.1, 9: 1.6, 16: 1.7})
ON_DEVICES = {
    "all on a GPU": table(0.3, GPU, shared=0.27, plain_us=4000),
    "half of it": table(0.4, NARROW, shared=0.0),
    "slow bus": table(0.8, GPU, shared=0.1, plain_us=4000),
    "in software": table(0.35, 0.9, shared=0.27, plain_us=300_000),
}


@pytest.mark.parametrize("alpha", [0.05, 0.3, 0.6, 0.8, 0.95])
@pytest.mark.parametrize("where", ON_DEVICES)
def test_never_loses_on_a_device(where, alpha):
    """Neither by waiting for a draft in its verification, nor for long by programs that the device
    compiles; and where drafts pay, it comes close to the best length."""
    true = ON_DEVICES[where]
    pairs = []
    for seed in range(24):
        device = Device(is_asynchronous=True, n_compiling=3.0)
        texts = [Text(alpha, np.random.default_rng(100 * i + seed)) for i in range(3)]
        made = converse(lambda memory: make(table(0.27), memory), texts, true, 384, device=device)
        pairs.append(made)
    first, *later = (statistics.harmonic_mean(speeds) for speeds in zip(*pairs, strict=True))
    best = best_length(true.levels[0], alpha)[0]
    assert first >= 0.9
    assert min(later) >= 0.96
    assert later[-1] >= max(0.98, 0.9 * best)


WRONG = {  # believed, true
    "drafts look cheaper": (table(0.15, 0.05), table(0.45, Q8_0)),
    "weight bytes, many rows expensive": (table(0.27, 0.25), table(0.27, Q8_0)),
    "weight bytes, many rows cheap": (table(0.27, 0.25), table(0.3, 0.03)),
    "another scale": (table(0.27, Q8_0, plain_us=1000), table(0.27, Q8_0)),
    "another scale, slower": (table(0.27, Q8_0, plain_us=1e6), table(0.27, Q8_0)),
}


@pytest.mark.parametrize("alpha", [0.02, 0.3, 0.6, 0.8, 0.95])
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.slow
def test_never_loses_for_long_by_a_wrong_table(wrong, alpha):
    """The first text pays for finding out, the second does not."""
    believed, true = WRONG[wrong]
    pairs = []
    for seed in range(10):
        texts = [Text(alpha, np.random.default_rng(100 * i + seed)) for i in range(2)]
        pairs.append(converse(lambda memory: make(believed, memory), texts, true, 512))
    first, second = (statistics.harmonic_mean(speeds) for speeds in zip(*pairs, strict=True))
    assert first >= 0.97
    assert second >= 0.98


@pytest.mark.parametrize("alpha", [0.6, 0.9])
@pytest.mark.parametrize("growth", [0.05, Q4_0, Q8_0, BF16], ids=["GPU", "Q4_0", "Q8_0", "BF16"])
@pytest.mark.slow
def test_nearly_as_good_as_the_best_length_and_bound(growth, alpha):
    """The best in hindsight of every length with three bounds of the probability."""
    true = table(0.3, growth)
    fixed = max(
        speed(lambda n=n, p=p: Fixed(n, p), alpha, true, 512, n_runs=4)
        for n in (1, 2, 3, 5, 7, 11)
        for p in (0.0, 0.6, 0.85)
    )
    if fixed > 1.05:
        assert speed(lambda: make(true), alpha, true, 1024) >= 0.95 * fixed


# texts that change

DRIFTS = {
    "gets worse": lambda n: 0.95 if n < 500 else 0.05,
    "gets better": lambda n: 0.05 if n < 500 else 0.95,
    "changes": lambda n: 0.95 if n // 100 % 2 else 0.05,
}


@pytest.mark.parametrize("mask", ["Q4_0", "AVX2", "nothing shared"])
@pytest.mark.parametrize("drift", DRIFTS)
@pytest.mark.slow
def test_follows_the_text(drift, mask):
    true = MASKS[mask]
    assert speed(lambda: make(true), DRIFTS[drift], true, 1500) > 1.04


def test_stops_soon_after_the_text_turns_bad():
    true = MASKS["nothing shared"]
    text = Text(DRIFTS["gets worse"], np.random.default_rng(1))
    _, steps = run(make(true), text, true, 1500)
    late = steps[-500:]
    assert sum(step.n_drafted for step in late) < 0.05 * len(late)


# probes


def test_costs_of_probing_stay_below_a_hundredth():
    """Drafting never pays when a draft token costs half as much as a plain one."""
    true = table(0.5, Q8_0, shared=0.0)
    _, steps = run(make(true), Text(0.3, np.random.default_rng(2)), true, 4000, noise=0)
    costs = true.levels[0]
    extra = sum(costs.step_us(s.draft.n_proposed, s.n_drafted) / costs.plain_us - 1 for s in steps)
    n_tokens = sum(len(s.tokens) for s in steps)
    assert extra - (n_tokens - len(steps)) < 0.01 * n_tokens


@pytest.mark.parametrize("seed", range(5))
def test_probes_that_seem_free_stay_rare_where_they_are_wrong(seed):
    """Timings of draft and verification may add up to hardly more than a plain step. That is no
    reason to draft all the time: what gets lost between them shows in no timing."""
    true = table(0.255, BF16, shared=0.25)
    _, steps = run(make(true), Text(0.02, np.random.default_rng(seed)), true, 1000)
    assert sum(step.draft.n_proposed > 0 for step in steps) < 0.2 * len(steps)


def test_a_probe_that_had_to_catch_up_is_not_made_again_soon():
    """A second model reads first what came while nothing was drafted."""
    true = table(0.5, Q8_0, shared=0.0)
    costs, between = true.levels[0], {}
    for late in (0, 20):  # plain tokens
        controller, probes = make(true), []
        for n in range(8000):
            n_proposed = controller.limit(n).n_max
            catch_up_us = round(late * costs.plain_us) if n_proposed else 0
            draft = draft_of(
                dropped=(7, 0.1), draft_us=round(costs.token_us), catch_up_us=catch_up_us
            )
            draft = draft if n_proposed else Draft()
            controller.observe(Step(draft, Verdict.of_chain(0, 1, False), round(costs.plain_us)))
            probes += [n] if n_proposed else []
        between[late] = max(np.diff(probes))
    assert between[20] > 20 * between[0]


def test_a_hopeless_mask_is_not_even_probed():
    true = table(0.95, 0.1, shared=0.0)
    _, steps = run(make(true), Text(0.9, np.random.default_rng(3)), true, 300)
    assert sum(step.draft.n_proposed for step in steps) == 0


def test_a_probe_is_verified_where_that_costs_less_than_it_brings():
    cheap, expensive = (table(0.3, growth).levels[0] for growth in (0.05, 2.0))
    assert probe_p_min(cheap, Acceptance()) == 0.0
    dropped = DraftLimit(1, probe_p_min(expensive, Acceptance()))
    assert dropped.after([1.0]) is DraftDecision.DROP


def test_plain_decoding_is_timed_now_and_then_while_drafting():
    true = table(0.3, 0.05)
    _, steps = run(make(true), Text(0.95, np.random.default_rng(4)), true, 6000)
    late = steps[100:]
    n_plain = sum(step.draft.n_proposed == 0 for step in late)
    assert 0 < n_plain < 0.05 * len(late)


# memory


def test_a_first_text_starts_with_plain_steps_whatever_the_table_says():
    controller = make(table(0.3, 0.05))
    assert controller.limit(0).n_max == 0


def test_copies_need_not_wait_for_them():
    controller = make(table(0.0, 0.05, shared=0.0))
    for n in range(N_FIRST):
        limit = controller.limit(n)
        draft = limit.truncate(Draft.copied([1, 1], [0.9, 0.9]))
        assert (
            draft.n_copied == 2
            and len(limit.split(Draft.copied([1, 1], [0.9, 0.9]))[0].tokens) == 2
        )
        controller.observe(Step(draft, Verdict.of_chain(2, 1, False), 1000))
    assert controller.limit(N_FIRST).max_lookup == 0


def test_the_next_text_starts_with_what_the_last_one_taught():
    true = MASKS["Q4_0"]
    memory = Learned(TimedCosts(true))
    run(make(true, memory), Text(0.9, np.random.default_rng(7)), true, 300)
    assert make(true, memory).limit(0).n_max > 1
    run(make(true, memory), Text(0.02, np.random.default_rng(8)), true, 1200)
    assert make(true, memory).explain().rule.n_max == 0


def test_another_conversation_keeps_the_timings_only():
    believed, true = WRONG["another scale"]
    memory = Learned(TimedCosts(believed))
    run(make(believed, memory), Text(0.9, np.random.default_rng(9)), true, 300)
    controller = make(believed, Learned(memory.timings))
    assert controller.explain().costs.plain_us == pytest.approx(20_000, rel=0.1)
    assert controller.memory.acceptance.rows() == Acceptance().rows()


def test_acceptance_is_learned_by_probability_and_forgotten():
    acceptance = Acceptance()
    for _ in range(200):
        acceptance.observe([(0.4, False)])
        acceptance.observe([(0.7, True)])
    share, rate = acceptance.rows()
    assert rate[1] < 0.05 < 0.95 < rate[3]
    assert (share[1], share[3]) == pytest.approx((0.5, 0.5), abs=0.02)
    assert sum(share) == pytest.approx(1)
    for _ in range(500):
        acceptance.observe([(0.4, True)])
    assert acceptance.rows()[1][1] > 0.95


def test_tokens_without_probability_have_an_acceptance_of_their_own():
    acceptance = Acceptance()
    for _ in range(50):
        acceptance.observe([(None, True)])
    share, rate = acceptance.rows()
    assert rate[-1] > 0.95 and share[-1] > 0.95
    assert rate[:-1] == pytest.approx(Acceptance().rows()[1][:-1])


# what it says of itself


@pytest.mark.slow
def test_a_decision_is_the_best_of_all_lengths_and_bounds():
    """Against the fastest of all fixed rules, run."""
    true = MASKS["AVX2"]
    controller = make(true)
    run(controller, Text(0.8, np.random.default_rng(5)), true, 4000)
    rule = decide(true.levels[0], controller.memory.acceptance, 15).rule
    here = speed(lambda: Fixed(rule.n_max, rule.p_min), 0.8, true, 2000)
    for n in (1, 2, 3, 5, 7):
        for p in (0.0, 0.5, 0.8, 0.9):
            assert here >= 0.96 * speed(lambda n=n, p=p: Fixed(n, p), 0.8, true, 2000, n_runs=3)


@pytest.mark.parametrize("removal", [0.0, 0.6])
@pytest.mark.parametrize("alpha", [0.3, 0.7, 0.9])
def test_what_it_expects_is_what_happens(alpha, removal):
    """Predicted against actual time per token, drafting or not, once it has settled."""
    true = believed = table(0.27, BF16)
    if removal:
        costs = true.levels[0]
        true = CostTable((replace(costs, removal_us=removal * costs.plain_us),))
    controller = make(believed)
    rng = np.random.default_rng(5)
    run(controller, Text(alpha, rng), true, 1000)
    expected = []
    observe = controller.observe

    def observed(step):
        expected.append(1 / controllers.explain(controller).rule.speed)
        observe(step)

    controller.observe = observed
    _, steps = run(controller, Text(alpha, rng), true, 2000)
    spent = sum(step.us for step in steps)
    actual = spent / sum(len(step.tokens) for step in steps)
    assert statistics.mean(expected) == pytest.approx(actual, rel=0.1)


def test_it_explains_why_it_does_not_draft():
    decision = make(table(0.95, 0.1, shared=0.0)).explain()
    assert not decision.drafts and decision.speedup < 1 and decision.best.n_max > 0
    assert decision.rule.us == decision.costs.plain_us
    assert controllers.explain(Fixed()) is None
