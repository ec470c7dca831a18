"""Masks validate themselves and survive JSON; counts and ratios are what they say."""

import json

import numpy as np
import pytest
from drafts import draft_of, outcomes_of

from pyselfspec.errors import ArgumentError, MaskError
from pyselfspec.masks.layer_mask import LayerMask
from pyselfspec.runtime.passes import Pass
from pyselfspec.speculate.limits import DraftDecision, DraftLimit
from pyselfspec.speculate.stats import GenerationStats, SourceStats
from pyselfspec.speculate.types import Draft, DraftOrigin, DraftToken, Step, Verdict


def step(drafted=(), n_accepted=0, own=9, draft_us=0, verify_us=0):
    draft = draft_of(tuple(drafted), (0.5,) * len(drafted), draft_us=draft_us)
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


@pytest.mark.parametrize(
    ("probs", "after"),
    [
        ((0.9,), DraftDecision.GO_ON),
        ((0.3,), DraftDecision.GO_ON),  # not below
        ((0.29,), DraftDecision.DROP),
        ((0.9, 0.9, 0.1), DraftDecision.DROP),
        ((0.9, 0.9, 0.9), DraftDecision.STOP),
        ((0.1, 0.9), DraftDecision.GO_ON),  # only the last one is asked about
    ],
)
def test_what_comes_after_a_draft_token(probs, after):
    assert DraftLimit(3, p_min=0.3).after(probs) is after


@pytest.mark.parametrize("seed", range(30))
def test_cutting_keeps_what_drafting_one_by_one_would_have_kept(seed):
    rng = np.random.default_rng(seed)
    limit = DraftLimit(int(rng.integers(6)), p_min=float(rng.choice([0.0, 0.2, 0.5])))
    tokens = rng.integers(9, size=rng.integers(8)).tolist()
    probs = (rng.random(len(tokens)) ** 0.3).tolist()
    kept, dropped = 0, None
    while limit.n_max and kept < len(tokens):
        after = limit.after(probs[: kept + 1])
        if after is DraftDecision.DROP:
            dropped = (tokens[kept], probs[kept])
            break
        kept += 1
        if after is DraftDecision.STOP:
            break
    draft = limit.truncate(Draft.copied(tokens, probs))
    assert (list(draft.token_ids), draft.dropped and draft.dropped[:2]) == (tokens[:kept], dropped)
    assert list(draft.probs) == probs[:kept] and draft.n_copied == kept
    without_probs = limit.truncate(Draft.copied(tokens))
    assert without_probs.token_ids == tuple(tokens[: limit.n_max])


def test_a_draft_has_a_probability_per_token_or_none_at_all():
    for probs in ((0.5,), (), (0.5, 0.5, 0.5)):
        with pytest.raises(ArgumentError, match="one probability for each token"):
            Draft.chain((1, 2), probs)
    for mixed in ((0.5, None), (None, 0.5)):
        with pytest.raises(ArgumentError, match="for each token or for none, got 1 for 2 tokens"):
            draft_of((1, 2), mixed)
    assert Draft.chain((1, 2)).probs == ()
    assert Draft().tokens == ()


def test_a_draft_with_branches_has_no_drawn_tokens():
    drawn = DraftToken(1, 0.5, distribution=np.array([0.5, 0.5]))
    assert Draft((drawn, DraftToken(2, 0.5, 0))).is_chain
    with pytest.raises(ArgumentError, match="no tokens drawn"):
        Draft((drawn, DraftToken(2, 0.5)))


def test_constructors_make_chains():
    for draft, kind in (
        (Draft.chain([7, 8], [0.5, 0.4], source="a"), DraftOrigin.PASSED),
        (Draft.copied([7, 8], [0.5, 0.4], source="a"), DraftOrigin.COPIED),
    ):
        assert draft.is_chain and draft.n_expected == 0.5 + 0.5 * 0.4
        assert draft.tokens == (
            DraftToken(7, 0.5, -1, "a", origin=kind),
            DraftToken(8, 0.4, 0, "a", origin=kind),
        )


