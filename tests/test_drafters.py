"""What every file in drafters/ promises, and what layer-skip promises besides."""

import pytest
from fakes import EOG, Broken, FakeContext, FakeModel, FakeSampler, plain_tokens

from pyselfspec import drafters
from pyselfspec.controllers import Fixed
from pyselfspec.errors import ArgumentError, ContextFullError, MaskError
from pyselfspec.loop import generate_steps
from pyselfspec.types import Draft, DraftLimit, LayerMask, Verdict

HISTORY = [5, 3, 5, 3, 5, 3, 5]  # repeats itself, for drafters that copy
every_drafter = pytest.mark.parametrize("name", drafters.names())


def make(name, model=None, **options):
    """A drafter that begins HISTORY, and its context, with all but the last token decoded."""
    context = FakeContext(model or FakeModel(), **options)
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
def test_a_draft_keeps_to_the_limit(name, n_max):
    drafter, _ = make(name)
    draft = drafter.draft(HISTORY, DraftLimit(n_max))
    assert len(draft.tokens) <= n_max
    assert all(0.0 <= p <= 1.0 for p in draft.probs)
    assert draft.draft_us >= 0


@every_drafter
@pytest.mark.parametrize("seed", range(8))
def test_a_draft_stops_after_a_token_below_p_min(name, seed):
    drafter, _ = make(name, FakeModel(seed=seed))
    draft = drafter.draft(HISTORY, DraftLimit(8, p_min=0.5))
    assert all(p >= 0.5 for p in draft.probs[:-1])


@every_drafter
def test_a_draft_stops_after_an_ending_token(name):
    drafter, _ = make(name, FakeModel(quality=1.0, end_at=len(HISTORY) + 2))
    draft = drafter.draft(HISTORY, DraftLimit(8))
    assert EOG not in draft.tokens[:-1]


@every_drafter
@pytest.mark.parametrize("n_accepted", [0, 1, 4])
def test_a_draft_leaves_sequence_0_alone_and_no_cells_behind(name, n_accepted):
    drafter, context = make(name)
    before = list(context.sequence(0).cells)
    draft = drafter.draft(HISTORY, DraftLimit(4))
    assert context.sequence(0).cells == before
    assert context.n_cells == len(before)
    drafter.accept(Verdict(min(n_accepted, len(draft.tokens)), 1, False))
    assert context.sequence(0).cells == before
    assert context.n_cells == len(before)


@every_drafter
@pytest.mark.parametrize("n", range(1, 5))
def test_a_draft_that_fails_leaves_no_cells_behind(name, n):
    drafter, context = make(name)
    before = list(context.sequence(0).cells)
    context.fail_at_decode = context.n_decodes + n
    try:
        drafter.draft(HISTORY, DraftLimit(4))
    except Broken:
        pass
    assert context.sequence(0).cells == before
    assert context.n_cells == len(before)


@every_drafter
def test_a_draft_is_the_same_when_asked_again(name):
    drafter, _ = make(name)
    first, second = (drafter.draft(HISTORY, DraftLimit(4)) for _ in range(2))
    assert (first.tokens, first.probs) == (second.tokens, second.probs)


@every_drafter
def test_begin_forgets_the_last_text(name):
    fresh, _ = make(name)
    used, context = make(name)
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
def test_drafted_text_is_plain_text(name, quality, n_max, end_after):
    end_at = None if end_after is None else len(HISTORY) + end_after
    model = FakeModel(quality, end_at)
    drafter, context = make(name, model)
    text = tokens_of(generate(drafter, context, n_max))
    assert text == plain_tokens(model, HISTORY, 20)
    assert context.sequence(0).tokens == [*HISTORY, *text][:-1]
    assert context.n_cells == context.sequence(0).n_past


@every_drafter
@pytest.mark.parametrize("n_ctx", range(len(HISTORY), len(HISTORY) + 9))
def test_drafts_fit_into_what_is_left_of_the_context(name, n_ctx):
    model = FakeModel(quality=1.0)
    drafter, context = make(name, model, n_ctx=n_ctx)
    text = tokens_of(generate(drafter, context, n_max=4))
    assert text == plain_tokens(model, HISTORY, 20, n_ctx=n_ctx)


# layer-skip


def test_layer_skip_drafts_what_a_masked_pass_finds_likeliest():
    model = FakeModel(quality=0.5)
    drafter, context = make("layer-skip", model)
    draft = drafter.draft(HISTORY, DraftLimit(5))
    text = list(HISTORY)
    for token, p in zip(draft.tokens, draft.probs, strict=True):
        law = model.draft(text)
        assert (token, p) == (law.argmax(), law.max())
        text.append(token)
    assert len(draft.tokens) == 5
    masks = {mask for seq_id, _, mask in context.passes if seq_id != 0}
    assert masks == {LayerMask.alternate(model.n_layer)}


def test_layer_skip_spends_one_narrow_pass_per_token():
    drafter, context = make("layer-skip")
    context.passes.clear()
    draft = drafter.draft(HISTORY, DraftLimit(4))
    assert [n_tokens for _, n_tokens, _ in context.passes] == [1] * len(draft.tokens)


@pytest.mark.parametrize("n_max", [1, 4])
def test_layer_skip_that_is_always_right_fills_every_step(n_max):
    drafter, context = make("layer-skip", FakeModel(quality=1.0))
    steps = generate(drafter, context, n_max, n_predict=3 * (n_max + 1))
    assert [step.n_accepted for step in steps] == [n_max] * 3


def test_layer_skip_that_is_always_wrong_is_never_accepted():
    drafter, context = make("layer-skip", FakeModel(quality=0.0))
    assert {step.n_accepted for step in generate(drafter, context, 4)} == {0}


def test_layer_skip_stops_at_p_min_and_keeps_that_token():
    drafter, _ = make("layer-skip", FakeModel(seed=3))
    probs = drafter.draft(HISTORY, DraftLimit(8)).probs
    stop = probs.index(min(probs))
    assert 1 <= stop < 7, "pick another seed: this one has its doubts at an end"
    p_min = (min(probs[:stop]) + probs[stop]) / 2
    assert drafter.draft(HISTORY, DraftLimit(8, p_min)).probs == probs[: stop + 1]


@pytest.mark.parametrize("end_after", [0, 2])
def test_layer_skip_drafts_the_end_and_nothing_after_it(end_after):
    drafter, _ = make("layer-skip", FakeModel(quality=1.0, end_at=len(HISTORY) + end_after))
    tokens = drafter.draft(HISTORY, DraftLimit(8)).tokens
    assert tokens.index(EOG) == len(tokens) - 1 == end_after


def test_layer_skip_refuses_a_mask_of_another_model():
    with pytest.raises(MaskError, match="for 3 blocks"):
        drafters.load("layer-skip")(FakeContext(FakeModel()), LayerMask.full(3))


def test_layer_skip_needs_a_sequence_of_its_own():
    with pytest.raises(ArgumentError, match="n_seq_max of at least 2"):
        make("layer-skip", n_seq_max=1)


def test_layer_skip_reports_a_context_without_room_and_cleans_up():
    drafter, context = make("layer-skip", n_ctx=len(HISTORY) + 1)
    with pytest.raises(ContextFullError):
        drafter.draft(HISTORY, DraftLimit(4))
    assert context.n_cells == len(HISTORY) - 1


def test_off_never_drafts():
    drafter, context = make("off")
    assert drafter.draft(HISTORY, DraftLimit(8)) == Draft()
    assert context.n_decodes == 1
