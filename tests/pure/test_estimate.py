"""The estimated speed over plain decoding, against machines whose true costs are known."""

import random

import pytest
from drafts import draft_of
from simulation import BF16, Q8_0, table

from pyselfspec.runtime.pass_result import BatchLoad
from pyselfspec.runtime.passes import Pass
from pyselfspec.speculate.stats import N_PLAIN, GenerationStats
from pyselfspec.speculate.types import Draft, Step, Verdict


def written(true, accepted, beside=0, paces=(1.0,)):
    """Statistics of a text on a machine with these costs; accepted: of four copied tokens each, by
    step, None for a step without a draft. paces: how slow the machine is, step by step."""
    stats, full_us = GenerationStats(n_prompt=10), true.at(0).full_us
    for i, n in enumerate(accepted):
        draft = Draft() if n is None else draft_of((1, 2, 3, 4), n_copied=4, sources=("ngram",) * 4)
        us = round(full_us[len(draft.tokens) + beside] * paces[i % len(paces)])
        verdict = Verdict.of_chain(n or 0, 5, ended=False)
        stats.observe(Step(draft, verdict, us, BatchLoad(min(1, beside), beside)))
    return stats


@pytest.mark.parametrize("growth", [0.02, Q8_0, BF16], ids=["gpu", "Q8_0", "BF16"])
@pytest.mark.parametrize("slower", [1.0, 37.0])
def test_the_estimate_is_the_time_of_a_plain_run_over_that_of_the_text(growth, slower):
    seed = 2026
    print(f"seed {seed}")
    random.seed(seed)
    true = table(0.0, growth, shared=0.0, plain_us=1000 * slower)
    accepted = [random.choice([None, None, 0, 1, 2, 4]) for _ in range(80)]
    stats = written(true, accepted)
    plain_us = stats.n_generated * 1000 * slower
    assert stats.estimated_speedup == pytest.approx(plain_us / stats.verify_us, rel=0.01)


@pytest.mark.parametrize("seed", range(5))
def test_a_machine_whose_speed_jumps_tenfold_between_passes(seed):
    """The truth is a plain run at the machine's mean speed."""
    print(f"seed {seed}")
    rng = random.Random(seed)
    true = table(0.0, BF16, shared=0.0, plain_us=1000)
    paces = [rng.choice([1.0, 10.0]) for _ in range(1500)]
    accepted = [rng.choice([None, 0, 1, 2, 4]) for _ in paces]
    stats = written(true, accepted, paces=paces)
    want = written(true, accepted).n_generated * 1000 / written(true, accepted).verify_us
    assert stats.estimated_speedup == pytest.approx(want, rel=0.2)


def test_no_estimate_is_above_the_tokens_per_step():
    """Though the plain passes happened to run while the machine was slow."""
    true = table(0.0, 0.02, shared=0.0, plain_us=1000)
    paces = [100.0] * N_PLAIN + [1.0] * 50
    stats = written(true, [None] * N_PLAIN + [4] * 50, paces=paces)
    assert stats.estimated_speedup == stats.n_generated / stats.n_steps


def test_a_plain_run_beside_other_texts_would_have_carried_their_rows_too():
    true = table(0.0, 0.25, shared=0.0, plain_us=1000)
    stats = written(true, [None] * 5 + [4] * 10, beside=4)
    # passes over 9 rows, and over 5 of them for the plain tokens
    assert stats.estimated_speedup == pytest.approx(55 * 2000 / (5 * 2000 + 10 * 3000))


def test_drafts_that_are_all_wrong_are_estimated_below_one():
    true = table(0.0, 0.25, shared=0.0, plain_us=1000)
    stats = written(true, [None] * 5 + [0] * 9)
    assert stats.estimated_speedup == pytest.approx(14 / (5 + 9 * 2))


def test_there_is_no_estimate_with_few_plain_passes_or_without_drafts():
    true = table(0.0, 0.25, shared=0.0)
    assert written(true, [None] * (N_PLAIN - 1) + [4] * 20).estimated_speedup is None
    assert written(true, [None] * N_PLAIN + [4] * 20).estimated_speedup is not None
    assert written(true, [None] * 20).estimated_speedup is None
    assert GenerationStats().estimated_speedup is None


def test_a_pass_through_the_rest_of_the_blocks_is_not_plain():
    """A draft whose only token was dropped has run the others already."""
    draft = draft_of(verification=Pass(enter=object()), dropped=(1, 0.1))
    stats = GenerationStats()
    stats.observe(Step(draft, Verdict.of_chain(0, 5, ended=False), 100))
    assert (stats.n_plain, stats.plain_us) == (0, 0)
