"""Controllers that end drafts by a threshold that moves, or by the whole draft's chance."""

import math

import pytest
from drafts import draft_of

from pyselfspec.errors import ArgumentError
from pyselfspec.lab.controllers.adaptive import Adaptive
from pyselfspec.lab.controllers.product import Product
from pyselfspec.speculate.limits import DraftDecision
from pyselfspec.speculate.types import Step, Verdict


def step(n_accepted, n_drafted, p=0.1):
    draft = draft_of((1,) * n_drafted, (p,) * n_drafted, draft_us=1)
    return Step(draft, Verdict.of_chain(n_accepted, 9, False), verify_us=1)


# adaptive


def test_adaptive_checks_the_token_that_stops_a_draft():
    limit = Adaptive(n_max=4, threshold=0.8).limit(0)
    assert [limit.after([p]) for p in (0.79, 0.8)] == [DraftDecision.STOP, DraftDecision.GO_ON]
    assert limit.after([0.9] * 4) is DraftDecision.STOP


def test_adaptive_moves_as_published():
    """AM <- AM / 2 + (k / n) / 2; th wants +e below the target, else -e unless the draft was full;
    th <- 0.9 th + 0.1 wanted."""
    controller = Adaptive(n_max=4, threshold=0.6, acceptance=0.9)
    mean, threshold = 0.9, 0.6
    for k, n in [(1, 4), (4, 4), (4, 4), (3, 3), (3, 3), (2, 2), (0, 0), (0, 1)]:
        controller.observe(step(k, n))
        if n:
            mean = 0.5 * mean + 0.5 * k / n
            wanted = threshold + (0.01 if mean < 0.9 else 0 if n == 4 else -0.01)
            threshold = 0.9 * threshold + 0.1 * wanted
        assert controller.threshold == pytest.approx(threshold, abs=1e-12)
    assert threshold != pytest.approx(0.6, abs=1e-4)


# product


def test_product_drops_what_makes_the_whole_unlikely():
    limit = Product(n_max=5, bound=0.5).limit(0)
    assert limit.after([0.8]) is DraftDecision.GO_ON
    assert limit.after([0.8, 0.8]) is DraftDecision.GO_ON
    assert limit.after([0.8, 0.8, 0.7]) is DraftDecision.DROP
    assert limit.after([1.0] * 5) is DraftDecision.STOP


@pytest.mark.parametrize("bound", [-0.1, 1.1, math.nan])
def test_product_refuses_what_is_no_probability(bound):
    with pytest.raises(ArgumentError, match="bound is 0 to 1"):
        Product(bound=bound)