def test_the_source_of_the_drafter_is_filled_in_where_there_is_none():
    draft = draft_of((1, 2), sources=("ngram", ""))
    assert [each.source for each in draft.with_source("head").tokens] == ["ngram", "head"]


@pytest.mark.parametrize("parents", [(0, -1), (-1, 1), (-1, 2), (-2, 0), (-1, -2)])
def test_a_parent_comes_before_its_children(parents):
    with pytest.raises(ArgumentError, match="cannot follow"):
        draft_of((1, 2), parents=parents)


def test_what_was_proposed_includes_what_was_dropped():
    assert Draft().n_proposed == 0
    assert draft_of((5, 6)).n_proposed == 2
    assert draft_of((5, 6), dropped=(7, 0.1)).n_proposed == 3
    assert draft_of(dropped=(7, 0.1)).n_proposed == 1


def test_drafts_are_compared_without_distributions():
    first, second = (
        DraftToken(1, 0.5, source="a", distribution=np.array([q, 1 - q])) for q in (0.5, 0.4)
    )
    assert first == second and not first != second and hash(first) == hash(second)
    assert Draft((first,)) == Draft((second,)) and len({Draft((first,)), Draft((second,))}) == 1
    for field, value in {"token": 2, "p": 0.4, "source": "b", "origin": DraftOrigin.COPIED}.items():
        other = second._replace(**{field: value})
        assert first != other and not first == other
        assert Draft((first,)) != Draft((other,)), field
    assert first._replace(parent=0) != second
    assert first != tuple(first)


def test_drafts_are_the_same_however_they_are_verified():
    assert draft_of((5,), verification=Pass(in_place=True)) == draft_of((5,))
    assert draft_of((5,), draft_us=1) == draft_of((5,))


# tree: text -> 5 -> 6 -> 8
#               |    `-> 7
#               `--> 5
#       text -> 6 -> 6
TREE = draft_of((5, 6, 6, 7, 8, 6, 5), parents=(-1, 0, -1, 0, 1, 2, 0))


@pytest.mark.parametrize("seed", range(20))
def test_every_node_of_a_tree_is_found_and_no_other(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 12))
    parents = tuple(int(rng.integers(-1, i)) for i in range(n))
    draft = draft_of(rng.integers(3, size=n).tolist(), parents=parents)
    for node in range(-1, n):
        for token in range(3):
            same = [i for i in range(n) if parents[i] == node and draft.tokens[i].token == token]
            assert draft.child(node, token) == (same[0] if same else None)
    assert draft.is_chain == (parents == tuple(range(-1, n - 1)))


@pytest.mark.parametrize(
    ("drafted", "path", "own", "tokens"),
    [
        (Draft(), (), 9, (9,)),
        (draft_of((5, 6)), (), 9, (9,)),
        (draft_of((5, 6)), (0,), 9, (5, 9)),
        (draft_of((5, 6)), (0, 1), 0, (5, 6, 0)),
        (draft_of((5, 6)), (0,), None, (5,)),
        (TREE, (), 9, (9,)),
        (TREE, (2, 5), 9, (6, 6, 9)),
        (TREE, (0, 1, 4), None, (5, 6, 8)),
    ],
)
def test_a_step_adds_the_accepted_tokens_and_the_models_own(drafted, path, own, tokens):
    one = Step(drafted, Verdict(path, own, own is None), 0)
    assert one.tokens == tokens
    assert (one.n_drafted, one.n_accepted) == (len(drafted.tokens), len(path))


def test_a_verdict_on_a_chain_is_a_path_without_gaps():
    assert Verdict.of_chain(3, 9, False) == Verdict((0, 1, 2), 9, False)
    assert Verdict.of_chain(0, 9, True) == Verdict((), 9, True)
    assert Verdict.of_chain(2, None, True).n_accepted == 2


# statistics


