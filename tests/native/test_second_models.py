"""Drafters with a model of their own: ``model``, of the same vocabulary, and ``universal``, of any.

On scripted models what they ask of the second model, on tiny ones that the text stays what it is,
on real ones that they are of use.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import run
from fixture_types import NewContext, RealModel, TinyModel, TinyPath
from tiny_mamba import write_mamba
from typed_models import SAMPLINGS, plain_text, require_exact

from pyselfspec import Completion, Context, Fixed, Model, SamplingParams
from pyselfspec.errors import ArgumentError, ModelFileError, UnsupportedError
from pyselfspec.runtime.vocabulary import difference
from pyselfspec.speculate.completion import generate_batch
from pyselfspec.speculate.config import DraftConfig
from pyselfspec.speculate.drafters import Drafter, LookupDrafter, model, universal
from pyselfspec.speculate.drafters._second_model.reader import SecondModel
from pyselfspec.speculate.drafters._second_model.retokenize import (
    Spelling,
    Tokenizer,
    n_common_bytes,
    shared_tokens,
    whole,
)
from pyselfspec.speculate.limits import DraftLimit
from pyselfspec.speculate.pass_requests import run as drive
from pyselfspec.speculate.resolve import resolve
from pyselfspec.speculate.types import Draft, DraftToken
from pyselfspec.testing.conformance import HISTORY, DrafterConformance, generated
from pyselfspec.testing.fake_context import FakeContext
from pyselfspec.testing.fake_model import EOG, FakeModel

MODES: tuple[universal.Mode, ...] = ("text", "shared")

#
# scripted models
#


class Letters(FakeModel):
    """Its tokens are letters, the first of which ends the text."""

    start_token: int | None = None

    def letter(self, token: int) -> bytes:
        return b"" if token == EOG else bytes([ord("a") + token - 1])

    piece = letter

    def tokenize(self, text: str, **_: Any) -> list[int]:
        by_letter = {self.piece(token): token for token in range(self.n_vocab)}
        return [by_letter[letter.encode()] for letter in text]


class Second(Letters):
    """Thinks what drafts of the first model think."""

    def target(self, prefix: Sequence[int]) -> Any:
        return self.draft(prefix)


class Assistant(Letters):
    """A tokenizer with other ids: letters backwards, and a BOS token."""

    start_token = 11
    n_tokens = 11

    def _turned(self, token: int) -> int:
        return token if token == EOG else self.n_tokens - token

    def piece(self, token: int) -> bytes:
        return b"" if token == self.start_token else self.letter(self._turned(token))

    def target(self, prefix: Sequence[int]) -> Any:
        assert prefix[0] == self.start_token and self.start_token not in prefix[1:]
        first = Letters(self.quality, self.end_at, self.seed)
        law = first.draft([self._turned(token) for token in prefix[1:]])
        mine = np.zeros(self.n_vocab)
        mine[[self._turned(token) for token in range(self.n_tokens)]] = law
        return mine


def second_for(context: Any, kind: type[FakeModel] = Second) -> Any:
    """The context of a second model for a scripted one, made once."""
    one = context.model
    n_vocab = one.n_vocab + (kind is Assistant)
    other = kind(one.quality, one.end_at, one.seed, n_vocab)
    made = lambda: FakeContext(other, n_ctx=4096, n_seq_max=context.n_seq_max)  # noqa: E731
    if not hasattr(context, "second"):
        context.second = made()
    return context.second


class TestModel(DrafterConformance):
    def make(self, context: Any) -> Any:
        return model.ModelDrafter(context, second_for(context))


class TestUniversal(DrafterConformance):
    def begun(self, model: FakeModel | None = None, **options: Any) -> Any:
        one = model or FakeModel()
        return super().begun(Letters(one.quality, one.end_at, one.seed), **options)

    def make(self, context: Any) -> Any:
        one = context.model
        if not isinstance(one, Letters):
            context.model = Letters(one.quality, one.end_at, one.seed)
        return universal.UniversalDrafter(context, second_for(context, Assistant), "text")


def untimed(draft: Draft) -> Draft:
    """Without the time that reading took."""
    return replace(draft, catch_up_us=0)


@pytest.mark.parametrize("kind", [TestModel, TestUniversal])
def test_they_can_go_on_behind_copies(kind: type[Any]) -> None:
    drafter, context = kind().begun(Letters(quality=1.0))
    assert isinstance(drafter, Drafter) and not isinstance(drafter, LookupDrafter)
    start = Draft.copied((3, 5), (0.9, 0.8))
    draft = drafter.extend(start, list(HISTORY), DraftLimit(3))
    text = [*HISTORY, 3, 5]
    for _ in range(3):
        text.append(int(context.model.target(text).argmax()))
    assert draft.token_ids == tuple(text[len(HISTORY) :]) and draft.n_copied == 2
    assert draft.probs[:2] == (0.9, 0.8)
    assert drafter.extend(start, list(HISTORY), DraftLimit(0)) == start


@pytest.mark.parametrize("p_min", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("kind", [TestModel, TestUniversal])
def test_limits_are_kept_as_layer_skip_keeps_them(kind: type[Any], p_min: float) -> None:
    """Tokens are those of the second model as long as it is sure; the one that it is not sure of is
    named but not verified."""
    drafter, context = kind().begun(Letters(quality=0.5, seed=3))
    draft = drafter.draft(list(HISTORY), DraftLimit(6, p_min))
    text, want = list(HISTORY), []
    while len(want) < 6:
        law = context.model.draft(text)
        token, p = int(law.argmax()), float(law.max())
        if p < p_min:
            assert (draft.dropped.token, draft.dropped.p) == (token, pytest.approx(p))
            break
        want.append(token)
        text.append(token)
    assert list(draft.token_ids) == want
    assert (draft.dropped is None) == (len(want) == 6)


def widths_of_drafts(quality: float, n_max: int, kind: type[Any] = TestModel) -> list[list[int]]:
    """Rows of the second model's passes, step by step."""
    drafter, context = kind().begun(Letters(quality))
    second = context.second
    found: list[list[int]] = []
    own = drafter.draft

    def draft(history: Sequence[int], limit: DraftLimit) -> Draft:
        second.widths.clear()
        made = own(history, limit)
        found.append(list(second.widths))
        return made  # type: ignore[no-any-return]

    drafter.draft = draft
    generated(drafter, context, n_max)
    return found


