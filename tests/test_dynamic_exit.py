"""Drafts that leave at the first exit that is sure: which exit, what its passes run, and that a
deeper one sees exactly what it would see alone."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import NewContext, TinyModel

from pyselfspec import GREEDY, Completion, Fixed, LayerMask, SamplingParams
from pyselfspec.errors import ArgumentError
from pyselfspec.runtime.context import Context
from pyselfspec.speculate.drafters import dynamic_exit, layer_skip
from pyselfspec.speculate.types import DraftLimit
from pyselfspec.testing.conformance import HISTORY, drafted
from pyselfspec.testing.fakes import FakeContext, FakeModel

TEXT = [1, 300, 290, 281]
SEEDED = SamplingParams(temperature=1.0, top_k=0, seed=11)


def completion(context: Context, draft: str | None, options: Any, sampling: Any) -> Completion:
    made = Completion(
        context,
        TEXT,
        n_predict=32,
        sampling=sampling,
        draft=draft,
        options=options,
        controller=Fixed(4, p_min=0),
    )
    for _ in made:
        pass
    return made


def test_never_sure_is_the_last_exit(tiny: TinyModel, new_context: NewContext) -> None:
    """Draft by draft what the last exit alone drafts: nothing is approximated on the way there."""
    model = tiny(late_scale=0.3, late_from=1)
    for exits in ("1,3", "1,2,3"):
        never = dynamic_exit.Options(exits, 1.0)
        found = completion(new_context(model), "dynamic-exit", never, GREEDY)
        last = layer_skip.Options(LayerMask.early_exit(4, 3))
        want = completion(new_context(model), "layer-skip", last, GREEDY)
        assert found.tokens == want.tokens
        assert found.stats.n_drafted_at == want.stats.n_drafted_at
        assert found.stats.n_accepted_at == want.stats.n_accepted_at
        assert 0 < found.stats.n_accepted < found.stats.n_drafted


def test_always_sure_is_the_first_exit(tiny: TinyModel, new_context: NewContext) -> None:
    model = tiny(late_scale=0.3, late_from=1)
    found = completion(new_context(model), "dynamic-exit", dynamic_exit.Options("1,3", 0.0), GREEDY)
    first = layer_skip.Options(LayerMask.early_exit(4, 1))
    want = completion(new_context(model), "layer-skip", first, GREEDY)
    assert found.stats.n_accepted_at == want.stats.n_accepted_at


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_the_text_is_that_of_the_full_model(
    tiny: TinyModel, new_context: NewContext, sampling: SamplingParams
) -> None:
    """With an exit behind the last block, too: that one is the full model."""
    model = tiny(late_scale=0.3, late_from=1)
    plain = completion(new_context(model), None, None, sampling).tokens
    for exits in ("1,3", "1,2,4"):
        some = dynamic_exit.Options(exits, 0.1)
        assert completion(new_context(model), "dynamic-exit", some, sampling).tokens == plain


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


def test_where_states_cannot_enter_all_leave_at_the_first_exit() -> None:
    context = FakeContext(FakeModel(), enters=False)
    drafter = dynamic_exit.make(context, dynamic_exit.Options("1,3", 1.0))
    assert drafter.identity["exits"] == [1]
