"""The estimated speed over plain decoding, against machines whose true costs are known."""

import random

import pytest
from simulation import BF16, Q8_0, table

from pyselfspec import Completion
from pyselfspec.costs.timed import TimedCosts
from pyselfspec.speculate.estimate import estimated_speedup
from pyselfspec.speculate.types import Company, Draft, GenerationStats, Step, Verdict


def written(true, timings, accepted, beside=0):
    """Statistics of a text on a machine with these costs; accepted: of four copied tokens each, by
    step, None for a step without a draft."""
    stats, n_past, costs = GenerationStats(n_prompt=10), 10, true.at(0)
    for n in accepted:
        draft = Draft() if n is None else Draft((1, 2, 3, 4), n_copied=4, sources=("ngram",) * 4)
        us = round(costs.full_pass_us(1 + len(draft.tokens) + beside))
        verdict = Verdict.of_chain(n or 0, 5, ended=False)
        step = Step(draft, verdict, us, Company(min(1, beside), beside))
        stats.observe(step)
        if not beside:
            timings.observe(n_past, 0, 0, 0, us, n_copied=len(draft.tokens))
        n_past += len(step.tokens)
    return stats


@pytest.mark.parametrize("growth", [0.02, Q8_0, BF16], ids=["gpu", "Q8_0", "BF16"])
@pytest.mark.parametrize("slower", [1.0, 37.0])
def test_the_estimate_is_the_time_of_a_plain_run_over_that_of_the_text(growth, slower):
    seed = 2026
    print(f"seed {seed}")
    random.seed(seed)
    true = table(0.0, growth, shared=0.0, plain_us=1000 * slower)
    timings = TimedCosts(table(0.0, 0.25, shared=0.0, plain_us=1000))  # believed at first
    accepted = [random.choice([None, None, 0, 1, 2, 4]) for _ in range(80)]
    stats = written(true, timings, accepted)
    n_tokens = sum(1 + (n or 0) for n in accepted)
    plain_us = n_tokens * 1000 * slower
    assert estimated_speedup(stats, timings) == pytest.approx(plain_us / stats.verify_us, rel=0.01)


def test_a_plain_run_beside_other_texts_would_have_carried_their_rows_too():
    true = table(0.0, 0.25, shared=0.0, plain_us=1000)
    timings = TimedCosts(true)
    written(true, timings, [None] * 5 + [4] * 5)
    stats = written(true, timings, [4] * 10, beside=4)
    # passes over 9 rows, and over 5 of them for the plain tokens
    assert estimated_speedup(stats, timings, 4) == pytest.approx(50 * 2000 / (10 * 3000))
    assert estimated_speedup(stats, timings) == pytest.approx(50 * 1000 / (10 * 3000))


def test_drafts_that_are_all_wrong_are_estimated_below_one():
    true = table(0.0, 0.25, shared=0.0, plain_us=1000)
    timings = TimedCosts(true)
    stats = written(true, timings, [None] * 3 + [0] * 9)
    assert estimated_speedup(stats, timings) == pytest.approx(12 / (3 + 9 * 2))


def test_there_is_no_estimate_before_a_plain_pass_was_timed_or_without_drafts():
    true = table(0.0, 0.25, shared=0.0)
    untimed, timings = TimedCosts(true), TimedCosts(true)
    assert estimated_speedup(written(true, untimed, [4] * 20), untimed) is None
    assert estimated_speedup(written(true, timings, [None] * 20), timings) is None
    assert estimated_speedup(GenerationStats(), timings) is None


def test_a_completion_estimates_its_own_speedup(demo):
    prompt = "The king went home and the queen went home. " * 3
    with demo.context(n_ctx=512, n_seq_max=2) as context:
        plain = Completion(context, prompt, n_predict=8, draft=None)
        "".join(plain)
        assert plain.estimated_speedup is None
        for _ in range(3):  # the first texts time the passes
            drafted = Completion(context, prompt, n_predict=64, draft="ngram")
            assert drafted.estimated_speedup is None, "nothing is written yet"
            "".join(drafted)
        stats, timings = drafted.stats, drafted._speculation.timings
        assert drafted.estimated_speedup == estimated_speedup(stats, timings)
