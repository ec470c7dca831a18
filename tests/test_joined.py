"""Drafters that are joined: the suite of every drafter, and who is heard when."""

import pytest

from pyselfspec.errors import ArgumentError
from pyselfspec.masks.layer_mask import LayerMask
from pyselfspec.speculate.controllers._choice import Choice
from pyselfspec.speculate.controllers._decision import Rule
from pyselfspec.speculate.drafters import GoesOn, Guesses, Lookup, layer_skip, ngram
from pyselfspec.speculate.joined import Joined, joined
from pyselfspec.speculate.prepared import AUTO, prepared
from pyselfspec.speculate.types import Draft, DraftLimit
from pyselfspec.testing.conformance import (
    HISTORY,
    DrafterConformance,
    assert_left_as_promised,
    drafted,
    generated,
    tokens_of,
)
from pyselfspec.testing.fakes import FakeContext, FakeDrafter, FakeModel, plain_tokens

in_both_ways = pytest.mark.parametrize("enters", [True, False], ids=["shared", "forked"])


def masked(context):
    return layer_skip.Drafter(context, LayerMask.early_exit(context.model.n_layer, 2))


def copies(context):
    return ngram.make(context, ngram.Options(session=False))


class Knows:
    """Looks up the text that it was told, with the chances that it was told."""

    mask = None

    def __init__(self, tokens, chances, name="knows"):
        self.said = Guesses(tuple(tokens), tuple(chances))
        self.identity = {"drafter": name}
        self.n_asked = 0

    def costs(self):
        raise NotImplementedError

    def begin(self, seq, history): ...

    def guesses(self, history, n_max):
        self.n_asked += 1
        return Guesses(self.said.tokens[:n_max], self.said.chances[:n_max])

    def draft(self, history, limit):
        return limit.cut(*self.guesses(history, limit.n_looked_up))

    def accept(self, verdict): ...

    def close(self): ...


class TestCopiesAndMaskedPasses(DrafterConformance):
    def make(self, context):
        return joined([copies(context), masked(context)])


class TestCopiesBeforeDrafts(DrafterConformance):
    """A limit that always takes two copies and drafts behind them."""

    @pytest.fixture(autouse=True)
    def both(self, monkeypatch):
        def choose(self, probs):
            n = min(2, len(probs), self.n_max)
            return n, self.capped(self.n_max - n)

        monkeypatch.setattr(DraftLimit, "choose", choose)

    def make(self, context):
        return joined([copies(context), masked(context)])

    @in_both_ways
    def test_tokens_of_both_are_verified(self, enters):
        drafter, context = self.begun(FakeModel(quality=1.0), enters=enters)
        draft = drafted(drafter, context, DraftLimit(5))
        assert draft.tokens[:2] == (3, 5) and draft.n_copied == 2
        assert draft.sources == ("ngram",) * 2 + ("layer-skip",) * 3
        model, text = context.model, [*HISTORY, 3, 5]
        for token in draft.tokens[2:]:
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
        assert draft.tokens == (3, 5) and draft.n_copied == 2


def test_the_protocols_tell_the_kinds_apart():
    context = FakeContext(FakeModel())
    assert isinstance(ngram.make(context, ngram.Options()), Lookup)
    assert isinstance(masked(context), GoesOn) and not isinstance(masked(context), Lookup)
    assert not isinstance(FakeDrafter(FakeModel()), Lookup | GoesOn)


def test_one_alone_stays_what_it_is():
    drafter = masked(FakeContext(FakeModel()))
    assert joined([drafter]) is drafter


def test_two_that_need_passes_cannot_be_joined():
    context = FakeContext(FakeModel())
    with pytest.raises(ArgumentError, match="one may need passes, not 2: layer-skip, fake"):
        joined([masked(context), FakeDrafter(FakeModel())])


def test_of_two_look_ups_the_one_that_expects_more_is_heard():
    context = FakeContext(FakeModel())
    long = Knows([1, 2, 3], [0.4, 0.4, 0.4], "long")
    sure = Knows([4], [0.9], "sure")
    draft = drafted(joined([long, sure]), context, DraftLimit(4))
    assert draft.tokens == (4,) and draft.sources == ("sure",)
    assert long.n_asked == sure.n_asked == 1  # both learn


