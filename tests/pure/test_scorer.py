"""Scoring without a model: what is measured, what is given up, what is taken up again."""

import math

import numpy as np
import pytest

from pyselfspec import LayerMask
from pyselfspec.errors import ArgumentError
from pyselfspec.masks.score import Score
from pyselfspec.selection.results import Results
from pyselfspec.selection.rounds import AbortRatio, Confident, Never, Round, Scored
from pyselfspec.selection.scorer import Scorer

N_LAYER = 5
FULL = LayerMask.full(N_LAYER)
MASKS = tuple(LayerMask.skipping(N_LAYER, attn=[il]) for il in (3, 1, 4, 0, 2))


class Toy:
    """Losses that a seed decides: excess of a mask is 0.1 nats for each block number skipped."""

    n_chunks = 6

    def __init__(self, spread=0.05):
        self.asked = []
        self.spread = spread

    def scores(self, chunk, base, masks):
        order = [base.first_difference(mask) for mask in masks]
        assert order == sorted(order)
        for mask in masks:
            self.asked.append((mask, chunk))
            rng = np.random.default_rng([chunk, *mask.to_bytes()])
            full = np.full(50, 3.0)
            yield Score.of(full + rng.normal(0.1 * sum(mask.skip_attn), self.spread, 50), full)

    def value(self, mask, score):
        return -score.mean_excess


def run(scorer, round):
    progress = []
    return scorer.score(round, progress.append), progress


def test_every_mask_sees_every_chunk_in_the_order_of_the_request():
    toy = Toy()
    scored, progress = run(Scorer(toy, Results(), 4, Never()), Round(FULL, MASKS, True))
    assert [s.mask for s in scored] == list(MASKS)
    assert all(s.complete and s.score.n == 200 for s in scored)
    assert [(p.n_done, p.n_total) for p in progress] == [(i, 20) for i in range(1, 21)]
    assert len(toy.asked) == len(set(toy.asked)) == 20


def test_what_is_known_is_not_measured_again():
    results, toy = Results(), Toy()
    first, _ = run(Scorer(toy, results, 2, Never()), Round(FULL, MASKS[:3], True))
    toy.asked.clear()
    again, _ = run(Scorer(toy, results, 3, Never()), Round(FULL, MASKS, True))
    assert {(MASKS[i], 2) for i in range(3)} < set(toy.asked) and len(toy.asked) == 3 + 2 * 3
    whole, _ = run(Scorer(Toy(), Results(), 3, Never()), Round(FULL, MASKS, True))
    assert again == whole and first[0] != whole[0]


def test_the_surely_worse_are_given_up_and_the_best_never():
    toy = Toy()
    scored, _ = run(Scorer(toy, Results(), 6, Confident()), Round(FULL, MASKS, True))
    assert [s.mask for s in scored if s.complete] == [MASKS[3]]
    assert len(toy.asked) == 5 + 5  # all on the first chunk, then the best alone
    assert min(scored, key=lambda s: s.rank).mask == MASKS[3]


def test_nothing_is_given_up_where_every_score_counts():
    scored, _ = run(Scorer(Toy(), Results(), 6, Confident()), Round(FULL, MASKS, False))
    assert all(s.complete for s in scored)


def test_what_is_not_sure_is_measured_on():
    scored, _ = run(Scorer(Toy(9.0), Results(), 6, Confident()), Round(FULL, MASKS, True))
    assert all(s.complete for s in scored)


def test_absurd_perplexities_are_given_up_after_three_chunks():
    bad = Scored(MASKS[0], Score.of(np.full(9, math.log(31)), np.zeros(9)), 0.0)
    good = Scored(MASKS[1], Score.of(np.full(9, math.log(29)), np.zeros(9)), 0.0)
    rule = AbortRatio()
    assert rule.hopeless([bad, good], 2, False) == set()
    assert rule.hopeless([bad, good], 3, False) == {MASKS[0]}


def test_a_round_of_nothing_but_absurd_masks_ends():
    toy = Toy(0.01)
    rule = AbortRatio(1.0001, after=1)
    scored, _ = run(Scorer(toy, Results(), 6, rule), Round(FULL, MASKS[:3], True))
    assert not any(s.complete for s in scored) and len(toy.asked) == 3


@pytest.mark.parametrize("n", [0, 7])
def test_chunks_that_the_text_does_not_have(n):
    with pytest.raises(ArgumentError, match=f"6 chunks, but n_chunks is {n}"):
        Scorer(Toy(), Results(), n, Never())