def test_a_right_draft_leaves_one_token_for_the_next_first_pass() -> None:
    assert (
        widths_of_drafts(1.0, 3)[:-1]
        == [[1, 1, 1], *[[2, 1, 1]] * 4][: len(widths_of_drafts(1.0, 3)) - 1]
    )


def test_a_wrong_draft_is_taken_back_and_nothing_else() -> None:
    *found, _last = widths_of_drafts(0.0, 3)
    assert len(found) > 10 and all(set(rows) == {1} for rows in found)


def test_a_prompt_is_read_in_parts_before_the_first_draft() -> None:
    context = FakeContext(FakeModel(), n_batch=4)
    second = FakeContext(Second(), n_batch=4)
    drafter = model.ModelDrafter(context, second)
    context.prefill(HISTORY[:-1])
    drafter.begin(context.sequence(), HISTORY)
    assert second.widths == [4, 2] and not second.probs
    drafter.draft(HISTORY, DraftLimit(2))
    assert second.widths == [4, 2, 1, 1]


def test_what_is_left_unread_while_nothing_is_drafted_is_read_at_once() -> None:
    drafter, context = TestModel().begun()
    second = second_for(context)
    second.widths.clear()
    longer = [*HISTORY, *[1, 2, 3] * 5]
    drafter.draft(longer, DraftLimit(1))
    assert second.widths == [15, 1]


def test_a_text_that_goes_on_is_not_read_again() -> None:
    drafter, context = TestModel().begun()
    second = second_for(context)
    drafter.close()
    second.widths.clear()
    other = model.ModelDrafter(context, second)
    other.begin(context.sequence(), [*HISTORY, 1, 2])
    assert sum(second.widths) == 2  # its last token goes through a pass with the first draft


