"""Dynamic exits on a tiny model."""

from __future__ import annotations

from typing import Any

import pytest
from fixture_types import NewContext, TinyModel

from pyselfspec import GREEDY, Completion, Fixed, LayerMask, SamplingParams
from pyselfspec.lab.drafters import dynamic_exit
from pyselfspec.runtime.context import Context
from pyselfspec.speculate.drafters import layer_skip

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
