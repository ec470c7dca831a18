"""What is known of sequences, without any."""

import pytest

from pyselfspec.errors import ArgumentError
from pyselfspec.runtime.ledger import Ledger
from pyselfspec.runtime.passes import Rows


@pytest.fixture
def ledger():
    """Sequence 0 holds five tokens."""
    ledger = Ledger(4)
    ledger.evaluated(Rows.of(0, 0, [1, 2, 3, 4, 5]))
    return ledger


def test_a_pass_makes_unknown_what_it_touches(ledger):
    ledger.touch(Rows.of(0, 3, [9]), in_place=False)
    assert ledger.held[0] == [1, 2, 3]


def test_only_what_follows_the_known_becomes_known(ledger):
    ledger.evaluated(Rows.of(0, 7, [8]))
    assert ledger.held[0] == [1, 2, 3, 4, 5]
    ledger.evaluated(Rows.joined([Rows.of(1, 0, [7]), Rows.of(0, 5, [6])]))
    assert ledger.held[0] == [1, 2, 3, 4, 5, 6] and ledger.held[1] == [7]


def test_a_pass_in_place_is_felt_by_all_that_share_the_cells(ledger):
    ledger.forked(0, 1)
    ledger.forked(1, 2)
    ledger.touch(Rows.of(2, 3, [4]), in_place=True)
    assert [ledger.held[i] for i in range(3)] == [[1, 2, 3]] * 3


def test_a_pass_into_new_cells_is_felt_by_its_own_sequence_only(ledger):
    ledger.forked(0, 1)
    ledger.touch(Rows.of(1, 3, [4]), in_place=False)
    assert (ledger.held[0], ledger.held[1]) == ([1, 2, 3, 4, 5], [1, 2, 3])


def test_who_was_dropped_shares_nothing_any_more(ledger):
    ledger.forked(0, 1)
    ledger.dropped(1)
    assert ledger.held[1] == []
    ledger.evaluated(Rows.of(1, 0, [1, 2]))
    ledger.touch(Rows.of(1, 0, [1, 2]), in_place=True)
    assert ledger.held[0] == [1, 2, 3, 4, 5]


def test_tokens_that_are_said_to_be_held_go_on_from_the_known(ledger):
    ledger.extend(0, [1, 2, 3, 4, 5, 6])
    assert ledger.held[0][-1] == 6
    ledger.extend(0, [1, 2])
    assert ledger.held[0] == [1, 2]
    with pytest.raises(ArgumentError, match="does not begin"):
        ledger.extend(0, [1, 7, 3])


def test_a_claim_waits_for_no_loan(ledger):
    ledger.lend(3)
    with pytest.raises(ArgumentError, match="sequence 3 is lent"):
        ledger.claim(3)
    ledger.give_back(3)
    ledger.claim(3)
    assert not ledger.is_free(3)
    ledger.release(3)
    assert ledger.is_free(3)
