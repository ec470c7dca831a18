"""Table of sequences and the tokens that they hold, tested without a context."""

import pytest

from pyselfspec.errors import ArgumentError
from pyselfspec.runtime.passes import Rows
from pyselfspec.runtime.sequence_table import SequenceTable


@pytest.fixture
def table():
    """Sequence 0 holds five tokens."""
    table = SequenceTable(4)
    table.record(Rows.of(0, 0, [1, 2, 3, 4, 5]))
    return table


def test_a_pass_makes_unknown_what_it_touches(table):
    table.invalidate(Rows.of(0, 3, [9]), (), in_place=False)
    assert table.tokens[0] == [1, 2, 3]


def test_only_what_follows_the_known_becomes_known(table):
    table.record(Rows.of(0, 7, [8]))
    assert table.tokens[0] == [1, 2, 3, 4, 5]
    table.record(Rows.joined([Rows.of(1, 0, [7]), Rows.of(0, 5, [6])]))
    assert table.tokens[0] == [1, 2, 3, 4, 5, 6] and table.tokens[1] == [7]


def test_a_pass_in_place_changes_every_sequence_that_shares_the_cells(table):
    table.copy(0, 1)
    table.copy(1, 2)
    table.invalidate(Rows.of(2, 3, [4]), (), in_place=True)
    assert [table.tokens[i] for i in range(3)] == [[1, 2, 3]] * 3


def test_a_pass_into_new_cells_changes_its_own_sequence_only(table):
    table.copy(0, 1)
    table.invalidate(Rows.of(1, 3, [4]), (), in_place=False)
    assert (table.tokens[0], table.tokens[1]) == ([1, 2, 3, 4, 5], [1, 2, 3])


def test_who_was_dropped_shares_nothing_any_more(table):
    table.copy(0, 1)
    table.clear(1)
    assert table.tokens[1] == []
    table.record(Rows.of(1, 0, [1, 2]))
    table.invalidate(Rows.of(1, 0, [1, 2]), (), in_place=True)
    assert table.tokens[0] == [1, 2, 3, 4, 5]


def test_tokens_that_are_said_to_be_held_go_on_from_the_known(table):
    table.extend(0, [1, 2, 3, 4, 5, 6])
    assert table.tokens[0][-1] == 6
    table.extend(0, [1, 2])
    assert table.tokens[0] == [1, 2]
    with pytest.raises(ArgumentError, match="does not begin"):
        table.extend(0, [1, 7, 3])


def test_a_borrowed_sequence_cannot_be_occupied(table):
    table.borrow(3)
    with pytest.raises(ArgumentError, match="a draft uses sequence 3"):
        table.occupy(3)
    table.release(3)
    table.occupy(3)
    assert not table.is_free(3)
    table.vacate(3)
    assert table.is_free(3)
