"""Everyday requests, which ``tune`` asks of models where nobody brings prompts of his own."""

import random
from itertools import islice

from pyselfspec.tune import prompts

STOCK = prompts.stock()
PASSAGES = [f"Passage {i} has {{braces}} in it." for i in range(50)]
N = 2000


def drawn(n, passages=(), seed=1):
    return list(islice(prompts.requests(seed, passages), n))


def test_slots_name_lists_and_every_list_is_named():
    named = set().union(*(kind.slots for kind in STOCK.kinds))
    assert named == {*STOCK.lists, prompts.PASSAGE}


def test_a_slot_is_well_formed_and_lists_have_enough_for_every_form():
    for form in (form for kind in STOCK.kinds for form in kind.forms):
        named = prompts.SLOT.findall(form)
        assert named and not set("{}") & set(prompts.SLOT.sub("", form)), form
        given = set(named) - {prompts.PASSAGE}
        assert all(len(STOCK.lists[name]) >= 2 * named.count(name) for name in given), form


def test_nothing_is_there_twice():
    forms = [form for kind in STOCK.kinds for form in kind.forms]
    names = [kind.name for kind in STOCK.kinds]
    for each in (forms, names, *STOCK.lists.values()):
        assert len(set(each)) == len(each)


def test_slots_of_the_same_name_get_different_words():
    lists, rng = {"one": ["a", "b", "c"], "other": ["a"]}, random.Random(0)
    made = {prompts.filled("{one}{one}{one}{other}", lists, rng) for _ in range(100)}
    assert made == {"abca", "acba", "baca", "bcaa", "caba", "cbaa"}


def test_words_are_put_in_as_they_are():
    lists = {"code": [r"f({x}) \1"], "x": ["wrong"]}
    assert prompts.filled("What is {code}?", lists, random.Random(0)) == r"What is f({x}) \1?"


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


def test_a_sixteenth_is_held_out():
    kinds = set(drawn(5 * N))
    assert 0.05 < sum(map(prompts.is_held_out, kinds)) / len(kinds) < 0.075


def test_without_passages_nothing_is_asked_about_them():
    share = sum(kind.share for kind in STOCK.kinds if prompts.PASSAGE in kind.slots)
    expected = N * share / sum(kind.share for kind in STOCK.kinds)
    found = sum(any(each in request for each in PASSAGES) for request in drawn(N, PASSAGES))
    assert abs(found - expected) < 0.25 * expected
    assert not any("{passage}" in request for request in drawn(N))
