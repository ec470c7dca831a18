"""Inputs and outputs of a pass: rows and states keep their order and belong together."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pytest

from pyselfspec import LayerMask
from pyselfspec.errors import ArgumentError
from pyselfspec.runtime.passes import FULL, OUTPUTS, Hidden, Pass, Rows

N_EMBD = 3
MASK = LayerMask.early_exit(4, 2)


def states(n: int, first: float = 0.0) -> Hidden:
    return Hidden(np.arange(first, first + n * N_EMBD, dtype=np.float32).reshape(n, N_EMBD))


def parts_of(n: int, rng: np.random.Generator) -> list[slice]:
    """Slices that divide n rows among some parts, in order."""
    cuts = np.sort(rng.integers(0, n + 1, rng.integers(0, 4))).tolist()
    return [slice(a, b) for a, b in pairwise([0, *cuts, n])]


# rows


@pytest.mark.parametrize(
    ("outputs", "wanted"),
    [("all", (True, True, True)), ("last", (False, False, True)), ("none", (False,) * 3)],
)
def test_rows_of_one_sequence_are_consecutive(outputs: Any, wanted: tuple[bool, ...]) -> None:
    rows = Rows.of(2, 7, [5, 6, 5], outputs)
    assert rows == Rows((5, 6, 5), (2, 2, 2), (7, 8, 9), wanted)
    assert len(rows) == 3


@pytest.mark.parametrize("outputs", OUTPUTS)
def test_no_rows_are_fine(outputs: Any) -> None:
    assert Rows.of(1, 4, [], outputs) == Rows.joined([]) == Rows((), (), (), ())
    assert len(Rows.joined([])) == 0


@pytest.mark.parametrize("seed", range(10))
def test_joined_rows_are_those_of_all_parts_in_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    parts = [
        Rows.of(
            int(rng.integers(4)),
            int(rng.integers(100)),
            rng.integers(50, size=rng.integers(4)).tolist(),
            OUTPUTS[rng.integers(3)],
        )
        for _ in range(rng.integers(1, 5))
    ]
    rows = Rows.joined(iter(parts))
    assert len(rows) == sum(map(len, parts))
    ends = list(accumulate(map(len, parts)))
    for part, end in zip(parts, ends, strict=True):
        here = slice(end - len(part), end)
        assert part == Rows(
            rows.tokens[here], rows.seq_ids[here], rows.pos[here], rows.outputs[here]
        )


# states


@pytest.mark.parametrize("shape", [(), (3,), (1, 2, 3)])
def test_states_have_a_row_per_token(shape: tuple[int, ...]) -> None:
    with pytest.raises(ArgumentError, match=r"shape \[n_rows, n_embd\], got"):
        Hidden(np.zeros(shape, np.float32))


def test_states_are_arrays_where_one_is_wanted() -> None:
    found = states(2)
    assert np.asarray(found).dtype == found.numpy().dtype == np.float32
    np.testing.assert_array_equal(found, found.numpy())
    assert np.asarray(found, np.float64).dtype == np.float64
    copied = np.array(found)
    copied[:] = -1
    assert (found.numpy() >= 0).all()


@pytest.mark.parametrize("seed", range(10))
def test_states_that_were_divided_join_again(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 9))
    whole, slices = states(n), parts_of(n, rng)
    parts = [whole[part] for part in slices]
    assert [len(part) for part in parts] == [part.stop - part.start for part in slices]
    joined = Hidden.joined(parts)
    assert joined.shape == whole.shape
    np.testing.assert_array_equal(joined.numpy(), whole.numpy())


def test_one_part_is_not_copied() -> None:
    """A verification pass enters with states that nobody else needs: no bytes are moved."""
    whole = states(4)
    assert Hidden.joined([whole]) is whole
    assert np.shares_memory(whole[1:3].numpy(), whole.numpy())


# passes


@pytest.mark.parametrize(
    ("what", "is_draft"),
    [
        (Pass(MASK), True),
        (Pass(MASK, leave=2, head="best"), True),
        (Pass(LayerMask.enter_at(4, 2), enter=states(1), in_place=True), False),
        (Pass(leave=4), False),
        (Pass(in_place=True), False),
    ],
)
def test_a_draft_is_what_leaves_k_and_v_of_its_own(what: Pass, is_draft: bool) -> None:
    assert what.is_draft == is_draft


KINDS = [
    FULL,
    Pass(MASK),
    Pass(LayerMask.early_exit(4, 3)),
    Pass(MASK, leave=2),
    Pass(MASK, leave=1),
    Pass(MASK, head="best"),
    Pass(MASK, enter=states(1)),
    Pass(MASK, enter=states(1), in_place=True),
    Pass(in_place=True),
]


@pytest.mark.parametrize("i", range(len(KINDS)))
@pytest.mark.parametrize("j", range(len(KINDS)))
def test_only_passes_of_one_kind_join(i: int, j: int) -> None:
    assert KINDS[i].joins(KINDS[j]) == (i == j)


def test_passes_join_whatever_states_they_enter_with() -> None:
    one, other = (Pass(MASK, enter=states(n, 10.0 * n), in_place=True) for n in (1, 3))
    assert one.joins(other) and other.joins(one)
    assert one == other and hash(one) == hash(other)  # what they do is the same


def test_a_pass_without_states_is_the_same_on_any_rows() -> None:
    for what in KINDS:
        if what.enter is None:
            assert what.on(slice(1, 2)) == what
            assert what.on(slice(1, 2)).enter is None


@pytest.mark.parametrize("seed", range(10))
def test_the_parts_of_a_pass_enter_with_their_own_rows(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 9))
    what = Pass(MASK, enter=states(n), leave=3, head="best", in_place=True)
    slices = parts_of(n, rng)
    parts = [what.on(part) for part in slices]
    assert all(part.joins(what) for part in parts)
    for part, rows in zip(parts, slices, strict=True):
        assert part.enter is not None and what.enter is not None
        np.testing.assert_array_equal(part.enter.numpy(), what.enter.numpy()[rows])


def test_states_are_laid_out_as_the_library_reads_them():
    states = np.arange(24, dtype=np.float64).reshape(6, 4)
    hidden = Hidden(states)
    assert hidden.numpy().dtype == np.float32
    for part in (hidden[::2], hidden[::-1], hidden[1:3]):
        assert part.numpy().flags.c_contiguous
    np.testing.assert_array_equal(hidden[::2].numpy(), states[::2])


def test_a_joined_pass_finds_what_each_part_wants() -> None:
    """The most of the parts' likeliest tokens, and all logits if one of the parts wants all."""
    one, forty, all_of_them = Pass(n_best=1), Pass(n_best=40), Pass()
    assert one.joins(forty) and forty.joins(all_of_them) and all_of_them.joins(one)
    assert Pass.joined([one, forty, one]).n_best == 40
    assert Pass.joined([one, all_of_them, forty]).n_best == 0
    assert Pass.joined([one, Pass(head="best")]) == Pass()
