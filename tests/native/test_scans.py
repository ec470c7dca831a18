"""Strategies on a tiny model."""

import pytest
from strategy_runs import UNPRUNED, run, space_of

from pyselfspec.selection import objectives
from pyselfspec.selection.chunks import cut
from pyselfspec.selection.rounds import Confident
from pyselfspec.selection.strategies import Prune


@pytest.mark.parametrize("objective", ["perplexity", "agreement"])
@pytest.mark.parametrize("name", ["greedy", "anti"])
def test_nothing_given_up_or_reused_changes_the_result(
    objective, name, tiny, new_context, token_ids
):
    model = tiny(n_layer=5, zero_attn=(1,), zero_ffn=(3,), late_scale=0.3)
    texts = cut(token_ids(4 * 64), 64, 1)
    space = space_of(5)
    found = []
    for give_up, prune, cache in ((None, UNPRUNED, 0), (Confident(), Prune(), 2**20)):
        setting = objectives.Setting(new_context(model), texts, cache_bytes=cache)
        made = objectives.load(objective)(setting)
        chosen = run(name, space, 0.4, prune, made, give_up=give_up, n_chunks=4)
        found.append(([s.mask for s in chosen], made.n_sublayers))
    (plain, plain_work), (quick, quick_work) = found
    assert quick == plain
    assert quick_work < 0.8 * plain_work
    if (
        objective == "agreement"
    ):  # text that means nothing can be less of a surprise to half a model
        planted = plain[1 if name == "greedy" else -1]
        assert 1 in planted.skip_attn and 3 in planted.skip_ffn
