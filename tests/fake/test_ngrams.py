"""The index of n-grams against a search through the whole text, and what chances are learned."""

import itertools
import random
from collections import Counter

import needs
import pytest

from pyselfspec.costs.chances import LENGTHS, N_SURENESS, Chances
from pyselfspec.errors import ArgumentError
from pyselfspec.runtime.pictures import row_ids
from pyselfspec.speculate.drafters import ngram
from pyselfspec.speculate.drafters.ngram import file as ngram_file
from pyselfspec.speculate.drafters.ngram.index import BETWEEN, EarlierTexts, NgramIndex
from pyselfspec.speculate.limits import DraftLimit
from pyselfspec.testing.fake_context import FakeContext
from pyselfspec.testing.fake_model import FakeModel

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
        assert tokens == [token for token, *_ in expected]
        assert found == pytest.approx([chance for *_, chance in expected])
        context = rng.choice(texts)[:n][-rng.randrange(1, 16) :]
        tokens, _ = index.chain(context, 0, n_max, chance_min=chance_min, **options)
        assert tokens == [token for token, *_ in chained(sources, context, chance_min, n_max)]
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
    assert following(index, first[:2]) is None  # a row follows, which is no text


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
    draft = drafter(history).draft(history, DraftLimit(3))
    assert draft.token_ids == (3, 4, 9)
    assert len(draft.probs) == 3 and all(0 < p <= 1 for p in draft.probs)


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


def generated_with(context, text, **options):
    made = ngram.make(context, ngram.Options(**options))
    made.begin(context.sequence(), text)
    return made


STORY = [3, 1, 4, 1, 5, 9, 2, 6]


def test_an_earlier_text_of_the_session_is_copied_from():
    context = FakeContext(FakeModel())
    generated_with(context, STORY).close()
    history = [7, 4, 1, 5]
    made = generated_with(context, history, chance_min=0.0)
    assert made.draft(history, DraftLimit(3)).token_ids == (9, 2, 6)
    alone = generated_with(context, history, session=False)
    assert alone.draft(history, DraftLimit(3)).token_ids == ()


def test_the_text_itself_is_heard_before_earlier_ones():
    context = FakeContext(FakeModel())
    generated_with(context, STORY).close()
    history = [1, 5, 8, 1, 5]
    assert generated_with(context, history).draft(history, DraftLimit(1)).token_ids == (8,)


# a file of earlier texts


@needs.filelock
def test_a_file_takes_texts_to_another_run(tmp_path):
    file = tmp_path / "texts.json"
    generated_with(FakeContext(FakeModel()), STORY, file=file).close()
    history = [7, 4, 1, 5]
    later = generated_with(FakeContext(FakeModel()), history, file=file, chance_min=0.0)
    assert later.draft(history, DraftLimit(3)).token_ids == (9, 2, 6)
    later.close()
    assert ngram_file.load(file, FakeModel.vocabulary, 11) == (*STORY, *history)


@needs.filelock
def test_two_runs_that_share_a_file_lose_nothing(tmp_path):
    file = tmp_path / "texts.json"
    one, other = (
        generated_with(FakeContext(FakeModel()), text, file=file) for text in (STORY, [8, 8, 7])
    )
    one.close()
    other.close()
    assert ngram_file.load(file, FakeModel.vocabulary, 11) == (*STORY, 8, 8, 7)


@needs.filelock
def test_a_file_keeps_to_its_bound(tmp_path):
    file = tmp_path / "texts.json"
    for _ in range(3):
        generated_with(FakeContext(FakeModel()), STORY, file=file, n_kept=10).close()
    assert ngram_file.load(file, FakeModel.vocabulary, 11) == (*STORY, *STORY)[-10:]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is no file of texts"),
        (b"GGUF....", "is a model"),
        (b'{"format": 1, "vocabulary": "fake tokens", "tokens": [1, -2]}', "0 or more"),
        (b'{"format": 1, "vocabulary": "fake tokens", "tokens": [1, 99]}', "another vocabulary"),
        (b'{"format": 1, "vocabulary": "others", "tokens": [1]}', "another vocabulary"),
        (b'{"format": 9, "vocabulary": "fake tokens", "tokens": [1]}', "is no file of texts"),
    ],
)
def test_a_file_that_is_of_no_use_is_left_as_it_is(tmp_path, content, message):
    file = tmp_path / "texts.json"
    file.write_bytes(content)
    with pytest.raises(ArgumentError, match=message):
        ngram.make(FakeContext(FakeModel()), ngram.Options(file=file))
    assert file.read_bytes() == content


def test_a_file_that_cannot_be_is_found_out_before_the_text(tmp_path):
    with pytest.raises(ArgumentError, match="is no folder"):
        ngram.make(FakeContext(FakeModel()), ngram.Options(file=tmp_path / "no" / "texts.json"))


@needs.filelock
def test_a_file_in_use_for_long_is_said_and_not_touched(tmp_path, monkeypatch):
    file = tmp_path / "texts.json"
    generated_with(FakeContext(FakeModel()), STORY, file=file).close()
    before = file.read_bytes()
    monkeypatch.setattr(ngram_file, "WAIT_S", 0.01)
    other = generated_with(FakeContext(FakeModel()), [1, 2, 3], file=file)
    from filelock import FileLock

    with FileLock(f"{file}.lock"), pytest.warns(ngram.TextsWarning, match="in use by another"):
        other.close()
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    "options", [{"n_kept": 0}, {"n_kept": -5}, {"n_kept": 10**12}, {"chance_min": 2.0}]
)
def test_options_that_cannot_be(options):
    with pytest.raises(ArgumentError):
        ngram.Options(**options)


@needs.filelock
def test_texts_that_are_not_for_the_session_are_not_copied_from_in_it(tmp_path):
    file, context = tmp_path / "texts.json", FakeContext(FakeModel())
    generated_with(context, STORY, file=file, session=False).close()
    history = [7, 4, 1, 5]
    assert (
        generated_with(context, history, file=file, session=False).look_up(history, 3).tokens == ()
    )
    assert ngram_file.load(file, FakeModel.vocabulary, 11) == tuple(STORY)


@needs.filelock
def test_a_file_that_another_vocabulary_took_meanwhile_costs_no_text(tmp_path):
    file = tmp_path / "texts.json"
    made = generated_with(FakeContext(FakeModel()), STORY, file=file)
    ngram_file.add(file, "others", 11, [1, 2], 9)
    with pytest.warns(ngram.TextsWarning, match="another vocabulary"):
        made.close()
    assert ngram_file.load(file, "others", 11) == (1, 2)