def test_statistics_match_a_hand_count():
    stats = GenerationStats(n_prompt=5, n_prompt_reused=2)
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
        "n_prompt_reused": 2,
        "n_generated": 3 + 1 + 1 + 1,
        "n_steps": 4,
        "n_plain": 1,
        "n_drafted": 8,
        "n_copied": 0,
        "n_accepted": 3,
        "n_drafted_at": [3, 2, 2, 1],
        "n_accepted_at": [2, 1],
        "sources": {},
        "prefill_us": 1_000,
        "draft_us": 80,
        "verify_us": 320,
        "plain_us": 50,
        "total_us": 501_000,
        "acceptance_rate": 3 / 8,
        "tokens_per_step": 6 / 4,
        "tokens_per_second": 12.0,
    }
    json.dumps(stats.to_dict())


def test_statistics_tell_sources_apart():
    stats = GenerationStats()
    for tokens, sources, n_accepted in (
        ((1, 2, 3), ("ngram", "ngram", "layer-skip"), 2),
        ((1, 2), ("ngram", "layer-skip"), 2),
        ((1,), ("layer-skip",), 0),
    ):
        draft = draft_of(tokens, sources=sources)
        stats.observe(Step(draft, Verdict.of_chain(n_accepted, 9, False), 10))
    assert stats.sources == {
        "ngram": SourceStats([2, 1], [2, 1]),
        "layer-skip": SourceStats([1, 1, 1], [0, 1]),
    }
    assert stats.sources["ngram"].n_drafted == stats.sources["ngram"].n_accepted == 3
    assert stats.n_drafted_at == [3, 2, 1] and stats.n_accepted_at == [2, 2]
    assert stats.to_dict()["sources"]["ngram"]["n_drafted_at"] == [2, 1]


def test_ratios_of_nothing_are_none():
    empty = GenerationStats().to_dict()
    assert {name for name, value in empty.items() if value is None} == {
        "acceptance_rate", "tokens_per_step", "tokens_per_second",
    }  # fmt: skip


# outcomes of draft tokens


def evaluated(n_drafted, n_accepted, next_token=7, dropped=None):
    probs = (0.9, 0.8, 0.7, 0.6)[:n_drafted]
    draft = draft_of((1, 2, 3, 4)[:n_drafted], probs, dropped=dropped)
    return Step(draft, Verdict.of_chain(n_accepted, next_token, False), 1)


@pytest.mark.parametrize(
    ("step", "outcomes"),
    [
        (evaluated(3, 3), [(0.9, True), (0.8, True), (0.7, True)]),
        (evaluated(3, 1), [(0.9, True), (0.8, False)]),  # what follows a wrong token proves nothing
        (evaluated(3, 0), [(0.9, False)]),
        (evaluated(2, 2, next_token=7, dropped=(7, 0.2)), [(0.9, True), (0.8, True), (0.2, True)]),
        (evaluated(2, 2, next_token=6, dropped=(7, 0.2)), [(0.9, True), (0.8, True), (0.2, False)]),
        (evaluated(2, 1, next_token=7, dropped=(7, 0.2)), [(0.9, True), (0.8, False)]),
        (evaluated(0, 0, next_token=7, dropped=(7, 0.2)), [(0.2, True)]),
        (evaluated(2, 1, next_token=None), [(0.9, True)]),  # the text ended with an accepted token
        (evaluated(2, 2, next_token=None, dropped=(7, 0.2)), [(0.9, True), (0.8, True)]),
        (evaluated(0, 0), []),
    ],
)
def test_outcomes_are_of_draft_tokens_that_the_target_evaluated(step, outcomes):
    assert outcomes_of(step) == outcomes
    assert step.draft.n_proposed == step.n_drafted + (step.draft.dropped is not None)


def test_outcomes_of_draft_tokens_without_probabilities():
    def outcomes(n_accepted, own):
        verdict = Verdict.of_chain(n_accepted, own, False)
        return outcomes_of(Step(Draft.chain((1, 2, 3)), verdict, 1))

    assert outcomes(3, 7) == [(None, True)] * 3
    assert outcomes(1, 7) == [(None, True), (None, False)]
    assert outcomes(2, None) == [(None, True)] * 2
    assert Step(Draft(), Verdict.of_chain(0, 7, False), 1).outcomes == []