def test_the_room_of_texts_that_have_ended_is_used() -> None:
    context = FakeContext(FakeModel())
    second = FakeContext(Second(), n_ctx=12)
    ended = model.ModelDrafter(context, second)
    ended.begin(context.sequence(1), HISTORY)
    other = model.ModelDrafter(context, second)
    other.begin(context.sequence(0), HISTORY[::-1])
    # both texts are being written
    assert untimed(other.draft(HISTORY[::-1], DraftLimit(2))) == Draft()
    ended.close()
    assert len(other.draft(HISTORY[::-1], DraftLimit(2)).tokens) == 2
    assert second.sequence(1).n_past == 0


def test_tokens_that_only_one_of_them_has_end_a_draft() -> None:
    small, large = FakeModel(n_vocab=6, quality=1.0), Second(n_vocab=11, quality=1.0)
    context, second = FakeContext(small), FakeContext(large)
    drafter = model.ModelDrafter(context, second)
    text = [1]
    while large.target(text).argmax() < 6:
        text.append(int(large.target(text).argmax()))
    drafter.begin(context.sequence(), [1])
    assert list(drafter.draft([1], DraftLimit(16)).tokens) == text[1:]
    other = model.ModelDrafter(FakeContext(large), FakeContext(Second(n_vocab=6)))
    other.begin(context.sequence(), [1, 8, 2])
    assert untimed(other.draft([1, 8, 2], DraftLimit(4))) == Draft()


def test_before_timings_the_price_is_that_of_the_bytes() -> None:
    context = FakeContext(FakeModel())
    second = second_for(context)
    costs = model.ModelDrafter(context, second).costs().at(0)
    assert costs.token_us == costs.plain_us and costs.last_us == 0  # equal files
    assert not costs.shares
    ahead = (
        universal.UniversalDrafter(FakeContext(Letters()), second_for(context, Assistant), "text")
        .costs()
        .at(0)
    )
    assert ahead.last_us == ahead.token_us  # of the token that tells where the last one ends


#
# bytes and tokens
#


@pytest.mark.parametrize(
    ("data", "want"),
    [
        ("né".encode(), "né".encode()),
        ("né".encode()[:-1], b"n"),
        ("🍞".encode()[:3], b""),
        (b"", b""),
        (b"\xff", b"\xff"),  # begins no character
        ("🍞".encode()[1:], "🍞".encode()[1:]),
    ],
)
def test_a_character_that_has_only_begun_is_left_out(data: bytes, want: bytes) -> None:
    assert whole(data) == want


def test_common_bytes_are_counted() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    for _ in range(200):
        a, b = (bytes(rng.choices(b"ab", k=rng.randrange(9))) for _ in "ab")
        n = n_common_bytes(a, b)
        assert a[:n] == b[:n] and (n == min(len(a), len(b)) or a[n] != b[n])


SAMPLES = (
    "the king and the queen",
    " the",
    "ing",
    "  two  spaces , and .  ' s  ",
    "\n\n\tx \n",
    "naïve Brot 面包 🍞",
    "</s> is no token here",
)


@pytest.mark.parametrize("vocab", ["spm", "reversed"])
def test_tokens_spell_the_bytes_they_are_for(tiny: TinyModel, vocab: str) -> None:
    """With and without a tokenizer that puts a space before every text."""
    one = tiny(vocab=vocab)
    tokenizer = Tokenizer(one)
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    samples = [*(text.encode() for text in SAMPLES), *(rng.randbytes(12) for _ in range(20))]
    samples += ["é🍞".encode()[i:j] for i in range(6) for j in range(i + 1, 7)]
    for data in samples:
        tokens = tokenizer.tokens(data)
        assert Spelling(one, tokens).data == data
        assert not {one.start_token, 0, 1, 2} & set(tokens)
    assert len(tokenizer.tokens(b" the king")) < 6  # words where there are words


