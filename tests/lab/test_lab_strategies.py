"""SWIFT and CLaSp keep their own promises."""

import numpy as np
import pytest
from planted_units import N_LAYER, SPACE, Planted, settings, trials_of

from pyselfspec import LayerMask
from pyselfspec.lab.strategies.clasp import Blocks
from pyselfspec.lab.strategies.swift import regress
from pyselfspec.selection.runner import Budget
from pyselfspec.selection.strategies import load


@pytest.fixture
def setting(tiny, new_context, token_ids):
    return settings(tiny, new_context, token_ids)


def test_swift_keeps_its_size_and_its_ends(setting):
    trials = trials_of(load("swift")(setting()), Planted(), Budget(60))
    sets = [SPACE.inside(t.mask) for t in trials]
    assert {len(s) for s in sets} == {int(0.45 * 2 * (N_LAYER - 2))}
    assert not set.union(*map(set, sets)) & {0, 1, 14, 15}
    assert sets[0] <= SPACE.inside(LayerMask.alternate(N_LAYER))


def test_swift_stops_when_nothing_gets_better(setting):
    flat = Planted()
    flat.value = lambda mask, score: 0.5
    assert len(trials_of(load("swift")(setting()), flat, Budget(999))) == 301


def test_the_process_interpolates_and_is_unsure_far_away():
    seed = 5
    print("seed", seed)
    rng = np.random.default_rng(seed)
    x = (rng.random((30, 12)) < 0.5).astype(float)
    y = x @ rng.random(12)
    mean, deviation = regress(x, y, np.vstack([x, 1 - x[:1] * 0, np.zeros((1, 12))]))
    assert np.abs(mean[:30] - y).max() < 0.15 * y.std()
    assert deviation[:30].max() < deviation[30:].min()


def test_clasp_against_whole_masked_passes(setting):
    """With one block to skip it is a tournament: at each depth the best so far against the block
    just passed, by what a pass that skips it has computed up to there."""
    made = setting(share=1 / N_LAYER)
    context, tokens = made.context, made.chunk[:33]
    masks = [t.mask for t in trials_of(load("clasp")(made), Planted(), Budget(1))]
    seq = context.sequence(context.n_seq_max - 1)
    seq.drop()
    context.prefill(tokens[:-1], seq)

    def skipping(il):
        return LayerMask.skipping(N_LAYER, attn=[il], ffn=[il])

    def at(depth, mask):
        cut_off = mask | LayerMask.early_exit(N_LAYER, depth)
        state = context.decode([tokens[-1]], seq=seq, mask=cut_off, hidden_at=depth).hidden.numpy()[
            0
        ]
        seq.rollback(32)
        return state / np.linalg.norm(state)

    best = 1
    for il in range(2, N_LAYER):
        full = at(il + 1, SPACE.full)
        best = max((best, il), key=lambda one: at(il + 1, skipping(one)) @ full)
    assert masks == [skipping(best)]


def test_one_block_at_a_time_equals_the_whole_pass(setting):
    made = setting()
    context, tokens = made.context, made.chunk[:20]
    seq = context.sequence(context.n_seq_max - 1)
    context.prefill(tokens[:-1], seq)
    blocks = Blocks(context, seq, tokens[-1])
    state = blocks.entering_second()
    for il in range(1, N_LAYER):
        state = blocks.through(il, state)
    np.testing.assert_array_equal(
        state, context.decode(tokens[-1:], seq=seq, hidden_at=N_LAYER).hidden
    )
