"""What every file in drafters/ promises, and what layer-skip promises besides."""

import numpy as np
import pytest
from fakes import EOG, Broken, FakeContext, FakeModel, FakeSampler, plain_tokens, state

from pyselfspec.errors import ArgumentError, ContextFullError, MaskError, UnsupportedError
from pyselfspec.masks.layer_mask import LayerMask
from pyselfspec.speculate import drafters
from pyselfspec.speculate.controllers.fixed import Fixed
from pyselfspec.speculate.drafters import layer_skip
from pyselfspec.speculate.loop import generate_steps
from pyselfspec.speculate.types import Draft, DraftLimit, Verdict

HISTORY = [5, 3, 5, 3, 5, 3, 5]  # repeats itself, for drafters that copy
in_both_ways = pytest.mark.parametrize("enters", [True, False], ids=["shared", "forked"])


def every_drafter(test):
    """In contexts where checks can enter behind shared blocks, and where they cannot."""
    return pytest.mark.parametrize("name", drafters.names())(in_both_ways(test))


def make(name, model=None, enters=True, **options):
    """A drafter that begins HISTORY, and its context, with all but the last token decoded."""
    context = FakeContext(model or FakeModel(), enters=enters, **options)
    drafter = drafters.load(name)(context, LayerMask.alternate(context.model.n_layer))
    context.prefill(HISTORY[:-1])
    drafter.begin(HISTORY)
    return drafter, context


def generate(drafter, context, n_max, n_predict=20):
    return list(
        generate_steps(
            context,
            HISTORY,
            drafter=drafter,
            controller=Fixed(n_max, p_min=0),
            sampler=FakeSampler(),
            n_predict=n_predict,
            ends=context.model.is_eog,
        )
    )


def assert_left_as_promised(context, draft):
    """Sequence 0 as it was, or with the tokens to check; no other cells."""
    checked = [] if draft.shared is None else [HISTORY[-1], *draft.tokens]
    seq = context.sequence(0)
    assert seq.tokens == [*HISTORY[:-1], *checked]
    assert context.n_cells == seq.n_past
    assert all(cell.is_full for cell in seq.cells[: len(HISTORY) - 1])
    if draft.shared is not None:
        assert len(draft.shared.hidden) == len(checked)


def tokens_of(steps):
    return [token for step in steps for token in step.tokens]


# names


def test_drafters_are_found_by_file():
    assert {"layer-skip", "off"} <= set(drafters.names())
    assert list(drafters.names()) == sorted(drafters.names())


@pytest.mark.parametrize("name", ["nope", "", "layer_skip", "off.py", "../off", "os"])
def test_an_unknown_name_is_answered_with_the_known_ones(name):
    with pytest.raises(ArgumentError) as error:
        drafters.load(name)
    assert repr(name) in str(error.value)
    assert all(known in str(error.value) for known in drafters.names())


# every drafter


@every_drafter
@pytest.mark.parametrize("n_max", [1, 2, 5])
def test_a_draft_keeps_to_the_limit(name, enters, n_max):
    drafter, _ = make(name, enters=enters)
    draft = drafter.draft(HISTORY, DraftLimit(n_max))
    assert len(draft.tokens) <= n_max
    assert all(0.0 <= p <= 1.0 for p in draft.probs)
    assert draft.draft_us >= 0


@every_drafter
@pytest.mark.parametrize("seed", range(8))
def test_a_draft_holds_no_token_below_p_min(name, enters, seed):
    drafter, _ = make(name, FakeModel(seed=seed), enters)
    draft = drafter.draft(HISTORY, DraftLimit(8, p_min=0.5))
    assert all(p >= 0.5 for p in draft.probs)


@every_drafter
def test_a_draft_holds_nothing_behind_an_ending_token(name, enters):
    drafter, _ = make(name, FakeModel(quality=1.0, end_at=len(HISTORY) + 2), enters)
    draft = drafter.draft(HISTORY, DraftLimit(8))
    assert EOG not in draft.tokens[:-1]


