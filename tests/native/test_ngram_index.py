"""Indexes of n-grams against searches through whole texts, and arguments of the C interface that
cannot be."""

import ctypes
import gc
import itertools
import random
from collections import Counter

import pytest

from pyselfspec.costs.chances import LENGTHS, N_SURENESS, Chances
from pyselfspec.runtime.ffi import ngram_calls
from pyselfspec.runtime.ffi.calls import BAD_ARGUMENT
from pyselfspec.runtime.ffi.load import native
from pyselfspec.runtime.pictures import row_ids
from pyselfspec.speculate.drafters.ngram.index import BETWEEN, EarlierTexts, NgramIndex

pytestmark = pytest.mark.sanitized

N_MATCHES = 8  # latest matches that count, as in native/ngrams/index.h


def searched(text, context, *lengths):
    """Find the longest match of a context's end by a search of the whole text: its length, and how
    often each token follows the latest matches, the latest first."""
    for length in lengths or reversed(LENGTHS):
        if length > len(context):
            continue
        gram = context[-length:]
        ends = [i for i in range(length, len(text)) if text[i - length : i] == gram]
        latest = [text[i] for i in reversed(ends)][:N_MATCHES]
        if latest:
            return length, Counter(latest)
    return None


def followers(length, counts):
    """Return the tokens that follow matches, each with its match: the most frequent first, of
    equally frequent ones the latest."""
    n_all = counts.total()

    def sureness(n):
        return 0 if n_all == 1 else 3 if n == n_all else 2 if 2 * n > n_all else 1

    return [(token, (LENGTHS.index(length), sureness(n))) for token, n in counts.most_common()]


KINDS = list(itertools.product(range(len(LENGTHS)), range(N_SURENESS)))
OF_KIND = [
    [(1 + N_SURENESS * i + sureness, 100) for sureness in range(N_SURENESS)] for i in range(7)
]


def following(index, context):
    """Look up one token: the token and its match, None if there is none."""
    tokens, chances = index.chain(context, 0, 1, chances=Chances(counts=OF_KIND))
    return (tokens[0], KINDS[round(100 * chances[0]) - 1]) if tokens else None


def index_of(text, *args):
    index = NgramIndex(*args)
    index.extend(text)
    return index


def random_text(rng, n=200, low=0):
    kinds = rng.choice((2, 3, 5, 20))
    return [rng.randrange(low, kinds) for _ in range(n)]


@pytest.mark.parametrize("seed", range(40))
def test_the_index_finds_what_a_search_finds(seed):
    rng = random.Random(seed)
    print(f"seed {seed}")
    text = random_text(rng)
    index, n = NgramIndex(), 0
    while n < len(text):
        more = rng.randrange(1, 20)
        index.extend(text[n : n + more])
        n = min(len(text), n + more)
        context = text[max(0, n - rng.randrange(1, 16)) : n] + [rng.randrange(5)] * rng.randrange(3)
        want = searched(text[:n], context)
        assert following(index, context) == (want and followers(*want)[0])


def chained(sources, context, chance_min, n_max):
    """Compute NgramIndex.chain by searches of whole texts. sources: texts and chances. Return
    tokens, each with its source's chances, its match and its chance."""
    context, found, all_right = list(context), [], 1.0
    while len(found) < n_max:
        best, beyond, best_chance = None, -1, 0.0
        for text, chances in sources:
            want = searched(text, context)
            token, match = followers(*want)[0] if want else (None, (-1, 0))
            is_own = chances is sources[0][1]
            if match[0] > beyond and (is_own or chances.of(match) > best_chance):
                best, beyond, best_chance = (token, chances, match), match[0], chances.of(match)
        if best is None or best[0] < 0:
            break
        all_right *= best_chance
        if found and all_right < chance_min:
            break
        found.append((*best, best_chance))
        context.append(best[0])
    return found


def told(expected, chance_min):
    """Return what a look-up returns of a chain: nothing where its first token is too unlikely."""
    return expected if expected and expected[0][-1] >= chance_min else []


def learn(expected, came):
    """Let the chances of expected tokens, see ``chained``, learn what came."""
    for (token, chances, match, _), other in zip(expected, came, strict=False):
        chances.observe(match, token == other)
        if token != other:
            break


def random_counts(rng):
    return [[(rng.choice((0, rng.random())), 1.0) for _ in range(N_SURENESS)] for _ in LENGTHS]


