"""Siblings: tokens beside a chain that is not sure, which the same pass verifies."""

import itertools
import math
import random

import numpy as np
import pytest
from drafts import draft_of, outcomes_of, parents_of
from simulation import FEW_ROWS, NARROW, table

from pyselfspec import Fixed, LayerMask
from pyselfspec.costs.timed import TimedCosts
from pyselfspec.errors import ArgumentError
from pyselfspec.runtime.passes import FULL
from pyselfspec.speculate.batching import generate_steps
from pyselfspec.speculate.controllers._choice import Choice
from pyselfspec.speculate.drafters import head, layer_skip
from pyselfspec.speculate.limits import DraftLimit
from pyselfspec.speculate.trees.siblings import Siblings
from pyselfspec.speculate.types import Step, Verdict
from pyselfspec.testing.conformance import (
    HISTORY,
    DrafterConformance,
    assert_left_as_promised,
    drafted,
    tokens_of,
)
from pyselfspec.testing.fakes import FakeContext, FakeModel, FakeSampler, plain_tokens

in_both_ways = pytest.mark.parametrize("enters", [True, False], ids=["shared", "forked"])


def layer_skipper(context, n_siblings=2):
    mask = LayerMask.alternate(context.model.n_layer)
    return layer_skip.make(context, layer_skip.Options(mask, n_siblings=n_siblings))


class TestLayerSkipWithSiblings(DrafterConformance):
    def make(self, context):
        return layer_skipper(context)


def was_beside(step):
    """Whether a sibling was accepted."""
    n_chain = len(step.draft.tokens) - step.draft.n_siblings
    return bool(step.verdict.path) and step.verdict.path[-1] >= n_chain


# which


def test_the_likeliest_to_be_accepted_are_taken_with_all_before_them_right():
    found = Siblings(2)
    found.offer(0, [(11, 0.1), (12, 0.05)])
    found.offer(1, [(21, 0.3), (22, 0.2)])
    found.offer(2, [(31, 0.9)])  # beside a token that was not drafted in the end
    draft = found.beside(
        draft_of((1, 2), probs=(0.5, 0.6)), DraftLimit(2), FakeContext(FakeModel())
    )
    assert draft.token_ids == (1, 2, 21, 11)  # 0.5 * 0.3 and 0.1; 22 ties with 11 and came later
    assert parents_of(draft) == (-1, 0, 0, -1)
    assert draft.probs == (0.5, 0.6, 0.3, 0.1)
    assert (draft.n_siblings, draft.n_proposed, draft.first(3).n_siblings) == (2, 2, 1)


class Told(DraftLimit):
    """Remembers the chances that it was told of, and takes none."""

    told = ()

    def n_siblings(self, chain, chances):
        Told.told = chances
        return 0


@pytest.mark.parametrize(("drawn", "rises"), [(21, True), (99, False)])
def test_chances_follow_how_often_siblings_were_right_in_this_text(drawn, rises):
    """Also of those that were not verified; the next text begins anew."""
    found, context = Siblings(1), FakeContext(FakeModel())

    def chance(times):
        for _ in range(times):
            found.offer(1, [(21, 0.25)])
            assert (
                found.beside(draft_of((1, 2), probs=(0.8, 0.6)), Told(2), context).n_siblings == 0
            )
            found.accept(Verdict((0,), drawn, False))
        return Told.told[0]

    assert chance(1) == pytest.approx(0.2)
    assert chance(20) == pytest.approx(0.2 * (22 if rises else 2) / 6)
    found.begin()
    assert chance(1) == pytest.approx(0.2)


def test_a_verdict_on_copies_alone_is_none_on_siblings():
    found = Siblings(2)
    found.beside(draft_of((1, 2), probs=(0.8, 0.6)), DraftLimit(2), FakeContext(FakeModel()))
    found.accept(Verdict((0, 1), 7, False))
    found.accept(Verdict((0, 1, 2, 3), 7, False))  # nothing was drafted behind four copies


@pytest.mark.parametrize(("options", "n"), [({}, 3), ({"pass_width": 4}, 1), ({"n_seq_max": 2}, 1)])
def test_there_are_no_more_than_fit_into_a_pass(options, n):
    found = Siblings(9)
    found.offer(1, [(i, 0.1) for i in range(3, 9)])
    context = FakeContext(FakeModel(), **options)
    draft = found.beside(draft_of((1, 2), probs=(0.5, 0.6)), DraftLimit(2), context)
    assert draft.n_siblings == n


