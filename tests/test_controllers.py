"""Controllers answer with limits and refuse values that make none."""

import math

import pytest

from pyselfspec.controllers import Fixed
from pyselfspec.errors import ArgumentError
from pyselfspec.types import Draft, DraftLimit, Step, Verdict


def test_fixed_gives_what_it_was_made_with():
    assert Fixed(n_max=7, p_min=0.25).limit() == DraftLimit(7, 0.25)


@pytest.mark.parametrize("n_accepted", [0, 3])
def test_fixed_does_not_change_its_mind(n_accepted):
    controller = Fixed(n_max=3)
    for _ in range(5):
        controller.observe(
            Step(Draft((1, 2, 3), (0.1, 0.1, 0.1)), Verdict(n_accepted, 9, False), verify_us=1)
        )
    assert controller.limit() == DraftLimit(3, controller.p_min)


def test_fixed_drafts_by_default():
    assert Fixed().limit().n_max >= 1


@pytest.mark.parametrize("n_max", [0, -1])
def test_fixed_refuses_drafts_without_tokens(n_max):
    with pytest.raises(ArgumentError, match=f"1 token or more, got {n_max}"):
        Fixed(n_max=n_max)


@pytest.mark.parametrize("p_min", [-0.01, 1.01, math.nan, math.inf])
def test_fixed_refuses_what_is_no_probability(p_min):
    with pytest.raises(ArgumentError, match="p_min is 0 to 1"):
        Fixed(p_min=p_min)


@pytest.mark.parametrize("p_min", [0.0, 1.0])
def test_fixed_takes_the_ends_of_the_range(p_min):
    assert Fixed(p_min=p_min).limit().p_min == p_min
