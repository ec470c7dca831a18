"""Drafts that leave at the first exit that is sure: which exit, what its passes run, and that a
deeper one sees exactly what it would see alone."""

from __future__ import annotations

import pytest

from pyselfspec import LayerMask
from pyselfspec.errors import ArgumentError, UnsupportedError
from pyselfspec.lab.drafters import dynamic_exit
from pyselfspec.speculate.limits import DraftLimit
from pyselfspec.testing.conformance import HISTORY, drafted
from pyselfspec.testing.fake_context import FakeContext
from pyselfspec.testing.fake_model import FakeModel


def test_the_first_unsure_token_takes_those_before_it_along() -> None:
    """Passes of a draft, as sequence, rows and blocks that run."""
    context = FakeContext(FakeModel(n_vocab=11))
    sure = iter([0.9, 0.9, 0.2, 0.2, 0.9])
    context.argmax = lambda row: (1, next(sure))  # type: ignore[attr-defined]
    drafter = dynamic_exit.make(context, dynamic_exit.Options("1,2,3", 0.5))
    seq = context.sequence()
    context.prefill(HISTORY[:-1], seq)
    drafter.begin(seq, HISTORY)
    context.passes.clear()
    drafted(drafter, context, DraftLimit(3))
    n = context.model.n_layer
    first = LayerMask.early_exit(n, 1)
    second, third = (LayerMask.early_exit(n, i + 1) | LayerMask.enter_at(n, i) for i in (1, 2))
    ways = [(rows, mask) for _, rows, mask in context.passes]
    assert ways == [(1, first), (1, first), (1, first), (3, second), (3, third), (1, first)]


@pytest.mark.parametrize("exits", ["2,1", "1,1", "0,2", "-1", "two", "1,,2", "2,", "1.5"])
def test_exits_that_are_none_are_refused(exits: str) -> None:
    with pytest.raises(ArgumentError, match="rising numbers of blocks"):
        dynamic_exit.Options(exits)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ArgumentError, match="confidence is 0 to 1, got 2"):
        dynamic_exit.Options(confidence=2.0)
    context = FakeContext(FakeModel())
    with pytest.raises(ArgumentError, match=f"has {context.model.n_layer} blocks, got an exit"):
        dynamic_exit.make(context, dynamic_exit.Options("1,99"))


def test_where_states_cannot_enter_it_is_refused() -> None:
    context = FakeContext(FakeModel(), enters=False)
    with pytest.raises(UnsupportedError, match="passes cannot enter after block 1"):
        dynamic_exit.make(context, dynamic_exit.Options("1,3", 1.0))
