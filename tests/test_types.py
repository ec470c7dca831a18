"""Masks validate themselves and survive JSON; counts and ratios are what they say."""

import json

import pytest

from pyselfspec.errors import ArgumentError, MaskError
from pyselfspec.masks.layer_mask import LayerMask
from pyselfspec.speculate.types import Draft, DraftLimit, GenerationStats, Step, Verdict


def step(drafted=(), n_accepted=0, own=9, draft_us=0, verify_us=0):
    draft = Draft(tuple(drafted), (0.5,) * len(drafted), draft_us)
    return Step(draft, Verdict.of_chain(n_accepted, own, own is None), verify_us)


# masks


@pytest.mark.parametrize("part", ["attn", "ffn"])
@pytest.mark.parametrize("il", [-1, 4, 100])
def test_a_mask_names_only_blocks_that_exist(part, il):
    with pytest.raises(MaskError, match=rf"block {il}, but the model has 4 blocks \(0 to 3\)"):
        LayerMask.skipping(4, **{part: [0, il]})


@pytest.mark.parametrize("n_layer", [0, -1])
def test_a_mask_has_a_block(n_layer):
    with pytest.raises(MaskError, match="at least one block"):
        LayerMask.full(n_layer)


@pytest.mark.parametrize("n_layer", [1, 3])
def test_a_mask_leaves_something_to_run(n_layer):
    every = range(n_layer)
    with pytest.raises(MaskError, match=f"skips all {n_layer} blocks"):
        LayerMask.skipping(n_layer, attn=every, ffn=every)
    assert LayerMask.skipping(n_layer, attn=every, ffn=range(1, n_layer)).n_active == 1


@pytest.mark.parametrize(
    ("mask", "attn", "ffn"),
    [
        (LayerMask.full(4), set(), set()),
        (LayerMask.skipping(4, attn=[2, 0], ffn=(3,)), {0, 2}, {3}),
        (LayerMask.skipping(4, attn=[1, 1]), {1}, set()),
        (LayerMask.early_exit(4, keep=1), {1, 2, 3}, {1, 2, 3}),
        (LayerMask.early_exit(4, keep=4), set(), set()),
        (LayerMask.enter_at(4, first=0), set(), set()),
        (LayerMask.enter_at(4, first=3), {0, 1, 2}, {0, 1, 2}),
        (LayerMask.alternate(1), set(), set()),
        (LayerMask.alternate(2), set(), set()),
        (LayerMask.alternate(3), {1}, {1}),
        (LayerMask.alternate(6), {1, 3}, {1, 3}),
        (LayerMask.alternate(7), {1, 3, 5}, {1, 3, 5}),
    ],
)
def test_constructors_skip_what_they_say(mask, attn, ffn):
    assert (mask.skip_attn, mask.skip_ffn) == (attn, ffn)
    assert mask.n_active == 2 * mask.n_layer - len(attn) - len(ffn)


@pytest.mark.parametrize("keep", [0, -1, 5])
def test_an_exit_keeps_one_to_all_blocks(keep):
    with pytest.raises(MaskError, match=f"1 to 4 blocks, got {keep}"):
        LayerMask.early_exit(4, keep)


@pytest.mark.parametrize("first", [-1, 4])
def test_an_entry_is_a_block(first):
    with pytest.raises(MaskError, match=f"0 to 3, got {first}"):
        LayerMask.enter_at(4, first)


@pytest.mark.parametrize(
    ("attn", "ffn", "first"),
    [([], [], 0), ([0, 1], [1, 2], 0), ([0, 1], [0, 2], 1), ([0, 1, 2], [0, 1, 2], 3)],
)
def test_the_first_active_block_is_the_first_that_runs_at_all(attn, ffn, first):
    assert LayerMask.skipping(4, attn=attn, ffn=ffn).first_active == first


def test_or_skips_what_either_skips():
    either = LayerMask.skipping(4, attn=[0], ffn=[1]) | LayerMask.skipping(4, attn=[0, 2])
    assert either == LayerMask.skipping(4, attn=[0, 2], ffn=[1])


