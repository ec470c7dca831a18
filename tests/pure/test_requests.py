"""The bundled requests, which ``tune`` uses if it gets no prompts."""

import random
from itertools import islice

import pytest

from pyselfspec.tune import prompts

FORMS = prompts.request_forms()
PASSAGES = [f"Passage {i} has {{braces}} in it." for i in range(50)]
N = 2000


def drawn(n, passages=(), seed=1):
    return [request.text for request in islice(prompts.generate_requests(seed, passages), n)]


def test_slots_name_lists_and_every_list_is_named():
    named = set().union(*(kind.slots for kind in FORMS.kinds))
    assert named == {*FORMS.lists, prompts.PASSAGE}


def test_a_slot_is_well_formed_and_lists_have_enough_for_every_form():
    for form in (form for kind in FORMS.kinds for form in kind.forms):
        named = prompts.SLOT.findall(form)
        assert named and not set("{}") & set(prompts.SLOT.sub("", form)), form
        given = set(named) - {prompts.PASSAGE}
        assert all(len(FORMS.lists[name]) >= 2 * named.count(name) for name in given), form


def test_nothing_is_there_twice():
    forms = [form for kind in FORMS.kinds for form in kind.forms]
    names = [kind.name for kind in FORMS.kinds]
    for each in (forms, names, *FORMS.lists.values()):
        assert len(set(each)) == len(each)


def test_slots_of_the_same_name_get_different_words():
    lists, rng = {"one": ["a", "b", "c"], "other": ["a"]}, random.Random(0)
    form = "{one}{one}{one}{other}"
    made = {prompts.fill_form(form, prompts.choose_words(form, lists, rng)) for _ in range(100)}
    assert made == {"abca", "acba", "baca", "bcaa", "caba", "cbaa"}


def test_words_are_put_in_as_they_are():
    words = {"code": [r"f({x}) \1"], "x": ["wrong"]}
    assert prompts.fill_form("What is {code}?", words) == r"What is f({x}) \1?"


def test_a_seed_gives_the_same_requests_and_another_one_others():
    assert drawn(200, PASSAGES) == drawn(200, PASSAGES)
    assert len(set(drawn(200, seed=1)) & set(drawn(200, seed=2))) < 40


def test_requests_hardly_repeat():
    assert len(set(drawn(N))) > 1700
    assert len(set(drawn(N, PASSAGES))) > 1700


def test_no_beginning_is_common():
    """A head learns how answers begin, so requests must not begin alike."""
    starts = [" ".join(request.split()[:3]).lower() for request in drawn(N)]
    assert max(map(starts.count, set(starts))) < N // 20


@pytest.mark.parametrize("passages", [(), prompts.bundled_prompts().passages])
def test_a_sixteenth_is_held_out_of_every_kind_with_long_fillers_too(passages):
    requests = list(islice(prompts.generate_requests(1, passages), 5 * N))
    assert 0.05 < sum(each.held_out for each in requests) / len(requests) < 0.075
    for words in [FORMS.lists[name] for name in ("note", "report", "code")] + [passages]:
        about = [each.held_out for each in requests if any(word in each.text for word in words)]
        assert not words or 0.02 < sum(about) / len(about) < 0.15


def test_the_only_passage_is_learned_from():
    (passage,) = passages = ["Once upon a time. " * 10]
    requests = islice(prompts.generate_requests(1, passages), N)
    assert not any(each.held_out for each in requests if passage in each.text)


def test_without_passages_nothing_is_asked_about_them(monkeypatch):
    share = sum(kind.share for kind in FORMS.kinds if prompts.PASSAGE in kind.slots)
    expected = N * share / sum(kind.share for kind in FORMS.kinds)
    found = sum(any(each in request for each in PASSAGES) for request in drawn(N, PASSAGES))
    assert abs(found - expected) < 0.25 * expected
    on_them, other = ("{passage}", "{x}"), ("No {x}",)
    kinds = (prompts.RequestKind("on them", 9, on_them), prompts.RequestKind("other", 1, other))
    forms = prompts.RequestForms(kinds, {"x": ["a", "b"]})
    monkeypatch.setattr(prompts, "request_forms", lambda: forms)
    assert set(drawn(100)) == {"No a", "No b"}