def test_words_that_a_tokenizer_changes_leave_the_others_whole(
    tiny: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some tokenizers write everything in small letters."""
    one = tiny()
    own = one.tokenize
    monkeypatch.setattr(one, "tokenize", lambda text, **how: own(text.lower(), **how))
    tokens = Tokenizer(one).tokens(b"the king and The and the king")
    assert Spelling(one, tokens).data == b"the king and The and the king"
    assert len(tokens) < len(b"the king and The and the king") / 2


def test_shared_tokens_add_the_same_bytes(tiny: TinyModel) -> None:
    one, other = tiny(), tiny(vocab="reversed")
    shared = shared_tokens(one, other)
    assert all(one.piece(a) == other.piece(b) != b"" for b, a in shared.items())
    assert len(shared) == one.n_vocab - 3  # all but control tokens
    [letter] = other.tokenize("t", add_special=False)
    assert shared[letter] == Tokenizer(one).tokens(b"t")[0] > 258  # not the byte


@pytest.fixture
def reader(tiny: TinyModel, new_context: NewContext) -> Any:
    """A universal drafter with its own account of the text."""
    context, second = new_context(tiny()), new_context(tiny(vocab="reversed"))
    return universal.UniversalDrafter(context, second, "text")


def read_as(drafter: Any, tokens: Sequence[int]) -> bytes:
    drafter._align(tokens)
    drafter._n_read = len(tokens)
    return bytes(drafter._its_text.data)


def test_a_start_token_is_put_once(reader: Any, tiny: TinyModel) -> None:
    target = tiny()
    tokens = target.tokenize("the king and the queen and the knight")
    assert tokens[0] == target.start_token
    for n in range(1, len(tokens) + 1):
        read_as(reader, tokens[:n])
        its = reader._its_text.tokens
        assert its[0] == reader._second.model.start_token and 1 not in its[1:]


@pytest.mark.parametrize("text", SAMPLES)
def test_text_stays_as_it_is_token_by_token(reader: Any, tiny: TinyModel, text: str) -> None:
    """Spaces too, and characters that end in another token."""
    target = tiny()
    tokens = target.tokenize(text)
    for n in range(1, len(tokens) + 1):
        want = b"".join(map(target.piece, tokens[:n]))
        assert read_as(reader, tokens[:n]) == whole(want)
    whole_text = Tokenizer(reader._second.model).tokens(want)
    assert reader._its_text.tokens[1:] == whole_text  # as if it had been read at once


def test_repetitions_are_told_apart_by_where_they_are(reader: Any, tiny: TinyModel) -> None:
    """The longest run of tokens in common would be found at the wrong place."""
    target = tiny()
    tokens = target.tokenize("the the the the the the")
    read_as(reader, tokens)
    n_before = len(reader._its_text.tokens)
    its = reader._its_tokenizer.tokens(b" the the the and")
    reader._its_text.extend(its)  # what it has drafted, of which two words are right
    want = b"".join(map(target.piece, tokens)) + b" the the"
    longer = [*tokens, *Tokenizer(target).tokens(b" the the")]
    assert read_as(reader, longer) == want
    assert reader._its_text.tokens == [*reader._its_text.tokens[:n_before], *its[:2]]


def test_only_what_differs_is_cut_anew(reader: Any, tiny: TinyModel) -> None:
    """From the beginning of the word in which the texts differ."""
    target = tiny()
    cut = Tokenizer(target).tokens
    text = [target.start_token, *cut(b"the king and the kn")]
    read_as(reader, text)
    n = len(reader._its_text.tokens)
    reader._n_same = n
    read_as(reader, [*text, *cut(b"ight")])
    n_word = len(reader._its_tokenizer.tokens(b" kn"))
    assert reader._n_same == n - n_word


def test_control_tokens_of_the_target_are_left_out(reader: Any, tiny: TinyModel) -> None:
    cut = Tokenizer(tiny()).tokens
    text = [1, *cut(b"the"), 2, 1, *cut(b" king")]
    assert read_as(reader, text) == b"the king"


def test_a_draft_goes_on_within_a_character(new_context: NewContext, tiny: TinyModel) -> None:
    """A draft must begin with the bytes that are already there; otherwise it is empty."""
    context, second = new_context(tiny()), new_context(tiny(vocab="reversed"))
    drafter = universal.UniversalDrafter(context, second, "text")
    half = [1, *Tokenizer(tiny()).tokens("the 🍞".encode()[:-2])]
    drafter.begin(context.sequence(), half)
    bread = iter(second.model.tokenize("🍞", add_special=False))
    drafter._opened.likeliest = lambda: (next(bread, 2), 1.0)
    draft = drafter.draft(half, DraftLimit(8))
    assert b"".join(map(tiny().piece, draft.token_ids)) == "🍞".encode()[-2:]
    drafter.begin(context.sequence(), half)
    drafter._opened.likeliest = lambda: (second.model.tokenize("t", add_special=False)[0], 1.0)
    assert untimed(drafter.draft(half, DraftLimit(8))) == Draft()


def test_a_token_is_proposed_once_nothing_can_change_it(
    new_context: NewContext, tiny: TinyModel
) -> None:
    """Alone, "th" would be a token of its own, and is the beginning of "the" here."""
    context, second = new_context(tiny()), new_context(tiny(vocab="reversed"))
    drafter = universal.UniversalDrafter(context, second, "text")
    target = tiny()
    text = target.tokenize("king")
    drafter.begin(context.sequence(), text)
    cut = Tokenizer(second.model).tokens
    pieces = [*cut(b" t"), *cut(b"h"), *cut(b"e"), *cut(b" a")]
    assert len(pieces) == 4
    written = iter(pieces)
    drafter._opened.likeliest = lambda: (next(written), 0.5)
    draft = drafter.draft(text, DraftLimit(1))
    assert [target.piece(token) for token in draft.token_ids] == [b" the"]
    assert draft.probs == (0.125,)  # of the three tokens that it is made of


#
# tiny models
#


def completed(context: Context, prompt: Sequence[int], draft: str, **options: Any) -> Completion:
    defaults: dict[str, Any] = {"n_predict": 32, "controller": Fixed(3, p_min=0)}
    made = Completion(context, prompt, draft=draft, **(defaults | options))
    for _piece in made:
        pass
    return made


@pytest.fixture
def drafts(tiny_path: TinyPath) -> Callable[[str], str]:
    """How to draft for a tiny model of four blocks, by a name of it."""

    def draft(way: str) -> str:
        good = {"late_scale": 0.01, "drop_blocks": (2, 3), "qtype": "Q8_0"}
        other = {**good, "vocab": "reversed"}
        paths = {
            "good": ("model", good),
            "bad": ("model", {"n_layer": 2, "seed": 9, "qtype": "Q8_0"}),
            "text": ("universal", other),
            "bad text": ("universal", {**other, "seed": 9}),
        }
        name, options = paths[way]
        return f"{name}:{tiny_path(**options)}"

    return draft


@pytest.fixture
def target(tiny: TinyModel, new_context: NewContext) -> Context:
    context = new_context(tiny(qtype="Q8_0", late_scale=0.01))
    require_exact(context)
    return context


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("way", ["good", "bad", "text", "bad text"])
def test_the_text_is_that_of_plain_decoding(
    way: str, sampling: str, target: Context, drafts: Callable[[str], str], tiny: TinyModel
) -> None:
    prompt = tiny().tokenize("the king and the queen are at the sea")
    how = SAMPLINGS[sampling]
    want = plain_text(target, prompt, 32, how)
    for draft in (drafts(way), f"ngram+{drafts(way)}"):
        target.sequence().drop()
        made = completed(target, prompt, draft, sampling=how)
        assert made.tokens == want
        assert made.stats.n_drafted > 0
    if sampling == "greedy":
        rate = made.stats.acceptance_rate
        assert rate is not None and (rate < 0.1 if way.startswith("bad") else rate > 0.2)


@pytest.mark.parametrize("mode", MODES)
def test_both_ways_to_carry_drafts_over(
    mode: universal.Mode, target: Context, tiny_path: TinyPath, tiny: TinyModel
) -> None:
    """A draft model with other token ids is right except where its tokens cut the text differently,
    as this one is: words letter by letter, and halves of characters."""
    path = tiny_path(qtype="Q8_0", late_scale=0.01, vocab="reversed")
    prompt = tiny().tokenize("the king and the queen are at the sea")
    want = plain_text(target, prompt, 32)
    target.sequence().drop()
    options = universal.Options(path, mode)
    made = completed(target, prompt, "universal", options=options, sampling=SAMPLINGS["greedy"])
    assert made.tokens == want
    assert made.stats.acceptance_rate is not None and made.stats.acceptance_rate > 0.25


WHOLE = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=5)


def softmax(logits: Any) -> Any:
    weights = np.exp(logits.astype(np.float64) - logits.max())
    return weights / weights.sum()


def first_drawn(context: Context, prompt: Sequence[int], draft: str) -> DraftToken:
    """Return the first draft token of a text, which is drawn."""
    made = Completion(
        context,
        prompt,
        draft=draft,
        controller=Fixed(3, p_min=0),
        sampling=WHOLE,
        verify="residual",
    )
    with made.start() as text:
        drive(context, text.begin())
        return drive(context, text.step()).draft.tokens[0]


def test_tokens_are_drawn_from_what_the_second_model_computes(
    target: Context, drafts: Callable[[str], str], tiny: TinyModel, new_context: NewContext
) -> None:
    prompt = tiny().tokenize("the king and the queen are at the sea")
    with Model(drafts("good").partition(":")[2]) as second:
        law = softmax(new_context(second).decode(prompt, outputs="last").logits[0])
        drafted = first_drawn(target, prompt, drafts("good"))
    assert drafted.distribution is not None and drafted.p == pytest.approx(law.max(), rel=1e-3)
    np.testing.assert_allclose(drafted.distribution, law, rtol=1e-3, atol=1e-9)


def test_the_distribution_of_an_assistant_is_that_of_common_tokens(
    target: Context, drafts: Callable[[str], str], tiny: TinyModel, new_context: NewContext
) -> None:
    """By what they spell; of two that spell the same, the likelier one counts."""
    text = "the king and the queen are at the sea"
    one, prompt = tiny(), tiny().tokenize(text)
    with Model(drafts("text").partition(":")[2]) as second:
        start = second.start_token
        its_text = [start, *Tokenizer(second).tokens(b"".join(map(one.piece, prompt)))]
        logits = new_context(second).decode(its_text, outputs="last").logits[0]
        drafted = first_drawn(target, prompt, drafts("text"))
        by_piece: dict[bytes, float] = {}
        for piece, logit in zip(second.pieces(), logits, strict=True):
            by_piece[piece] = max(logit, by_piece.get(piece, -np.inf))
        tokens = set(shared_tokens(one, second).values())
    want = np.array([by_piece[one.piece(i)] if i in tokens else -np.inf for i in range(317)])
    assert drafted.distribution is not None
    np.testing.assert_allclose(drafted.distribution, softmax(want), rtol=1e-3, atol=1e-9)


def test_a_model_that_draws_for_itself_is_always_right(
    target: Context, tiny_path: TinyPath, tiny: TinyModel
) -> None:
    """The distributions are equal, so every drawn token is accepted; of most likely ones, only
    those that the target happens to draw."""
    draft = f"model:{tiny_path(qtype='Q8_0', late_scale=0.01)}"
    prompt = tiny().tokenize("the king and the queen are at the sea")
    rates = {}
    for verify in ("residual", "match"):
        target.sequence().drop()
        made = completed(target, prompt, draft, sampling=SAMPLINGS["seeded"], verify=verify)
        rates[verify] = made.stats.acceptance_rate
    assert rates["residual"] == 1.0
    assert rates["match"] is not None and rates["match"] < 0.9


@pytest.mark.parametrize("way", ["good", "text"])
def test_texts_side_by_side_are_those_alone(
    way: str, target: Context, drafts: Callable[[str], str], tiny: TinyModel
) -> None:
    prompts = [tiny().tokenize(text) for text in ("the king", "a rose and a thorn", "in the sea")]
    want = [plain_text(target, prompt, 20) for prompt in prompts]
    target.sequence().drop()
    options: dict[str, Any] = {"n_predict": 20, "sampling": SAMPLINGS["greedy"]}
    texts = [
        Completion(
            target,
            prompt,
            seq=target.sequence(i),
            draft=drafts(way),
            controller=Fixed(i + 1, p_min=0),
            **options,
        )
        for i, prompt in enumerate(prompts)
    ]
    for _ in generate_batch(texts):
        pass
    assert [text.tokens for text in texts] == want
    assert all(text.stats.n_drafted for text in texts)
    again = completed(target, [*prompts[0], *want[0]], drafts(way), **options)
    assert again.stats.n_prompt_reused > len(prompts[0]) and again.stats.n_accepted > 0


def test_the_second_model_is_opened_once_and_closed_with_the_context(
    tiny: TinyModel, tiny_path: TinyPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[SecondModel] = []
    own = SecondModel.__init__

    def init(self: SecondModel, *args: Any) -> None:
        own(self, *args)
        opened.append(self)

    monkeypatch.setattr(SecondModel, "__init__", init)
    draft = f"model:{tiny_path(n_layer=2)}"
    with tiny().context(n_ctx=256, n_threads=1) as context:
        for _ in range(2):
            completed(context, [5, 6, 7], draft, n_predict=2)
        [second] = opened
        assert not second.context.closed
        assert second.context.n_threads == 1 and second.context.n_seq_max == context.n_seq_max
    assert second.context.closed
    with pytest.raises(ArgumentError, match="is closed"):
        _ = second.context.model.handle


#
# what does not go together
#


def test_vocabularies_are_compared_as_llama_cpp_does(tiny: TinyModel, demo: Model) -> None:
    one = tiny()
    assert difference(one, tiny(n_layer=2)) is None
    said = difference(one, tiny(vocab="reversed"))
    assert said is not None and said.startswith("token 259 of ")
    assert "'▁the'" in said and "'k'" in said
    assert "different kinds" in str(difference(one, tiny(vocab="none")))
    assert difference(tiny(vocab="none"), tiny(vocab="none", n_layer=2)) is None


Case = tuple[Callable[[TinyPath, Path], str], type[Exception], str]
CASES: dict[str, Case] = {
    "missing": (lambda _, tmp: f"model:{tmp}/no.gguf", ModelFileError, "no.gguf"),
    "no model": (lambda _, tmp: f"model:{text_in(tmp)}", ModelFileError, "text.gguf"),
    "larger": (
        lambda tiny, _: f"model:{tiny(n_layer=6)}",
        ArgumentError,
        r"too large to draft: it reads [\d.]+ [kM]B per token, .*; give a smaller model",
    ),
    "other tokens": (
        lambda tiny, _: f"model:{tiny(n_layer=2, vocab='reversed')}",
        ArgumentError,
        "token 259 of .* to draft with another vocabulary, use universal:",
    ),
    "short": (
        lambda tiny, _: f"model:{tiny(n_layer=2, n_ctx=64)}",
        ArgumentError,
        "trained on texts of up to 64 tokens and cannot draft in a context of 256$",
    ),
    "recurrent": (
        lambda _, tmp: f"universal:{write_mamba(tmp / 'mamba.gguf')}",
        UnsupportedError,
        "mamba.gguf cannot draft: the memory of architecture mamba cannot take tokens back",
    ),
    "no tokens": (
        lambda tiny, _: f"universal:{tiny(n_layer=2, vocab='none')}",
        ArgumentError,
        "has no tokenizer; universal drafts carry text",
    ),
}


def text_in(folder: Path) -> Path:
    path = folder / "text.gguf"
    path.write_text("The king")
    return path


@pytest.mark.parametrize("case", CASES)
def test_a_file_that_does_not_fit_is_told_before_any_text(
    case: str, tiny: TinyModel, tiny_path: TinyPath, tmp_path: Path, new_context: NewContext
) -> None:
    draft, kind, message = CASES[case]
    n_open = len(tiny().contexts)
    context = new_context(tiny())
    with pytest.raises(kind, match=message):
        Completion(context, [5, 6], draft=draft(tiny_path, tmp_path))
    assert len(tiny().contexts) == n_open + 1


def test_a_target_that_takes_nothing_back_cannot_be_drafted_for(
    tiny: TinyModel, tiny_path: TinyPath, new_context: NewContext
) -> None:
    context = new_context(tiny())
    context.abilities = replace(context.abilities, can_rollback=False, max_rollback=0)
    with pytest.raises(UnsupportedError, match="cannot take tokens back, which drafting needs"):
        resolve(context, DraftConfig(f"universal:{tiny_path()}"))


#
# the command line
#


@pytest.mark.usefixtures("target")  # where the text cannot depend on the width of a pass
def test_generate_drafts_with_a_second_model(tiny_path: TinyPath) -> None:
    path = tiny_path(qtype="Q8_0", late_scale=0.01)
    small = tiny_path(qtype="Q8_0", late_scale=0.01, drop_blocks=(2, 3))
    other = tiny_path(qtype="Q8_0", late_scale=0.01, drop_blocks=(2, 3), vocab="reversed")
    common = ["generate", path, "-p", "the king", "-n", "16", "--temp", "0", "-t", "1", "--json"]
    common += ["-c", "256", "--draft-max", "3", "--draft-p-min", "0"]
    texts = set()
    for way, name in (
        (["--draft", f"model:{small}"], "model"),
        (["--draft", f"ngram+model:{small}"], "ngram+model"),
        (["--draft", "model", "-o", f"path={small}"], "model"),
        (["--draft", f"universal:{other}", "-o", "mode=shared"], "universal"),
    ):
        made = run(*common, *way).json
        assert made["draft"] == name and made["n_accepted"] > 0
        texts.add(made["text"])
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (["--draft", "model"], 1, "the drafter model needs a file: model:FILE"),
        (["--draft", "ngram:a"], 1, "the drafter ngram takes no file, got ngram:a"),
        (["--draft", "model:nowhere.gguf"], 1, "nowhere.gguf"),
        (["--draft", "model:a", "-o", "path=b"], 1, "is given two files, a and b"),
        (["--draft", "universal:a", "-o", "mode=x"], 1, "mode=x: the value is one of text, shared"),
        (["--draft", "nope:a"], 2, "'nope' is none of: auto, off, "),
    ],
)
def test_wrong_drafts_are_one_sentence(
    tiny_path: TinyPath, options: list[str], status: int, message: str
) -> None:
    outcome = run("generate", tiny_path(), "-p", "the", "-n", "2", "-t", "1", *options)
    assert outcome.status == status and outcome.traceback is None
    assert message in outcome.stderr.splitlines()[-1] and outcome.stdout == ""


#
# real models
#

PROMPT = "The three most important things to know about bread are"


def completes(target: Path, draft: str, *options: str) -> tuple[Any, Any]:
    """Return the results with these drafts and of plain decoding."""
    common = ["generate", target, "-p", PROMPT, "-n", "24", "--temp", "0", "-t", "1", "--json"]
    limit = ("--draft-max", "3", "--draft-p-min", "0.3")
    return run(*common, "--draft", draft, *limit, *options).json, run(
        *common, "--draft", "off"
    ).json


@pytest.mark.real
@pytest.mark.parametrize(
    ("target", "draft"),
    [
        (("smollm2-135m", "q8_0"), ("model", "smollm2-135m", "q4_0")),
        (("gemma3-270m", "q8_0"), ("universal", "smollm2-135m", "q4_0")),
        (("smollm2-135m", "q8_0"), ("universal", "gemma3-270m", "q4_0")),
    ],
    ids=lambda names: "-".join(names),
)
def test_real_models_draft_for_each_other(
    target: tuple[str, str], draft: tuple[str, str, str], real_model: RealModel
) -> None:
    path = real_model(*target)
    with Model(path) as loaded, loaded.context(n_ctx=256, n_threads=1) as context:
        require_exact(context)
    made, plain = completes(path, f"{draft[0]}:{real_model(*draft[1:])}")
    assert made["text"] == plain["text"]
    assert made["n_accepted"] > 0.3 * made["n_drafted"] > 0