def test_or_refuses_masks_of_other_models_and_unions_that_skip_everything():
    with pytest.raises(MaskError, match="for 5 blocks"):
        LayerMask.full(4) | LayerMask.full(5)
    with pytest.raises(MaskError, match="skips all"):
        LayerMask.early_exit(4, 1) | LayerMask.enter_at(4, 1)


def test_a_mask_is_required_to_fit_the_model():
    mask = LayerMask.early_exit(4, 2)
    assert mask.require(4) is mask
    with pytest.raises(MaskError, match="for 4 blocks, not for 12; use one made"):
        mask.require(12)


def test_bytes_have_a_bit_per_part():
    assert LayerMask.skipping(4, attn=[1, 3], ffn=[2, 3]).to_bytes() == bytes([0, 1, 2, 3])


@pytest.mark.parametrize(
    "mask",
    [LayerMask.full(1), LayerMask.alternate(40), LayerMask.skipping(3, attn=[2, 0], ffn=[1])],
)
def test_masks_survive_json(mask):
    assert LayerMask.from_json(mask.to_json()) == mask


def test_json_lists_blocks_in_order():
    text = LayerMask.skipping(12, attn=[10, 2], ffn=[]).to_json()
    assert json.loads(text) == {"n_layer": 12, "skip_attn": [2, 10], "skip_ffn": []}


def test_parts_may_be_left_out_of_json():
    assert LayerMask.from_json('{"n_layer": 4, "skip_ffn": [1]}') == LayerMask.skipping(4, ffn=[1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON"),
        ('{"n_layer": 4', "not JSON"),
        ("[1, 2]", "expected object, got array.*a mask is like"),
        ("null", "got null"),
        ("4", "got int"),
        ("{}", "missing required field n_layer"),
        ('{"skip_attn": [1]}', "n_layer"),
        ('{"n_layer": true}', "expected int, got bool in n_layer"),
        ('{"n_layer": 4.0}', "expected int, got float"),
        ('{"n_layer": "4"}', "got str"),
        ('{"n_layer": 0}', "at least one block"),
        ('{"n_layer": 4, "skip": [1]}', "unknown field skip"),
        ('{"n_layer": 4, "skip_attn": 1}', "expected array, got int in skip_attn"),
        ('{"n_layer": 4, "skip_attn": null}', "expected array, got null"),
        ('{"n_layer": 4, "skip_attn": "12"}', "expected array, got str"),
        ('{"n_layer": 4, "skip_attn": {"1": 2}}', "expected array, got object"),
        ('{"n_layer": 4, "skip_ffn": [true]}', r"expected int, got bool in skip_ffn\[0\]"),
        ('{"n_layer": 4, "skip_ffn": [1.0]}', "got float"),
        ('{"n_layer": 4, "skip_ffn": [[1]]}', "expected int, got array"),
        ('{"n_layer": 4, "skip_ffn": [1, 2, 1]}', "skip_ffn names 1 twice"),
        ('{"n_layer": 4, "skip_ffn": [4]}', "block 4, but the model has 4"),
        ('{"n_layer": 4, "skip_attn": [-1]}', "block -1"),
        ('{"n_layer": 1, "skip_attn": [0], "skip_ffn": [0]}', "skips all"),
        pytest.param(
            "[" * 100_000,
            "not JSON",
            id="nested too deep",
        ),
    ],
)
def test_malformed_json_is_named(text, message):
    with pytest.raises(MaskError, match=message) as error:
        LayerMask.from_json(text)
    assert "\n" not in str(error.value)


# drafts and steps


@pytest.mark.parametrize(
    ("n_max", "cap", "left"), [(4, 2, 2), (4, 9, 4), (4, 4, 4), (4, 0, 0), (4, -3, 0), (0, 5, 0)]
)
def test_a_capped_limit_is_the_smaller_and_never_negative(n_max, cap, left):
    assert DraftLimit(n_max, 0.3).capped(cap) == DraftLimit(left, 0.3)


def test_a_draft_has_a_probability_per_token():
    with pytest.raises(ArgumentError, match="got 2 tokens and 1 prob"):
        Draft((1, 2), (0.5,))
    assert Draft().tokens == ()


