"""Passes that a context refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fixture_types import NewContext, TinyModel

from pyselfspec.errors import ArgumentError
from pyselfspec.runtime.passes import Pass, Rows


@pytest.mark.parametrize(
    ("field", "value"),
    [("outputs", (True,)), ("pos", (0, 1)), ("seq_ids", ()), ("shared", ((1,),))],
)
def test_every_row_needs_all_fields(
    field: str, value: Any, tiny: TinyModel, new_context: NewContext
) -> None:
    """The library would read behind the end of a field that is short."""
    context = new_context(tiny())
    rows = replace(Rows.of(0, 0, [5, 6, 7]), **{field: value})
    with pytest.raises(ArgumentError, match=f"3 tokens need as many {field}, got {len(value)}"):
        context.run(rows)
    assert context.sequence().n_past == 0


def test_one_cell_is_not_written_twice(tiny: TinyModel, new_context: NewContext) -> None:
    """In place, two rows that share it would write it at the same time."""
    context = new_context(tiny())
    seq = context.sequence()
    context.decode([5, 6, 7])
    fork = seq.fork(1)
    for each in (seq, fork):
        context.decode([8], seq=each)  # a cell of its own
    in_place = Pass(in_place=True)
    with pytest.raises(ArgumentError, match="position 2 of sequence 1 is shared with another"):
        context.run(Rows.joined(Rows.of(i, 2, [7, 8]) for i in (0, 1)), in_place)
    assert [each.n_past for each in (seq, fork)] == [4, 4]
    context.run(Rows.joined(Rows.of(i, 3, [8]) for i in (0, 1)), in_place)
    context.run(Rows.of(1, 2, [7, 8]), in_place)