@pytest.mark.parametrize("seed", range(60))
def test_chains_and_what_is_learned_are_what_searches_give(seed):
    """From three texts with pictures, whose rows end a chain, and with chances that may be 0."""
    rng = random.Random(seed)
    print(f"seed {seed}")
    text, *others = texts = [
        [token if token >= 0 else token - 1 for token in random_text(rng, low=-(seed % 3))]
        for _ in range(3)
    ]
    index, (earlier, corpus) = NgramIndex(), map(index_of, others)
    counts = [random_counts(rng) for _ in range(2)]
    (chances, learned), (other_chances, others_learned) = (
        [Chances(counts=each) for _ in range(2)] for each in counts
    )
    options = {"chances": chances, "earlier": earlier, "corpus": corpus} | {
        "other_chances": other_chances
    }
    n, expected = 0, []
    while n < len(text):
        n_new = min(rng.randrange(1, 12), len(text) - n)
        start, n = n, n + n_new
        learn(expected, text[start:n])
        chance_min, n_max = rng.choice((0.0, 0.1, 0.5)), rng.randrange(1, 20)
        seen = text[max(0, start - rng.randrange(12, 20)) : n]
        tokens, found = index.chain(seen, n_new, n_max, chance_min=chance_min, **options)
        sources = [(text[:n], learned), *((each, others_learned) for each in others)]
        expected = chained(sources, seen, chance_min, n_max)
        assert tokens == [token for token, *_ in told(expected, chance_min)]
        assert found == pytest.approx([chance for *_, chance in told(expected, chance_min)])
        context = rng.choice(texts)[:n][-rng.randrange(1, 16) :]
        tokens, _ = index.chain(context, 0, n_max, chance_min=chance_min, **options)
        want = told(chained(sources, context, chance_min, n_max), chance_min)
        assert tokens == [token for token, *_ in want]
    assert list(chances.outcomes) == pytest.approx(list(learned.outcomes))
    assert list(other_chances.outcomes) == pytest.approx(list(others_learned.outcomes))


@pytest.mark.parametrize("seed", range(20))
def test_others_are_what_else_has_followed(seed):
    rng = random.Random(seed)
    text = random_text(rng)
    index = index_of(text)
    for _ in range(20):
        start, token, n = rng.randrange(len(text)), rng.randrange(5), rng.randrange(1, 5)
        context = text[start : start + rng.randrange(16)]
        want = {}
        for length in reversed(LENGTHS):
            found = searched(text, context, length)
            for other, match in followers(*found) if found else ():
                want.setdefault(other, match)
        want.pop(token, None)
        assert index.others(context, token, n) == list(want.items())[:n]


def test_of_equally_frequent_tokens_the_latest_wins():
    index = index_of([7, 1, 9, 7, 2, 9, 7])
    assert following(index, [9, 7])[0] == 2
    assert following(index, [0, 7])[0] == 2


def test_a_text_beyond_the_bound_is_not_indexed():
    index = index_of([1, 2, 3], 4)
    index.extend([1, 2, 9])
    assert following(index, [3])[0] == 1
    assert following(index, [1])[0] == 2
    assert following(index, [9]) is None


def test_rows_of_a_picture_are_matched_by_their_own_ids():
    """They have hundreds of bits, of which an index holds 32."""
    first, second = (row_ids(data, 0, 5) for data in (b"a picture", b"another one"))
    index = index_of([*first, 7, *second, 8])
    assert following(index, first) == (7, (4 - 1, 0))
    assert following(index, second[-3:]) == (8, (2, 0))
    assert following(index, first[:2]) is None  # a row of the picture follows, which is not a token


def test_what_stands_between_texts_follows_nothing():
    index = index_of([1, 2, 3, BETWEEN, 2, 3, 4, BETWEEN])
    assert following(index, [2, 3]) == (4, (1, 0))
    assert following(index, [4]) is None


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_long_text_is_found_again(seed):
    """Its tables grow many times, and hold many n-grams that differ in one token."""
    rng = random.Random(seed)
    text = [rng.randrange(300) for _ in range(40_000)]
    index = NgramIndex()
    for start in range(0, len(text), 700):
        index.extend(text[start : start + 700])
    for _ in range(2000):
        end = rng.randrange(LENGTHS[-1], len(text) - 1)
        token, match = following(index, text[end - LENGTHS[-1] : end])
        assert token == text[end] and match == (len(LENGTHS) - 1, 0)


# earlier texts


@pytest.mark.parametrize("seed", range(10))
def test_a_memory_finds_what_a_search_through_all_texts_finds(seed):
    rng = random.Random(seed)
    print(f"seed {seed}")
    texts = [[rng.randrange(6) for _ in range(rng.randrange(30))] for _ in range(8)]
    memory = EarlierTexts()
    for text in texts:
        memory.add(text)
    added = list(memory.tokens)
    for _ in range(30):
        context = [rng.randrange(6) for _ in range(rng.randrange(1, 6))]
        want = searched(added, context)
        assert following(memory.index, context) == (want and followers(*want)[0])


def test_a_text_in_a_cycle_of_garbage_is_closed_before_its_index_is_freed(monkeypatch):
    free, freed, before = ngram_calls.free, [], []
    monkeypatch.setattr(ngram_calls, "free", lambda index: (freed.append(index), free(index)))

    def text(earlier):
        try:
            yield
        finally:
            before.append(tuple(freed))
            earlier.add([1, 2, 3])

    def leave():
        begun = text(EarlierTexts())
        next(begun)
        cycle = [begun]
        cycle.append(cycle)

    leave()
    gc.collect()
    assert before == [()] and len(freed) == 1