@pytest.mark.parametrize("growth", [FEW_ROWS, NARROW, [1 + 0.01 * i for i in range(16)]])
@pytest.mark.parametrize("shared", [0.0, 0.25])
def test_as_many_as_promise_most_tokens_for_the_time(growth, shared):
    for seed in range(40):
        rng = random.Random(seed)
        probs = [rng.uniform(0.3, 1) for _ in range(rng.randint(1, 5))]
        chances = sorted((rng.uniform(0, 0.4) for _ in range(4)), reverse=True)
        costs = table(growth=growth, shared=shared).at(0)
        n, dropped = len(probs), (7, 0.1) if rng.random() < 0.5 else None
        chain = draft_of((1,) * n, probs=tuple(probs), dropped=dropped)
        tokens = 1 + sum(itertools.accumulate(probs, lambda a, b: a * b))
        passes_us = (n + (dropped is not None)) * costs.token_us
        passes_us += 0 if dropped else costs.last_us
        speeds = [tokens / (passes_us + costs.verify_us[n])]
        speeds += [
            (tokens + sum(chances[:m])) / (passes_us + costs.full_us[n + m]) for m in range(1, 5)
        ]
        best = Choice(5, n_copies=0, costs=costs).n_siblings(chain, chances)
        assert speeds[best] == pytest.approx(max(speeds)), f"seed {seed}"


def test_a_choice_takes_siblings_where_rows_are_cheap_and_none_where_they_are_not():
    chain, chances = draft_of((1, 2), probs=(0.5, 0.5)), [0.25, 0.15]
    n = [
        Choice(2, n_copies=0, costs=table(growth=growth, shared=0.0).at(0)).n_siblings(
            chain, chances
        )
        for growth in (0.01, 0.5)
    ]
    assert n == [2, 0]


@pytest.mark.parametrize("options", [layer_skip.Options, head.Options])
def test_what_cannot_be_is_refused(options):
    with pytest.raises(ArgumentError, match=r"n_siblings is 0 .*got -1"):
        options(n_siblings=-1)
    with pytest.raises(ArgumentError, match=r"n_siblings needs .* all tokens, and shortlist"):
        options(n_siblings=1, shortlist=100)


# what a step with siblings says


def test_a_sibling_that_was_right_says_that_the_token_beside_it_was_wrong():
    draft = draft_of(
        (1, 2, 3), probs=(0.9, 0.5, 0.4), parents=(-1, 0, 0), n_siblings=1, dropped=(7, 0.2)
    )
    step = Step(draft, Verdict((0, 2), 7, False), 1)
    assert outcomes_of(step) == [(0.9, True), (0.5, False)]
    assert step.tokens == (1, 3, 7)


def test_a_pass_over_siblings_is_timed_as_a_full_one():
    costs = table(shared=0.5)
    with_them, of_copies = TimedCosts(costs), TimedCosts(costs)
    for _ in range(9):
        for timed in (with_them, of_copies):
            timed.observe(0, 0, 0, 0, 20_000)
        with_them.observe(0, 2, 4, 9_000, 60_000, 0, 2)
        of_copies.observe(0, 0, 0, 0, 60_000, 4)
    assert with_them.at(0) == of_copies.at(0)
    assert with_them.at(0).full_us[4] > 1.2 * costs.at(0).full_us[4]


# in a text


@in_both_ways
def test_siblings_are_what_the_mask_finds_next_likeliest(enters):
    model = FakeModel(quality=0.5)
    context = FakeContext(model, enters=enters)
    context.prefill(HISTORY[:-1])
    drafter = layer_skipper(context)
    drafter.begin(context.sequence(), HISTORY)
    draft = drafted(drafter, context, DraftLimit(3))
    assert len(draft.tokens) == 5 and draft.n_siblings == 2 and draft.verify == FULL
    assert_left_as_promised(context, draft)
    chances, right = [], 1.0
    for i in range(3):
        p = model.draft([*HISTORY, *draft.token_ids[:i]])
        order = np.argsort(-p)
        assert order[0] == draft.token_ids[i]
        chances += [(right * p[token], i - 1, token) for token in order[1:]]
        right *= p[order[0]]
    want = sorted(chances, reverse=True)[:2]
    assert [(p, t) for _, p, t in want] == list(
        zip(parents_of(draft)[3:], draft.token_ids[3:], strict=True)
    )
    assert math.prod(draft.probs[:3]) == pytest.approx(right)


@in_both_ways
@pytest.mark.parametrize("sampler_seed", [None, 1])
def test_the_text_is_plain_and_siblings_are_accepted(enters, sampler_seed):
    n_beside = 0
    for seed in range(6):
        model = FakeModel(seed=seed, quality=0.3)
        context = FakeContext(model, enters=enters)
        steps = list(
            generate_steps(
                context,
                HISTORY,
                drafter=layer_skipper(context),
                controller=Fixed(3, p_min=0),
                sampler=FakeSampler(sampler_seed),
                n_predict=20,
                consume=model.is_eog,
            )
        )
        assert tokens_of(steps) == plain_tokens(model, HISTORY, 20, seed=sampler_seed), seed
        assert context.n_cells == context.sequence(0).n_past
        n_beside += sum(map(was_beside, steps))
    assert n_beside > 0
