"""Drafts lose little in any text."""

import random
from itertools import pairwise

import pytest
from drafts import draft_of
from simulation import FEW_ROWS, table

from pyselfspec.costs.account import LOSS_PASSES, LOSS_SHARE, RATE_MIN, Account
from pyselfspec.costs.timed import TimedCosts
from pyselfspec.speculate.controllers import Learned
from pyselfspec.speculate.controllers.auto import make
from pyselfspec.speculate.types import Draft, Step, Verdict

PLAIN_US = 1000


def test_the_loss_is_at_most_the_credit_and_one_step():
    rng = random.Random(3)
    account, n, lost_us, worst_us = Account(), 0, 0.0, 0.0
    while n < 3000:
        for _ in range(account.n_rests(30.0, PLAIN_US)):
            account.add(1, PLAIN_US, PLAIN_US)
            n += 1
        us = PLAIN_US * rng.uniform(1, 4)  # for one token: all of the draft was rejected
        account.add(1, us, PLAIN_US)
        n, lost_us, worst_us = n + 1, lost_us + us - PLAIN_US, max(worst_us, us - PLAIN_US)
        assert lost_us <= LOSS_SHARE * n * PLAIN_US + LOSS_PASSES * PLAIN_US + worst_us
    assert lost_us >= RATE_MIN * LOSS_SHARE * n * PLAIN_US  # it was not idle either


def test_credit_grows_as_fast_as_drafts_return_it():
    def n_rests(gain_us):
        """After 400 steps that lose half a pass, or gain."""
        account = Account()
        for n in range(400):
            us = PLAIN_US + (PLAIN_US // 2 if n % 2 else -gain_us)
            account.add(1, us, PLAIN_US)
        low, high = (account.n_rests(n * PLAIN_US, PLAIN_US) for n in (1000.0, 1010.0))
        return high - low

    least, half, most = n_rests(0), n_rests(PLAIN_US // 4), n_rests(PLAIN_US // 2)
    assert least == pytest.approx(10 / (RATE_MIN * LOSS_SHARE), abs=1)
    assert half == pytest.approx(2 * 10 / LOSS_SHARE, rel=0.03)
    assert most == pytest.approx(10 / LOSS_SHARE, rel=0.03)


def test_what_was_gained_may_be_lost_again():
    account = Account()
    account.add(3, PLAIN_US, PLAIN_US)
    account.add(1, 3 * PLAIN_US, PLAIN_US)
    assert account.n_rests(0.0, PLAIN_US) == 0


def test_looking_up_what_never_comes_is_given_up():
    """A look-up that takes a tenth of a pass costs a tenth of the speed, where nothing repeats."""
    costs = table(0.0, FEW_ROWS, shared=0.0, plain_us=PLAIN_US)
    controller = make(costs, Learned(TimedCosts(costs)))
    asked = []
    for n in range(2000):
        rests = controller.limit(n).rests
        if not rests:
            asked.append(n)
        draft = Draft() if rests else Draft(draft_us=PLAIN_US // 10)
        controller.observe(Step(draft, Verdict.of_chain(0, 1, False), PLAIN_US))
    spent_us = len(asked) * (PLAIN_US // 10)
    assert spent_us <= (LOSS_SHARE * 2000 + LOSS_PASSES + 1) * PLAIN_US
    assert max(b - a for a, b in pairwise(asked)) < 100  # but it goes on trying


def test_one_look_up_that_was_disturbed_does_not_count():
    """The process was stopped for a second, say."""
    costs = table(0.0, FEW_ROWS, shared=0.0, plain_us=PLAIN_US)
    controller = make(costs, Learned(TimedCosts(costs)))
    for n in range(60):
        assert not controller.limit(n).rests
        draft = Draft(draft_us=1_000_000 if n == 20 else 1)
        controller.observe(Step(draft, Verdict.of_chain(0, 1, False), PLAIN_US))


def test_a_draft_that_is_accepted_is_asked_for_at_every_step():
    costs = table(0.0, FEW_ROWS, shared=0.0, plain_us=PLAIN_US)
    controller = make(costs, Learned(TimedCosts(costs)))
    for n in range(300):
        assert not controller.limit(n).rests
        draft = draft_of((1, 1), (0.9, 0.9), n_copied=2, draft_us=PLAIN_US // 10)
        controller.observe(Step(draft, Verdict.of_chain(2, 1, False), int(1.2 * PLAIN_US)))
