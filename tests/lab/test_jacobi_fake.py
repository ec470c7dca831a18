"""Logits of the full model after every draft token reach drafters, and the Jacobi drafter. What all
drafters promise is tested in test_drafters.py."""

import pytest
from drafts import sources_of
from listeners import Listener

from pyselfspec.lab.drafters import jacobi
from pyselfspec.masks.layer_mask import LayerMask
from pyselfspec.speculate.drafters import Drafter, LookupDrafter, layer_skip
from pyselfspec.speculate.drafters._combined import combine
from pyselfspec.speculate.limits import DraftLimit
from pyselfspec.speculate.types import Draft, Verdict
from pyselfspec.testing.conformance import generated, tokens_of
from pyselfspec.testing.fake_context import FakeContext
from pyselfspec.testing.fake_drafter import FakeDrafter
from pyselfspec.testing.fake_model import FakeModel

PROMPT = [5, 3, 1, 4, 2]


@pytest.mark.parametrize("pass_width", [1, 2, 3, 16])
@pytest.mark.parametrize("quality", [0.0, 0.6, 1.0])
def test_what_is_heard_is_what_the_model_says_behind_each_token(quality, pass_width):
    model = FakeModel(quality)
    context, listener = FakeContext(model, pass_width=pass_width), Listener(model)
    steps = generated(listener, context, n_max=4, prompt=PROMPT)
    assert len(listener.heard) == len(steps)
    for step, (before, draft, verdict, said) in zip(steps, listener.heard, strict=True):
        assert (draft.tokens, verdict) == (step.draft.tokens, step.verdict)
        text = [*before, *draft.token_ids]
        for row, token in said.items():
            assert token == model.target(text[: len(before) + row]).argmax()
        if pass_width > len(draft.tokens):
            assert list(said) == list(range(len(draft.tokens) + 1))
        assert step.n_accepted in said  # where the model disagreed, or went on


def test_nothing_is_computed_where_nobody_listens(monkeypatch):
    def fail(self, row):
        raise AssertionError("nobody asked")

    monkeypatch.setattr(FakeContext, "best", fail)
    model = FakeModel(0.5)
    assert FakeDrafter.on_verified is Drafter.on_verified
    assert len(tokens_of(generated(FakeDrafter(model), FakeContext(model), n_max=4))) == 20


@pytest.mark.parametrize("seed", range(6))
def test_drafts_are_the_iteration_of_the_papers(seed):
    """Oracle: y[i] = the model's token after the text and y[:i], all i at once."""
    n, model = 5, FakeModel(seed=seed, n_vocab=6)
    context = FakeContext(model)
    drafter = jacobi.make(context, jacobi.Options())
    text, guess = list(PROMPT), []
    for step in generated(drafter, context, n_max=n, n_predict=40, prompt=PROMPT):
        wanted = (guess + [(guess or text)[-1]] * n)[: len(step.draft.tokens)]
        assert list(step.draft.token_ids) == wanted
        said = [int(model.target([*text, *wanted[:i]]).argmax()) for i in range(len(wanted) + 1)]
        n_right = next((i for i, token in enumerate(wanted) if token != said[i]), len(wanted))
        text += said[: n_right + 1]
        guess = said[n_right + 1 :]
        assert step.n_accepted == n_right
    assert len(text) == len(PROMPT) + 40


def test_chances_follow_what_happened():
    """Repeated tokens are never right here, those that were said just as drafted always."""
    drafter = jacobi.make(FakeContext(FakeModel()), jacobi.Options())
    text = [1]
    drafter.begin(None, text)

    def go_on():
        text.append(1 + text[-1] % 9)

    before = drafter.look_up(text, 2).probs
    for _ in range(60):
        go_on()
        repeated = drafter.look_up(text, 2).probs
    assert max(repeated) < 0.05 < min(before)
    for _ in range(60):
        draft = Draft.chain((10, 1 + (text[-1] + 1) % 9))
        said = dict.fromkeys(range(3), draft.token_ids[1])
        drafter.on_verified(draft, Verdict((), 1 + text[-1] % 9, False), said.__getitem__)
        go_on()
        same = drafter.look_up(text, 1)
        assert same.token_ids == draft.token_ids[1:]
        go_on()
        drafter.look_up(text, 1)
    assert same.probs[0] > 0.8


def test_it_refines_the_draft_of_another_drafter():
    """The model's likeliest tokens after a rejected copy are the next draft."""
    model = FakeModel(n_vocab=11)
    context = FakeContext(model)
    wrong = (1 + int(model.target(PROMPT).argmax()) % 10, 8, 9)

    class Copies(LookupDrafter):
        name = "copies"

        def look_up(self, history, n_max, chance_min=0.0):
            one = len(history) == len(PROMPT)
            return Draft.copied(wrong[: n_max * one], [1.0] * n_max * one)

    drafter = combine([Copies(context), jacobi.make(context, jacobi.Options())])
    steps = generated(drafter, context, n_max=3, n_predict=12, prompt=PROMPT)
    first, second = steps[0], steps[1]
    assert first.draft.token_ids == wrong and first.n_accepted == 0
    said = [int(model.target([*PROMPT, *wrong[: i + 1]]).argmax()) for i in range(3)]
    assert list(second.draft.token_ids) == said
    assert sources_of(second.draft) == ("jacobi",) * 3


def test_an_empty_limit_moves_the_guesses_on():
    drafter = jacobi.make(FakeContext(FakeModel()), jacobi.Options())
    drafter.begin(None, [1, 2])
    draft = drafter.draft([1, 2], DraftLimit(3))
    drafter.on_verified(draft, Verdict((), 9, False), {1: 6, 2: 7, 3: 8}.__getitem__)
    assert drafter.draft([1, 2, 9], DraftLimit(0)) == Draft()
    assert drafter.draft([1, 2, 9, 6], DraftLimit(3)).token_ids == (7, 8, 8)


def test_a_drafter_with_passes_has_its_place_behind_guesses_that_are_hardly_right():
    """Whatever p_min says: the last token once more fills any draft."""
    context = FakeContext(FakeModel(n_vocab=11))
    masked = layer_skip.LayerSkipDrafter(context, LayerMask.early_exit(context.model.n_layer, 2))
    drafter = combine([jacobi.make(context, jacobi.Options()), masked])
    steps = generated(drafter, context, n_max=3, n_predict=12, prompt=PROMPT)
    assert sources_of(steps[0].draft) == ("layer-skip",) * 3
    assert sum(sources_of(step.draft).count("layer-skip") for step in steps) > len(steps)
