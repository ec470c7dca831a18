"""Copies that the drafter takes from a text and from earlier ones, and what chances are learned."""

import needs
import pytest

from pyselfspec.costs.chances import Chances
from pyselfspec.errors import ArgumentError
from pyselfspec.speculate.drafters import ngram
from pyselfspec.speculate.drafters.ngram import file as ngram_file
from pyselfspec.speculate.limits import DraftLimit
from pyselfspec.testing.fake_context import FakeContext
from pyselfspec.testing.fake_model import FakeModel


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