def test_a_conversation_is_kept_once():
    memory = EarlierTexts()
    first = list(range(20))
    assert memory.add(first) == first
    second = [*first, 30, 31]
    assert memory.add(second) == [30, 31]
    assert memory.add([7, 8, 9]) == [7, 8, 9]
    assert list(memory.tokens) == [*second, 7, 8, 9]


@pytest.mark.parametrize("n_kept", [1, 2, 7, 50])
def test_a_memory_keeps_to_its_bound_and_forgets_the_oldest(n_kept):
    memory, all_of = EarlierTexts(n_kept=n_kept), []
    for i in range(40):
        text = [100 * i + j for j in range(5)]
        memory.add(text)
        all_of += text
        assert len(memory.tokens) <= n_kept
        assert list(memory.tokens) == all_of[len(all_of) - len(memory.tokens) :]
    assert len(memory.tokens) >= n_kept // 2
    if n_kept > 1:
        assert following(memory.index, [all_of[-2]])[0] == all_of[-1]
        assert following(memory.index, [all_of[0]]) is None


# the C interface

TOKENS = (ctypes.c_int32 * 4)(7, 8, 7, 8)
FOUND, CHANCES = (ctypes.c_int32 * 12)(), (ctypes.c_double * 4)()
CHAIN = {
    **{"own": None, "earlier": None, "others": None, "end": TOKENS, "n_end": 4, "n_new": 0},
    **{"counts": (ctypes.c_double * 16)(*[0.5] * 16), "other_counts": (ctypes.c_double * 16)()},
    **{"forget": 1.0, "chance_min": 0.0, "n_max": 4, "tokens": FOUND, "chances": CHANCES},
}


def made(lengths, first=0, n_most=99):
    values = (ctypes.c_int32 * len(lengths))(*lengths)
    handle: int | None = native.selfspec_ngrams_init(values, len(lengths), first, n_most)
    return handle


@pytest.fixture
def index():
    handle = made((1, 2))
    assert native.selfspec_ngrams_extend(handle, TOKENS, 4) == 0
    yield handle
    native.selfspec_ngrams_free(handle)


@pytest.mark.parametrize(
    ("lengths", "first", "n_most"),
    [
        *(((), 0, 9), ((0, 1), 0, 9), ((2, 1), 0, 9), ((1, 1), 0, 9), (tuple(range(1, 10)), 0, 9)),
        *(((1, 2), 2, 9), ((1, 2), -1, 9), ((1, 2), 0, -1), ((1, 2), 0, 1 << 24)),
    ],
)
def test_an_index_that_cannot_be(lengths, first, n_most):
    assert made(lengths, first, n_most) is None


def test_nothing_is_freed_and_no_lengths_are_refused():
    native.selfspec_ngrams_free(None)
    assert native.selfspec_ngrams_init(None, 2, 0, 9) is None


def test_tokens_that_cannot_be(index):
    for args in ((None, TOKENS, 4), (index, None, 4), (index, TOKENS, -1)):
        assert native.selfspec_ngrams_extend(*args) == BAD_ARGUMENT
    assert native.selfspec_ngrams_extend(index, None, 0) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        *({"own": None}, {"end": None}, {"n_end": -1}, {"n_new": -1}, {"n_new": 5}),
        *({"counts": None}, {"other_counts": None}, {"n_max": -1}, {"tokens": None}),
        {"chances": None},
    ],
)
def test_a_chain_that_cannot_be(index, wrong):
    args = CHAIN | {"own": index} | wrong
    assert native.selfspec_ngrams_chain(*args.values()) == BAD_ARGUMENT


def test_a_chain_with_texts_of_other_lengths_is_refused(index):
    other = made((1, 3))
    for name in ("earlier", "others"):
        args = CHAIN | {"own": index, name: other}
        assert native.selfspec_ngrams_chain(*args.values()) == BAD_ARGUMENT
    native.selfspec_ngrams_free(other)


def test_a_chain_may_be_of_no_tokens_and_after_none(index):
    args = CHAIN | {"own": index}
    assert native.selfspec_ngrams_chain(*args.values()) == 4 and FOUND[:2] == [7, 8]
    args |= {"n_max": 0, "tokens": None, "chances": None}
    assert native.selfspec_ngrams_chain(*args.values()) == 0
    args = CHAIN | {"own": index, "end": None, "n_end": 0}
    assert native.selfspec_ngrams_chain(*args.values()) == 0


def test_others_that_cannot_be(index):
    wrong = ((None, TOKENS, 4, 7, 4, FOUND), (index, None, 4, 7, 4, FOUND))
    wrong += ((index, TOKENS, -1, 7, 4, FOUND), (index, TOKENS, 4, 7, -1, FOUND))
    for args in (*wrong, (index, TOKENS, 4, 7, 4, None)):
        assert native.selfspec_ngrams_others(*args) == BAD_ARGUMENT
    assert native.selfspec_ngrams_others(index, TOKENS, 4, 9, 4, FOUND) == 1
    assert native.selfspec_ngrams_others(index, TOKENS, 4, 7, 4, FOUND) == 0