@pytest.mark.parametrize(
    ("drafted", "n_accepted", "own", "tokens"),
    [
        ((), 0, 9, (9,)),
        ((5, 6), 0, 9, (9,)),
        ((5, 6), 1, 9, (5, 9)),
        ((5, 6), 2, 9, (5, 6, 9)),
        ((5, 6), 2, 0, (5, 6, 0)),
        ((5, 6), 1, None, (5,)),
    ],
)
def test_a_step_adds_the_accepted_tokens_and_the_models_own(drafted, n_accepted, own, tokens):
    assert step(drafted, n_accepted, own).tokens == tokens


# statistics


def test_statistics_match_a_hand_count():
    stats = GenerationStats(n_prompt=5)
    for one in (
        step((1, 2, 3), 2, draft_us=30, verify_us=100),
        step((), 0, verify_us=50),
        step((1, 2, 3, 4), 0, draft_us=40, verify_us=110),
        step((1,), 1, own=None, draft_us=10, verify_us=60),
    ):
        stats.observe(one)
    stats.prefill_us = 1_000
    stats.total_us = 501_000
    assert stats.to_dict() == {
        "n_prompt": 5,
        "n_generated": 3 + 1 + 1 + 1,
        "n_steps": 4,
        "n_drafted": 8,
        "n_accepted": 3,
        "n_drafted_at": [3, 2, 2, 1],
        "n_accepted_at": [2, 1],
        "prefill_us": 1_000,
        "draft_us": 80,
        "verify_us": 320,
        "total_us": 501_000,
        "acceptance_rate": 3 / 8,
        "tokens_per_step": 6 / 4,
        "tokens_per_second": 12.0,
    }
    json.dumps(stats.to_dict())


def test_counts_by_position_add_up():
    stats = GenerationStats()
    for n in (3, 0, 5, 2, 5):
        stats.observe(step(range(n), n // 2))
    assert sum(stats.n_drafted_at) == stats.n_drafted == 15
    assert sum(stats.n_accepted_at) == stats.n_accepted == 6


def test_ratios_of_nothing_are_none():
    empty = GenerationStats().to_dict()
    assert {name for name, value in empty.items() if value is None} == {
        "acceptance_rate", "tokens_per_step", "tokens_per_second",
    }  # fmt: skip


def test_plain_decoding_has_no_acceptance_rate():
    stats = GenerationStats()
    stats.observe(step())
    assert stats.acceptance_rate is None
    assert stats.tokens_per_step == 1.0


def test_statistics_do_not_share_their_lists():
    GenerationStats().observe(step((1, 2), 2))
    assert GenerationStats().n_drafted_at == []


# outcomes of guesses


def judged(n_drafted, n_accepted, next_token=7, dropped=None):
    probs = (0.9, 0.8, 0.7, 0.6)[:n_drafted]
    draft = Draft((1, 2, 3, 4)[:n_drafted], probs, dropped=dropped)
    return Step(draft, Verdict.of_chain(n_accepted, next_token, False), 1)


@pytest.mark.parametrize(
    ("step", "outcomes"),
    [
        (judged(3, 3), [(0.9, True), (0.8, True), (0.7, True)]),
        (judged(3, 1), [(0.9, True), (0.8, False)]),  # what follows a wrong guess proves nothing
        (judged(3, 0), [(0.9, False)]),
        (judged(2, 2, next_token=7, dropped=(7, 0.2)), [(0.9, True), (0.8, True), (0.2, True)]),
        (judged(2, 2, next_token=6, dropped=(7, 0.2)), [(0.9, True), (0.8, True), (0.2, False)]),
        (judged(2, 1, next_token=7, dropped=(7, 0.2)), [(0.9, True), (0.8, False)]),
        (judged(0, 0, next_token=7, dropped=(7, 0.2)), [(0.2, True)]),
        (judged(2, 1, next_token=None), [(0.9, True)]),  # the text ended with an accepted token
        (judged(2, 2, next_token=None, dropped=(7, 0.2)), [(0.9, True), (0.8, True)]),
        (judged(0, 0), []),
    ],
)
def test_outcomes_are_of_guesses_that_the_target_judged(step, outcomes):
    assert step.outcomes == outcomes
    assert step.n_guesses == step.n_drafted + (step.draft.dropped is not None)
