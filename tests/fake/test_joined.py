"""Drafters that are joined: the suite of every drafter, and who is heard when."""

import pytest
from drafts import sources_of

from pyselfspec.bench.pass_times import drafter_with_passes
from pyselfspec.errors import ArgumentError
from pyselfspec.masks.layer_mask import LayerMask
from pyselfspec.speculate.config import AUTO, DraftConfig
from pyselfspec.speculate.controllers._choice import Choice
from pyselfspec.speculate.controllers._decision import Rule
from pyselfspec.speculate.drafters import LookupDrafter, layer_skip, ngram
from pyselfspec.speculate.drafters._combined import CombinedDrafter, combine
from pyselfspec.speculate.limits import DraftLimit
from pyselfspec.speculate.resolve import resolve
from pyselfspec.speculate.types import Draft
from pyselfspec.testing.conformance import (
    HISTORY,
    DrafterConformance,
    assert_left_as_promised,
    drafted,
    generated,
    tokens_of,
)
from pyselfspec.testing.fake_context import FakeContext
from pyselfspec.testing.fake_drafter import FakeDrafter
from pyselfspec.testing.fake_model import FakeModel, plain_tokens

in_both_ways = pytest.mark.parametrize("enters", [True, False], ids=["shared", "forked"])


def masked(context):
    return layer_skip.LayerSkipDrafter(context, LayerMask.early_exit(context.model.n_layer, 2))


def copies(context):
    return ngram.make(context, ngram.Options(session=False))


class Knows(LookupDrafter):
    """Looks up the tokens that it was made with, with these chances."""

    def __init__(self, tokens, chances, name="knows"):
        self.found = Draft.copied(tokens, chances)
        self.name = name
        self.n_asked = 0

    def costs(self):
        raise NotImplementedError

    def look_up(self, history, n_max, chance_min=0.0):
        self.n_asked += 1
        return self.found.first(n_max)


class TestCopiesAndMaskedPasses(DrafterConformance):
    def make(self, context):
        return combine([copies(context), masked(context)])


class TestCopiesBeforeDrafts(DrafterConformance):
    """A limit that always takes two copies and drafts after them."""

    @pytest.fixture(autouse=True)
    def both(self, monkeypatch):
        def split(self, found):
            start = found.first(min(2, self.n_max))
            return start, self.capped(self.n_max - len(start.tokens))

        monkeypatch.setattr(DraftLimit, "split", split)

    def make(self, context):
        return combine([copies(context), masked(context)])

    @in_both_ways
    def test_tokens_of_both_are_verified(self, enters):
        drafter, context = self.begun(FakeModel(quality=1.0), enters=enters)
        draft = drafted(drafter, context, DraftLimit(5))
        assert draft.token_ids[:2] == (3, 5) and draft.n_copied == 2
        assert sources_of(draft) == ("ngram",) * 2 + ("layer-skip",) * 3
        model, text = context.model, [*HISTORY, 3, 5]
        for token in draft.token_ids[2:]:
            assert token == model.draft(text).argmax()
            text.append(token)
        assert_left_as_promised(context, draft)

    @in_both_ways
    def test_the_first_pass_runs_what_was_copied(self, enters):
        drafter, context = self.begun(FakeModel(), enters=enters)
        context.widths.clear()
        drafted(drafter, context, DraftLimit(4))
        assert context.widths[:2] == [3, 1]

    def test_copies_as_wide_as_a_pass_go_without_drafts(self):
        drafter, context = self.begun(FakeModel(), pass_width=2)
        draft = drafted(drafter, context, DraftLimit(4))
        assert draft.token_ids == (3, 5) and draft.n_copied == 2


def test_one_alone_stays_what_it_is():
    drafter = masked(FakeContext(FakeModel()))
    assert combine([drafter]) is drafter


def test_two_that_need_passes_cannot_be_joined():
    context = FakeContext(FakeModel())
    with pytest.raises(
        ArgumentError,
        match="at most one of several drafters may run passes, got 2: layer-skip, fake",
    ):
        combine([masked(context), FakeDrafter(FakeModel())])


def test_of_two_look_ups_the_one_that_expects_more_is_heard():
    context = FakeContext(FakeModel())
    long = Knows([1, 2, 3], [0.4, 0.4, 0.4], "long")
    sure = Knows([4], [0.9], "sure")
    draft = drafted(combine([long, sure]), context, DraftLimit(4))
    assert draft.token_ids == (4,) and sources_of(draft) == ("sure",)
    assert long.n_asked == sure.n_asked == 1  # both learn


