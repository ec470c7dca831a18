"""Controllers answer with limits and refuse values that make none."""

import math

import pytest
from drafts import draft_of
from simulation import table

from pyselfspec.errors import ArgumentError
from pyselfspec.speculate import controllers
from pyselfspec.speculate.controllers.fixed import Fixed
from pyselfspec.speculate.limits import DraftDecision, DraftLimit
from pyselfspec.speculate.types import Step, Verdict


def step(n_accepted, n_drafted, p=0.1):
    draft = draft_of((1,) * n_drafted, (p,) * n_drafted, draft_us=1)
    return Step(draft, Verdict.of_chain(n_accepted, 9, False), verify_us=1)


@pytest.mark.parametrize("name", ["nope", "", "_acceptance", "auto.py"])
def test_an_unknown_name_is_answered_with_the_known_ones(name):
    with pytest.raises(ArgumentError) as error:
        controllers.load(name)
    assert all(known in str(error.value) for known in controllers.all_names())


@pytest.mark.parametrize("name", controllers.all_names())
def test_every_controller_keeps_to_what_a_loop_needs(name):
    """Limits that a cap holds for, and steps of any shape; some as its own limits would have it."""
    controller = controllers.load(name)(table())
    for i in range(40):
        limit = controller.limit(i).capped(i % 5)
        assert 0 <= limit.n_max <= i % 5
        if limit.n_max:
            assert limit.after([0.99] * limit.n_max) in (DraftDecision.STOP, DraftDecision.DROP)
        controller.observe(step(min(i % 2, limit.n_max), limit.n_max))


# fixed


@pytest.mark.parametrize("n_accepted", [0, 3])
def test_fixed_does_not_change_its_mind(n_accepted):
    controller = Fixed(n_max=3)
    for _ in range(5):
        controller.observe(step(n_accepted, 3))
    assert controller.limit(0) == DraftLimit(3, controller.p_min)


@pytest.mark.parametrize("n_max", [0, -1])
def test_fixed_refuses_drafts_without_tokens(n_max):
    with pytest.raises(ArgumentError, match=f"1 token or more, got {n_max}"):
        Fixed(n_max=n_max)


@pytest.mark.parametrize("p_min", [-0.01, 1.01, math.nan, math.inf])
def test_fixed_refuses_what_is_no_probability(p_min):
    with pytest.raises(ArgumentError, match="p_min is 0 to 1"):
        Fixed(p_min=p_min)