def test_without_copies_the_other_drafts():
    context = FakeContext(FakeModel(quality=1.0))
    context.prefill(HISTORY[:-1])
    both = Joined([Knows([], [])], masked(context))
    both.begin(context.sequence(), HISTORY)
    draft = drafted(both, context, DraftLimit(3))
    assert draft.n_copied == 0 and draft.sources == ("layer-skip",) * len(draft.tokens) != ()


@pytest.mark.parametrize("n_known", [0, 2])
def test_a_drafter_that_cannot_go_on_drafts_only_where_nothing_is_copied(n_known):
    context = FakeContext(FakeModel(quality=1.0))
    plain = FakeDrafter(FakeModel())
    costs = plain.costs().at(0)
    rule = Rule(3, 0.0, 3.9, costs.step_us(3, 3))
    limit = Choice(3, n_copies=3, costs=costs, behind=lambda n: rule)
    n, rest = limit.choose([0.9] * n_known)
    assert n == n_known and rest.n_max > 0
    draft = drafted(Joined([Knows([1] * n_known, [0.9] * n_known)], plain), context, limit)
    assert set(draft.sources) == ({"knows"} if n_known else {"fake"})


@in_both_ways
@pytest.mark.parametrize("quality", [0.0, 0.8, 1.0])
def test_the_text_is_that_of_plain_decoding(quality, enters):
    model = FakeModel(quality)
    context = FakeContext(model, enters=enters)
    both = joined([Knows([5, 3, 5], [0.9, 0.6, 0.6]), masked(context)])
    text = tokens_of(generated(both, context, n_max=4, n_predict=40))
    assert text == plain_tokens(model, HISTORY, 40)


# by name


def test_names_are_joined_by_a_plus():
    context = FakeContext(FakeModel())
    found = prepared(context, "ngram+layer-skip", profile=False)
    assert found.name == "ngram+layer-skip" and found.mask is not None
    assert isinstance(found.make(), Joined)
    assert found.costs.at(0).token_us > 0


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ngram+ngram", "twice"),
        ("ngram+nope", "'nope'"),
        ("ngram+", "''"),
    ],
)
def test_names_that_cannot_be_joined(name, message):
    with pytest.raises(ArgumentError, match=message):
        prepared(FakeContext(FakeModel()), name, profile=False)


def test_options_go_to_the_drafter_they_are_of():
    context = FakeContext(FakeModel())
    mask = LayerMask.early_exit(context.model.n_layer, 3)
    options = (ngram.Options(chance_min=0.5), layer_skip.Options(mask))
    found = prepared(context, "ngram+layer-skip", options=options, profile=False)
    assert found.mask == mask
    with pytest.raises(ArgumentError, match="no options of the drafter ngram"):
        prepared(context, "ngram", options=layer_skip.Options(), profile=False)


def test_an_ordinary_model_copies_by_itself():
    context = FakeContext(FakeModel())
    found = prepared(context, AUTO, profile=False)
    assert found.name == "ngram" and found.mask is None and found.costs.at(0).only_copies


def test_with_a_mask_it_does_both():
    context = FakeContext(FakeModel())
    mask = LayerMask.early_exit(context.model.n_layer, 3)
    found = prepared(context, AUTO, mask=mask, profile=False)
    assert found.name == "ngram+layer-skip" and found.mask == mask
    trying = prepared(context, AUTO, profile=False, with_mask=True)
    assert trying.name == "ngram+layer-skip" and trying.mask is not None


def test_a_memory_that_takes_nothing_back_decodes_plainly():
    assert prepared(FakeContext(FakeModel(), can_rollback=False), AUTO, profile=False) is None


def test_sources_of_a_draft_are_as_many_as_its_tokens():
    with pytest.raises(ArgumentError, match="one source per token"):
        Draft((1, 2), sources=("ngram",))
    with pytest.raises(ArgumentError, match="cannot have been copied"):
        Draft((1,), n_copied=2)