@every_drafter
@pytest.mark.parametrize("p_min", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("n_accepted", [0, 1, 4])
def test_a_draft_leaves_the_text_and_what_is_to_be_checked(name, enters, n_accepted, p_min):
    drafter, context = make(name, enters=enters)
    draft = drafter.draft(HISTORY, DraftLimit(4, p_min))
    assert_left_as_promised(context, draft)
    drafter.accept(Verdict(min(n_accepted, len(draft.tokens)), 1, False))
    assert_left_as_promised(context, draft)


@every_drafter
@pytest.mark.parametrize("n", range(1, 6))
def test_a_draft_that_fails_leaves_the_text_as_it_was(name, enters, n):
    drafter, context = make(name, enters=enters)
    before = list(context.sequence(0).cells)
    context.fail_at_decode = context.n_decodes + n
    try:
        drafter.draft(HISTORY, DraftLimit(4))
    except Broken:
        assert context.sequence(0).cells == before
        assert context.n_cells == len(before)
    else:
        assert context.n_decodes < context.fail_at_decode


@every_drafter
def test_a_draft_is_the_same_when_asked_again(name, enters):
    drafter, context = make(name, enters=enters)
    first = drafter.draft(HISTORY, DraftLimit(4))
    context.sequence(0).rollback(len(HISTORY) - 1)
    second = drafter.draft(HISTORY, DraftLimit(4))
    assert (first.tokens, first.probs) == (second.tokens, second.probs)


@every_drafter
def test_begin_forgets_the_last_text(name, enters):
    fresh, _ = make(name, enters=enters)
    used, context = make(name, enters=enters)
    for step in generate(used, context, n_max=4):
        assert step.tokens
    context.sequence(0).drop()
    context.prefill(HISTORY[:-1])
    used.begin(HISTORY)
    limit = DraftLimit(4)
    assert used.draft(HISTORY, limit).tokens == fresh.draft(HISTORY, limit).tokens


@every_drafter
@pytest.mark.parametrize("end_after", [None, 0, 7])
@pytest.mark.parametrize("n_max", [1, 3, 8])
@pytest.mark.parametrize("quality", [0.0, 0.7, 1.0])
def test_drafted_text_is_plain_text(name, enters, quality, n_max, end_after):
    end_at = None if end_after is None else len(HISTORY) + end_after
    model = FakeModel(quality, end_at)
    drafter, context = make(name, model, enters)
    text = tokens_of(generate(drafter, context, n_max))
    assert text == plain_tokens(model, HISTORY, 20)
    seq = context.sequence(0)
    assert seq.tokens == [*HISTORY, *text][:-1]
    assert context.n_cells == seq.n_past
    assert all(cell.is_full for cell in seq.cells)


@every_drafter
@pytest.mark.parametrize("n_ctx", range(len(HISTORY), len(HISTORY) + 9))
def test_drafts_fit_into_what_is_left_of_the_context(name, enters, n_ctx):
    model = FakeModel(quality=1.0)
    drafter, context = make(name, model, enters, n_ctx=n_ctx)
    text = tokens_of(generate(drafter, context, n_max=4))
    assert text == plain_tokens(model, HISTORY, 20, n_ctx=n_ctx)


# layer-skip


@in_both_ways
def test_layer_skip_drafts_what_a_masked_pass_finds_likeliest(enters):
    model = FakeModel(quality=0.5)
    drafter, _ = make("layer-skip", model, enters)
    draft = drafter.draft(HISTORY, DraftLimit(5))
    text = list(HISTORY)
    for token, p in zip(draft.tokens, draft.probs, strict=True):
        law = model.draft(text)
        assert (token, p) == (law.argmax(), law.max())
        text.append(token)
    assert len(draft.tokens) == 5


@pytest.mark.parametrize(
    ("mask", "first"),
    [
        (LayerMask.alternate(6), 1),
        (LayerMask.early_exit(6, 3), 3),
        (LayerMask.skipping(6, ffn=[2], attn=[5]), 2),
    ],
)
def test_layer_skip_leaves_the_states_where_the_mask_begins(mask, first):
    context = FakeContext(FakeModel())
    context.prefill(HISTORY[:-1])
    draft = layer_skip.Drafter(context, mask).draft(HISTORY, DraftLimit(3))
    assert draft.shared.mask == LayerMask.enter_at(6, first)
    want = [state([*HISTORY, *draft.tokens[:i]], first) for i in range(4)]
    np.testing.assert_array_equal(draft.shared.hidden, np.float32(want))


@pytest.mark.parametrize(
    "mask", [LayerMask.full(6), LayerMask.enter_at(6, 2), LayerMask.skipping(6, ffn=[0, 3])]
)
def test_layer_skip_forks_where_no_block_is_shared(mask):
    """A mask that begins with block 0, or that skips nothing and so leaves nothing to check."""
    context = FakeContext(FakeModel())
    context.prefill(HISTORY[:-1])
    drafter = layer_skip.Drafter(context, mask)
    assert not drafter.shares
    draft = drafter.draft(HISTORY, DraftLimit(3))
    assert draft.shared is None
    assert_left_as_promised(context, draft)


def test_layer_skip_can_be_told_to_fork():
    context = FakeContext(FakeModel())
    assert layer_skip.Drafter(context, LayerMask.alternate(6)).shares
    assert not layer_skip.Drafter(context, LayerMask.alternate(6), share=False).shares


@in_both_ways
@pytest.mark.parametrize("p_min", [0.0, 1.0])
def test_layer_skip_spends_one_narrow_pass_per_token(enters, p_min):
    """And in the text's own sequence one without outputs for the token drafted last, none for one
    that it drops."""
    drafter, context = make("layer-skip", enters=enters)
    context.passes.clear()
    draft = drafter.draft(HISTORY, DraftLimit(4, p_min))
    mask = LayerMask.alternate(6)
    n_masked = 4 if p_min == 0 else 1
    last = [(0, 1, LayerMask.early_exit(6, 1))] if enters and p_min == 0 else []
    assert context.passes == [(0 if enters else 1, 1, mask)] * n_masked + last
    assert len(draft.tokens) == (4 if p_min == 0 else 0)


@in_both_ways
@pytest.mark.parametrize("n_max", [1, 4])
def test_layer_skip_that_is_always_right_fills_every_step(n_max, enters):
    drafter, context = make("layer-skip", FakeModel(quality=1.0), enters)
    steps = generate(drafter, context, n_max, n_predict=3 * (n_max + 1))
    assert [step.n_accepted for step in steps] == [n_max] * 3


@in_both_ways
def test_layer_skip_that_is_always_wrong_is_never_accepted(enters):
    drafter, context = make("layer-skip", FakeModel(quality=0.0), enters)
    assert {step.n_accepted for step in generate(drafter, context, 4)} == {0}


@in_both_ways
def test_layer_skip_stops_at_p_min_and_drops_that_token(enters):
    model = FakeModel(seed=3)
    probs = make("layer-skip", model)[0].draft(HISTORY, DraftLimit(8)).probs
    stop = probs.index(min(probs))
    assert 1 <= stop < 7, "pick another seed: this one has its doubts at an end"
    p_min = (min(probs[:stop]) + probs[stop]) / 2
    drafter, _ = make("layer-skip", model, enters)
    draft = drafter.draft(HISTORY, DraftLimit(8, p_min))
    assert draft.probs == probs[:stop]
    law = model.draft([*HISTORY, *draft.tokens])
    assert draft.dropped == (law.argmax(), law.max())


@in_both_ways
@pytest.mark.parametrize("end_after", [0, 2])
def test_layer_skip_leaves_the_end_to_the_check(end_after, enters):
    model = FakeModel(quality=1.0, end_at=len(HISTORY) + end_after)
    drafter, _ = make("layer-skip", model, enters)
    tokens = drafter.draft(HISTORY, DraftLimit(8)).tokens
    assert len(tokens) == end_after and EOG not in tokens


def test_layer_skip_refuses_a_mask_of_another_model():
    with pytest.raises(MaskError, match="for 3 blocks"):
        drafters.load("layer-skip")(FakeContext(FakeModel()), LayerMask.full(3))


def test_layer_skip_needs_a_sequence_of_its_own_only_to_fork():
    make("layer-skip", n_seq_max=1)
    with pytest.raises(ArgumentError, match="n_seq_max of at least 2"):
        make("layer-skip", enters=False, n_seq_max=1)


@in_both_ways
def test_layer_skip_reports_a_context_without_room_and_cleans_up(enters):
    drafter, context = make("layer-skip", enters=enters, n_ctx=len(HISTORY) + 1)
    with pytest.raises(ContextFullError):
        drafter.draft(HISTORY, DraftLimit(4))
    assert context.n_cells == len(HISTORY) - 1


def test_layer_skip_refuses_a_memory_that_cannot_take_tokens_back():
    drafter, context = make("layer-skip", can_rollback=False)
    with pytest.raises(UnsupportedError, match="cannot take tokens back"):
        drafter.draft(HISTORY, DraftLimit(4))
    assert context.n_cells == len(HISTORY) - 1


def test_off_never_drafts():
    drafter, context = make("off")
    assert drafter.draft(HISTORY, DraftLimit(8)) == Draft()
    assert context.n_decodes == 1
