"""The window and its pool, against the algorithm written down plainly. What all drafters promise is
tested in test_drafters.py."""

import pytest

from pyselfspec.errors import ArgumentError
from pyselfspec.lab.drafters import lookahead
from pyselfspec.speculate.controllers._choice import Choice
from pyselfspec.speculate.limits import DraftLimit
from pyselfspec.speculate.types import Verdict
from pyselfspec.testing.conformance import DrafterConformance, drafted, generated
from pyselfspec.testing.fake_context import FakeContext
from pyselfspec.testing.fake_drafter import FakeDrafter
from pyselfspec.testing.fake_model import FakeModel

PROMPT = [5, 3, 1, 4, 2]


class TestOtherWindow(DrafterConformance):
    def make(self, context):
        return lookahead.make(context, lookahead.Options(window=1, n=4, guesses=1))


def paths(draft):
    """All branches from the text on."""
    found = []
    for each in draft.tokens:
        found.append([*(found[each.parent] if each.parent >= 0 else []), each.token])
    return found


@pytest.mark.parametrize(("window", "n", "guesses"), [(2, 3, 2), (3, 2, 2), (2, 4, 1)])
@pytest.mark.parametrize("seed", range(3))
def test_drafts_are_the_window_and_ngrams_that_it_made(seed, window, n, guesses):
    """Oracle: states of the window as rows of a table, and a list of all n-grams."""
    model = FakeModel(seed=seed, n_vocab=6)
    context = FakeContext(model, n_seq_max=6)
    options = lookahead.Options(window=window, n=n, guesses=guesses)
    drafter = lookahead.make(context, options)

    def said(text):
        return int(model.target(text).argmax())

    table, ngrams, text = [PROMPT[-window:]], [], list(PROMPT)
    n_guessed = 0
    for step in generated(drafter, context, n_max=options.n_tokens, n_predict=60, prompt=PROMPT):
        if not step.n_drafted:
            break  # the end is near
        found = paths(step.draft)
        for i in range(window):
            place = [*table[0][: i + 1], *(row[i] for row in table[1:])]
            assert place in found
        wanted = []
        for ngram in reversed(ngrams):
            if ngram[0] == text[-1] and ngram[1:] not in wanted:
                wanted.append(ngram[1:])
        assert all(guess in found for guess in wanted[:guesses])
        n_guessed += bool(wanted)
        n_window = window * len(table)
        assert step.n_drafted <= n_window + guesses * (n - 1)
        assert step.n_drafted >= n_window
        row = [
            said([*text, *table[0][: i + 1], *(row[i] for row in table[1:])]) for i in range(window)
        ]
        table.append(row)
        if len(table) == n:
            ngrams += [list(place) for place in zip(*table, strict=True)]
            del table[0]
        text += step.tokens
    assert n_guessed > 5
    assert text == [*PROMPT, *_plain(model, len(text) - len(PROMPT))]


def _plain(model, n):
    text = list(PROMPT)
    for _ in range(n):
        text.append(int(model.target(text).argmax()))
    return text[len(PROMPT) :]


def test_a_limit_below_its_width_drafts_nothing():
    context = FakeContext(FakeModel())
    drafter = lookahead.make(context, lookahead.Options())
    drafter.begin(context.sequence(), PROMPT)
    assert not drafted(drafter, context, DraftLimit(7), PROMPT).tokens
    assert drafted(drafter, context, DraftLimit(8), PROMPT).tokens


def test_the_choice_drafts_while_it_pays():
    """Passes whose rows cost next to nothing, and acceptance that falls to none."""
    context = FakeContext(FakeModel())
    drafter = lookahead.make(context, lookahead.Options())
    drafter.begin(context.sequence(), PROMPT)
    full_us = tuple(1000.0 + i for i in range(16))
    costs = FakeDrafter(FakeModel()).costs().at(0)
    cheap = Choice(0, n_copies=15, costs=type(costs)(0, full_us, full_us, 0.0, 0.0))
    dear = Choice(
        0,
        n_copies=15,
        costs=type(costs)(0, tuple(1000.0 * i for i in range(1, 17)), full_us, 0.0, 0.0),
    )
    assert not drafter.draft(PROMPT, dear).tokens
    n_drafts = 0
    while drafter.draft(PROMPT, cheap).tokens:
        drafter.accept(Verdict((), 1, False))
        n_drafts += 1
        assert n_drafts < 1000
    assert n_drafts > 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "window is at least 1, got 0"),
        ({"n": 1}, "n is at least 2, got 1"),
        ({"guesses": 0}, "guesses is at least 1, got 0"),
        ({"window": 8, "n": 3}, "make drafts of 20 tokens, at most 15"),
        ({"window": 3, "n": 2}, "need 5 sequences, the context has n_seq_max 4"),
    ],
)
def test_a_window_that_is_too_large_is_refused(options, message):
    with pytest.raises(ArgumentError, match=message):
        lookahead.make(FakeContext(FakeModel()), lookahead.Options(**options))


def test_where_branches_have_no_room_nothing_is_drafted(monkeypatch):
    context = FakeContext(FakeModel(), n_seq_max=4)
    monkeypatch.setattr(FakeContext, "n_branches", 1)
    drafter = lookahead.make(context, lookahead.Options())
    assert not any(step.n_drafted for step in generated(drafter, context, n_max=16))


def test_what_another_drafter_got_right_is_not_its_own():
    context = FakeContext(FakeModel(), n_seq_max=6)
    drafter = lookahead.make(context, lookahead.Options())
    drafter.begin(context.sequence(), PROMPT)
    assert drafter.draft(PROMPT, DraftLimit(16)).tokens
    drafter.accept(Verdict((), 1, False))
    before = drafter._n_drafts, drafter._n_accepted
    drafter.accept(Verdict((0, 1), 1, False))
    assert (drafter._n_drafts, drafter._n_accepted) == before