def test_without_copies_the_other_drafts():
    context = FakeContext(FakeModel(quality=1.0))
    context.prefill(HISTORY[:-1])
    both = CombinedDrafter([Knows([], [])], masked(context))
    both.begin(context.sequence(), HISTORY)
    draft = drafted(both, context, DraftLimit(3))
    assert draft.n_copied == 0 and sources_of(draft) == ("layer-skip",) * len(draft.tokens) != ()


@pytest.mark.parametrize("n_known", [0, 2])
def test_a_drafter_that_cannot_go_on_drafts_only_where_nothing_is_copied(n_known):
    context = FakeContext(FakeModel(quality=1.0))
    plain = FakeDrafter(FakeModel())
    costs = plain.costs().at(0)
    rule = Rule(3, 0.0, 3.9, costs.step_us(3, 3))
    limit = Choice(3, n_copies=3, costs=costs, rule_after=lambda n: rule)
    start, rest = limit.split(Draft.copied([1] * n_known, [0.9] * n_known))
    assert len(start.tokens) == n_known and rest.n_max > 0
    draft = drafted(CombinedDrafter([Knows([1] * n_known, [0.9] * n_known)], plain), context, limit)
    assert set(sources_of(draft)) == ({"knows"} if n_known else {"fake"})


@in_both_ways
@pytest.mark.parametrize("quality", [0.0, 0.8, 1.0])
def test_the_text_is_that_of_plain_decoding(quality, enters):
    model = FakeModel(quality)
    context = FakeContext(model, enters=enters)
    both = combine([Knows([5, 3, 5], [0.9, 0.6, 0.6]), masked(context)])
    text = tokens_of(generated(both, context, n_max=4, n_predict=40))
    assert text == plain_tokens(model, HISTORY, 40)


# by name


def test_names_are_joined_by_a_plus():
    context = FakeContext(FakeModel())
    found = resolve(context, DraftConfig("ngram+layer-skip", profile=False))
    assert found.name == "ngram+layer-skip" and found.mask is not None
    assert isinstance(found.make(), CombinedDrafter)
    assert found.costs.at(0).token_us > 0


def test_options_go_to_the_drafter_they_are_of():
    context = FakeContext(FakeModel())
    mask = LayerMask.early_exit(context.model.n_layer, 3)
    options = (ngram.Options(chance_min=0.5), layer_skip.Options(mask))
    found = resolve(context, DraftConfig("ngram+layer-skip", options=options, profile=False))
    assert found.mask == mask
    with pytest.raises(ArgumentError, match="are not options of the drafter ngram"):
        resolve(context, DraftConfig("ngram", options=layer_skip.Options(), profile=False))


def test_an_ordinary_model_copies_by_itself():
    context = FakeContext(FakeModel())
    found = resolve(context, DraftConfig(AUTO, profile=False))
    assert found.name == "ngram" and found.mask is None and found.costs.at(0).only_copies


def test_with_a_mask_it_does_both():
    context = FakeContext(FakeModel())
    mask = LayerMask.early_exit(context.model.n_layer, 3)
    found = resolve(context, DraftConfig(AUTO, mask=mask, profile=False))
    assert found.name == "ngram+layer-skip" and found.mask == mask


def test_passes_are_timed_with_the_drafter_that_is_ready(monkeypatch):
    context, make, made = FakeContext(FakeModel()), layer_skip.make, []
    monkeypatch.setattr(layer_skip, "make", lambda *args: made.append(make(*args)) or made[-1])
    mask = LayerMask.early_exit(context.model.n_layer, 3)
    with drafter_with_passes(context, mask, profile=False) as drafter:
        assert drafter.name == "layer-skip" and made == [drafter]


def test_drafters_are_closed_if_a_later_one_cannot_be_made(monkeypatch):
    found = resolve(FakeContext(FakeModel()), DraftConfig("ngram+layer-skip", profile=False))
    found.make().close()
    closed = []
    monkeypatch.setattr(ngram.NgramDrafter, "close", lambda self: closed.append(self))
    monkeypatch.setattr(layer_skip, "make", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        found.make()
    assert len(closed) == 1


def test_a_memory_that_takes_nothing_back_decodes_plainly():
    context = FakeContext(FakeModel(), can_rollback=False)
    assert resolve(context, DraftConfig(AUTO, profile=False)) is None
