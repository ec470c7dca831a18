"""The index of n-grams against a search through the whole text, and what chances are learned."""

import random
from collections import Counter

import pytest

from pyselfspec.speculate import ngrams
from pyselfspec.speculate.drafters import ngram
from pyselfspec.speculate.ngrams import LENGTHS, N_MATCHES, Chances, NgramIndex
from pyselfspec.speculate.types import DraftLimit
from pyselfspec.testing.fakes import FakeContext, FakeModel


def searched(text, context):
    """What NgramIndex.following answers, by looking at every place."""
    for length in reversed(LENGTHS):
        if length > len(context):
            continue
        gram = context[-length:]
        ends = [i for i in range(length, len(text)) if text[i - length : i] == gram]
        latest = [text[i] for i in reversed(ends)][:N_MATCHES]
        if latest:
            return length, Counter(latest)
    return None


@pytest.mark.parametrize("seed", range(20))
def test_the_index_finds_what_a_search_finds(seed):
    rng = random.Random(seed)
    print(f"seed {seed}")
    text = [rng.randrange(rng.choice((2, 5))) for _ in range(200)]
    index, n = NgramIndex(), 0
    while n < len(text):
        more = rng.randrange(1, 20)
        index.extend(text[n : n + more])
        n = min(len(text), n + more)
        context = text[max(0, n - rng.randrange(1, 16)) : n] + [rng.randrange(5)] * rng.randrange(3)
        want = searched(text[:n], context)
        got = index.following(context)
        if want is None:
            assert got is None
            continue
        length, counts = want
        assert LENGTHS[got.match[0]] == length
        assert counts[got.token] == max(counts.values())


def test_of_equally_frequent_tokens_the_latest_wins():
    index = NgramIndex()
    index.extend([7, 1, 9, 7, 2, 9, 7])
    assert index.following([9, 7]).token == 2
    assert index.following([0, 7]).token == 2


def test_a_text_beyond_the_bound_is_not_indexed(monkeypatch):
    monkeypatch.setattr(ngrams, "N_TOKENS", 4)
    index = NgramIndex()
    index.extend([1, 2, 3])
    index.extend([1, 2, 9])
    assert len(index) == 4
    assert index.following([3]).token == 1
    assert index.following([1]).token == 2


def test_a_token_costs_the_same_however_long_the_text(monkeypatch):
    """Counted in look-ups, not in time."""
    index = NgramIndex()
    index.extend([1, 2] * 5000)
    looked = []
    monkeypatch.setattr(index, "_before", [Counting(b, looked) for b in index._before])
    index.following([1, 2] * 8)
    assert len(looked) <= N_MATCHES + 1


class Counting:
    def __init__(self, inner, looked):
        self._inner, self._looked = inner, looked

    def __getitem__(self, i):
        self._looked.append(i)
        return self._inner[i]


def test_chances_follow_what_happens():
    chances, match = Chances(), (2, 3)
    before = chances.of(match)
    for _ in range(400):
        chances.observe(match, True)
    assert chances.of(match) > 0.97 > before
    assert chances.of((2, 0)) == before  # another kind of match
    for _ in range(400):
        chances.observe(match, False)
    assert chances.of(match) < 0.2


def drafter(history, **options):
    context = FakeContext(FakeModel())
    made = ngram.make(context, ngram.Options(**options))
    made.begin(context.sequence(), history)
    return made


def test_a_copy_goes_on_as_the_text_did():
    history = [5, 1, 2, 3, 4, 9, 8, 5, 1, 2]
    draft = drafter(history).draft(history, DraftLimit(4))
    assert draft.tokens == (3, 4, 9, 8)
    assert draft.probs is not None and all(0 < p <= 1 for p in draft.probs)


def test_nothing_is_copied_where_nothing_repeats():
    assert drafter([1, 2, 3]).draft([1, 2, 3], DraftLimit(4)).tokens == ()


def test_chances_are_learned_also_where_nothing_is_drafted():
    """The next token tells, whether it was drafted or not."""
    history = [1, 2] * 30
    made = drafter(history[:4])
    first = made.draft(history[:4], DraftLimit(1)).probs
    for n in range(5, len(history)):
        assert made.draft(history[:n], DraftLimit(0)).tokens == ()
    later = made.draft(history, DraftLimit(1)).probs
    assert later[0] > 0.8 > first[0]


def test_a_copy_that_is_unlikely_to_go_on_ends():
    history = [1, 2, 3, 1, 2, 4, 1, 2, 5, 1, 2]
    made = drafter(history, chance_min=1.0)
    assert len(made.draft(history, DraftLimit(8)).tokens) <= 1
