"""Draft heads in files: they draft what EAGLE-3 says they draft, wherever a text comes from, and a
file that does not fit is refused with a sentence."""

import gc
from functools import partial
from types import SimpleNamespace

import command_line
import numpy as np
import pytest
import tiny_head
from drafts import sources_of
from gguf import GGUFReader
from head_oracle import (
    GREEDY,
    LONG_PROMPT,
    PROMPT,
    SEEDED,
    Oracle,
    attended,
    drafter_of,
    drawn_steps,
    fed_forward,
    followed_turns,
    knowing_head,
    normed,
    require_all,
    require_no_model,
    require_refused,
    require_side_by_side,
    steps,
    steps_with_gaps,
    tokens_of,
)

from pyselfspec import Completion
from pyselfspec.bench.pass_times import time_passes
from pyselfspec.errors import ArgumentError, ModelFileError
from pyselfspec.gguf.heads import HeadFormat
from pyselfspec.runtime.draft_head import DraftHead
from pyselfspec.runtime.passes import Pass, Rows
from pyselfspec.speculate.drafters import head, ngram
from pyselfspec.speculate.drafters._combined import CombinedDrafter
from pyselfspec.testing.conformance import DrafterConformance
from pyselfspec.testing.fake_context import state
from tools.models import tiny_vocab

# A model whose next token depends mostly on the last one: there is something to be right about.
MODEL = {"late_scale": 0.25, "late_from": 0}


# --- files -------------------------------------------------------------------------------------

KINDS = {
    "own embedding": ({}, {}),
    "shared embedding": ({"own_embedding": False, "seed": 2}, {"norm_before_residual": True}),
    "own tokens": (
        {"n_embd": 96, "n_head": 3, "tokens": range(3, 317, 2), "norm_before_fc": True},
        {},
    ),
}


@pytest.fixture(scope="module")
def model(tiny):
    return tiny(**MODEL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("heads")


@pytest.fixture(scope="module")
def knowing(tiny_path, folder):
    """A head that is often right, quantized."""
    return knowing_head(tiny_path(**MODEL), folder)


@pytest.fixture
def context(new_context, model):
    return new_context(model)


# --- what a head computes, by itself -----------------------------------------------------------


class Eagle(Oracle):
    def __init__(self, context, weights, embedding, norm_before_residual=False):
        self._context = context
        self._w = {name.removeprefix("blk.0."): data for name, data in weights.items()}
        self._embedding = weights.get("token_embd.weight", embedding)
        self._norm_before_residual = norm_before_residual

    def rows(self, text):
        self._context.sequence().drop()
        left = self._context.decode(text[:-1], hidden_at=tiny_head.BLOCKS, outputs="none").hidden
        features = np.asarray(left, np.float64)
        if "enc.output_norm.weight" in self._w:
            features = normed(features, self._w["enc.output_norm.weight"])
        return list(text[1:]), features @ self._w["fc.weight"].T

    def run(self, tokens, given):
        w = self._w
        states = normed(given, w["attn_norm_2.weight"])
        x = np.hstack([normed(self._embedding[tokens], w["attn_norm.weight"]), states])
        residual = states[-1] if self._norm_before_residual else given[-1]
        y = residual + attended(x, w)
        z = normed(y, w["ffn_norm.weight"])
        parts = (w[f"ffn_{part}.weight"] for part in ("gate", "up", "down"))
        left = y + fed_forward(z, *parts)
        own = normed(left, w["output_norm.weight"]) @ w["output.weight"].T
        logits = np.full(len(self._embedding), -np.inf)
        logits[w.get("d2t", np.arange(len(own)))] = own
        return left, logits


@pytest.fixture(params=KINDS)
def kind(request, folder, new_context, model, tiny_path):
    """A head of each kind, and its oracle."""
    of_weights, of_file = KINDS[request.param]
    weights = tiny_head.random_weights(**of_weights)
    path = tiny_head.write(folder / f"{request.param}.gguf", weights, **of_file)
    tensors = GGUFReader(tiny_path(**MODEL)).tensors
    embedding = next(np.array(t.data) for t in tensors if t.name == "token_embd.weight")
    return SimpleNamespace(
        path=path, oracle=Eagle(new_context(model, n_batch=256), weights, embedding, **of_file)
    )


@pytest.mark.sanitized
def test_drafts_are_those_of_the_paper(context, kind):
    found = steps(context, kind.path, sampling=SEEDED)
    assert all(len(step.draft.tokens) == 4 for step in found[:-4])
    require_all(kind.oracle, PROMPT, found)


@pytest.mark.sanitized
def test_drawn_tokens_are_drawn_from_what_the_head_computes(context, kind):
    """Over the vocabulary of the model, also where the head has one of its own."""
    found = drawn_steps(context, kind.path)
    drawn = [each for step in found for each in step.draft.tokens]
    assert drawn and all(each.distribution[each.token] > 0 for each in drawn)
    assert any(each.token != each.distribution.argmax() for each in drawn)
    require_all(kind.oracle, PROMPT, found)


@pytest.mark.parametrize("arch", ["gemma3", "qwen3moe"])
def test_models_with_windows_and_experts_have_heads_too(new_context, tiny, folder, arch):
    """The text grows longer than the window."""
    model = tiny(arch)
    weights = tiny_head.random_weights(seed=3)
    path = tiny_head.write(folder / f"{arch}.gguf", weights)
    oracle = Eagle(new_context(model), weights, None)
    found = steps(new_context(model), path, n_predict=40)
    require_all(oracle, PROMPT, found)
    assert tokens_of(found) == tokens_of(steps(new_context(model), None, n_predict=40))


@pytest.mark.sanitized
def test_a_second_turn_and_another_text_are_followed(context, kind):
    """Tokens in the K/V cache are not evaluated again, except those that the head has not read."""
    turn, other = followed_turns(context, kind.path, kind.oracle)
    assert turn == 1 and 20 <= other <= 22


@pytest.mark.sanitized
def test_texts_side_by_side_have_their_own_drafts(new_context, model, kind):
    require_side_by_side(new_context, model, kind.path, kind.oracle, SEEDED)


@pytest.mark.sanitized
def test_long_prompts_are_followed_in_parts(new_context, model, kind):
    context = new_context(model, n_batch=24)
    require_all(kind.oracle, LONG_PROMPT, steps(context, kind.path, LONG_PROMPT, n_predict=12))


def test_steps_without_drafts_are_caught_up_with(context, kind):
    found = steps_with_gaps(context, kind.path, PROMPT, SEEDED)
    require_all(kind.oracle, PROMPT, found)


# --- the text ----------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("n_max", [1, 4, 9])
def test_text_is_plain_text(new_context, model, knowing, sampling, n_max):
    plain = tokens_of(steps(new_context(model), None, sampling=sampling, n_predict=60))
    found = steps(new_context(model), knowing, n_max=n_max, sampling=sampling, n_predict=60)
    assert tokens_of(found) == plain
    assert any(step.n_accepted for step in found)
    if n_max > 1 and sampling is SEEDED:
        assert any(0 < step.n_accepted < step.n_drafted for step in found)


def test_a_head_can_be_right_always_and_never(new_context, tiny, tiny_path, folder):
    """A model without effective blocks says what the head expects of it; a head that knows only
    tokens which never come is always wrong."""
    bare = {"zero_attn": range(4), "zero_ffn": range(4)}
    target = {t.name: np.array(t.data) for t in GGUFReader(tiny_path(**bare)).tensors}
    plain = tokens_of(steps(new_context(tiny(**bare)), None))
    right = tiny_head.write(folder / "right.gguf", tiny_head.knowing_weights(target), n_head_kv=2)
    found = steps(new_context(tiny(**bare)), right)
    assert tokens_of(found) == plain
    assert all(step.n_accepted == step.n_drafted == 4 for step in found[:-1])
    others = sorted({*range(3, len(target["token_embd.weight"]))} - {*plain})
    weights = tiny_head.knowing_weights(target, tokens=others)
    wrong = tiny_head.write(folder / "wrong.gguf", weights, n_head_kv=2)
    found = steps(new_context(tiny(**bare)), wrong)
    assert tokens_of(found) == plain
    assert all(step.n_accepted == 0 for step in found)
    assert all({*step.draft.token_ids} <= {*others} for step in found)


@pytest.mark.parametrize("n", range(1, 8))
def test_a_text_ends_inside_a_draft(new_context, model, knowing, n):
    plain = tokens_of(steps(new_context(model), None))
    assert tokens_of(steps(new_context(model), knowing, n_max=8, n_predict=n)) == plain[:n]
    seen = []

    def ends(token):
        seen.append(token)
        return len(seen) == n

    found = steps(new_context(model), knowing, n_max=8, consume=ends)
    assert tokens_of(found) == seen == plain[:n]


def test_a_prompt_of_one_token_has_no_states_yet(new_context, model, knowing):
    found = steps(new_context(model), knowing, [300])
    assert tokens_of(found) == tokens_of(steps(new_context(model), None, [300]))
    assert found[0].n_drafted == 0
    assert found[1].n_drafted > 0


def test_it_joins_with_copies(new_context, model, knowing):
    """Behind copies it does not draft; it goes on following all the same."""
    context, prompt = new_context(model), PROMPT * 3
    drafter = CombinedDrafter([ngram.make(context, ngram.Options())], drafter_of(context, knowing))
    found = steps(context, None, prompt, drafter=drafter)
    assert tokens_of(found) == tokens_of(steps(new_context(model), None, prompt))
    sources = {source for step in found for source in sources_of(step.draft)}
    assert sources == {"ngram", "head"}


def test_a_head_without_room_forgets_what_is_gone(new_context, model, knowing):
    """Its K/V of a text whose sequence was dropped makes room for another."""
    context = new_context(model)
    prompt = [1, *(270 + i * i % 41 for i in range(180))]
    steps(context, knowing, prompt, n_predict=8)
    context.sequence(0).drop()
    found = steps(context, knowing, prompt[::-1], n_predict=24, seq=context.sequence(1))
    assert any(step.n_accepted for step in found)


def test_its_costs_can_be_measured(context, knowing):
    """Until then they are those of the weights that it reads."""
    drafter = drafter_of(context, knowing)
    estimated = drafter.costs().at(0)
    read = drafter._heads.head.file.n_bytes_read
    share = read / context.model.file.weight_bytes()
    assert estimated.token_us / estimated.plain_us == pytest.approx(share)
    assert 0 < share < 1
    measured = time_passes(context, drafter, lambda _share: None, 1).costs.at(8)
    assert measured.token_us > 0
    assert measured.verify_us == measured.full_us


@pytest.mark.sanitized
@pytest.mark.parametrize("wanted", [[0, 1, 2, 3, 4], [4], [0, 2], [1]])
def test_the_likeliest_token_by_itself_is_that_of_all_logits(context, kind, wanted):
    """Tokens, probabilities and remaining states are those of the same rows with all logits."""
    tokens = PROMPT[:6]
    left = context.decode(tokens[:-1], hidden_at=tiny_head.BLOCKS, outputs="none").hidden
    with DraftHead(context, kind.path) as opened:
        given = opened.fuse(np.asarray(left))
        sequence = opened.sequence(0)
        outputs = ["all" if i in wanted else "none" for i in range(5)]
        rows = Rows.joined(Rows.of(0, i, [tokens[i + 1]], each) for i, each in enumerate(outputs))
        found = {}
        for what in ("logits", "best", "logits"):
            states = opened.decode(rows, given, what)
            found[what] = states, [opened.argmax(i) for i in wanted]
            sequence.rollback_if_open(0)
        assert np.array_equal(found["best"][0], found["logits"][0])
        for (token, p), (same, close) in zip(found["best"][1], found["logits"][1], strict=True):
            assert token == same
            assert p == pytest.approx(close, rel=1e-4)


def test_features_of_another_shape_are_refused(context, kind):
    """Before, the library read past their end."""
    with DraftHead(context, kind.path) as opened:
        n = opened.file.n_features
        for shape in ((2, n - 1), (2, n + 1), (n,), (opened.n_batch + 1, n)):
            with pytest.raises(ArgumentError, match="features have shape"):
                opened.fuse(np.zeros(shape, np.float32))
        assert len(opened.fuse(np.zeros((2, n), np.float32))) == 2


@pytest.mark.sanitized
def test_rows_without_outputs_leave_their_keys_and_values(context, kind):
    """A row behind them sees them as it would, had they been finished."""
    tokens = PROMPT[:6]
    left = context.decode(tokens[:-1], hidden_at=tiny_head.BLOCKS, outputs="none").hidden
    with DraftHead(context, kind.path) as opened:
        given = opened.fuse(np.asarray(left))
        found = []
        for outputs in ("none", "all"):
            opened.sequence(0).rollback_if_open(0)
            opened.decode(Rows.of(0, 0, tokens[1:5], outputs), given[:4], opened.best_head)
            states = opened.decode(Rows.of(0, 4, tokens[5:], "last"), given[4:], "logits")
            found.append((states, opened.argmax(0)))
        assert np.array_equal(found[0][0], found[1][0])
        assert found[0][1] == found[1][1]


@pytest.mark.sanitized
def test_a_numbering_of_its_own_is_no_short_list(new_context, model, folder):
    """The head numbers all tokens of the model differently: ids of a short list would be other
    rows."""
    tokens = np.random.default_rng(0).permutation(model.n_vocab)
    weights = tiny_head.random_weights(n_embd=96, n_head=3, tokens=[int(each) for each in tokens])
    path = tiny_head.write(folder / "permuted.gguf", weights)
    with DraftHead(new_context(model), path) as opened:
        assert opened.best_head == "best"
        assert not opened.can_shorten


def test_drafts_ask_for_the_likeliest_token(context, folder, monkeypatch):
    of_weights, _ = KINDS["own tokens"]
    path = tiny_head.write(folder / "asked.gguf", tiny_head.random_weights(**of_weights))
    asked, decode = [], DraftHead.decode

    def watched(opened, rows, states, head="logits", among=None, **options):
        asked.append((head, any(rows.outputs)))
        return decode(opened, rows, states, head, among, **options)

    monkeypatch.setattr(DraftHead, "decode", watched)
    steps(context, path)
    assert {head for head, wanted in asked if wanted} == {"best"}


def test_after_the_likeliest_token_there_are_no_logits(context, kind):
    with DraftHead(context, kind.path) as opened:
        left = context.decode(PROMPT[:2], hidden_at=tiny_head.BLOCKS, outputs="none").hidden
        given = opened.fuse(np.asarray(left))
        opened.decode(Rows.of(0, 0, PROMPT[1:3], "last"), given, "best")
        with pytest.raises(ArgumentError, match="no logits in row 1"):
            opened.logits_of(1)


@pytest.mark.sanitized
def test_states_of_several_blocks_come_side_by_side(new_context, model):
    """And prepared graphs that leave them are not taken for those that do not."""
    context, other = new_context(model), new_context(model)
    rows = Rows.of(0, 0, PROMPT)
    alone = []
    for block in (3, 1, 4):
        other.sequence().drop()
        alone.append(other.run(rows, Pass(leave=block)).hidden.numpy())
    want = other.run(Rows.of(0, 10, [285, 286])).logits
    for _ in range(3):
        context.sequence().drop()
        states = context.run(rows, Pass(leave=(3, 1, 4))).hidden.numpy()
        assert np.array_equal(states, np.hstack(alone))
        for leave in (None, (1, 2, 3)):
            context.sequence().rollback(10)
            decoded = context.run(Rows.of(0, 10, [285, 286]), Pass(leave=leave))
            assert np.array_equal(decoded.logits, want)
            assert (decoded.hidden is None) == (leave is None)


def test_states_that_leave_the_last_block_are_read_too(new_context, model, folder):
    path = tiny_head.write(folder / "last.gguf", tiny_head.random_weights(), blocks=(1, 3, 4))
    found = steps(new_context(model), path)
    assert tokens_of(found) == tokens_of(steps(new_context(model), None))


@pytest.mark.sanitized
def test_a_closed_context_has_closed_its_head(model, folder):
    path = tiny_head.write(folder / "closed.gguf", tiny_head.random_weights())
    with model.context(n_ctx=256, n_batch=64, n_threads=1) as context:
        drafter = drafter_of(context, path)
        opened = drafter._heads.head._context
        assert drafter_of(context, path)._heads.head._context is opened  # one for all texts
    assert opened.closed
    del drafter, opened
    gc.collect()


# --- the protocol, on a scripted model ---------------------------------------------------------


class FakeHead:
    """Drafts what a masked pass would, and asserts that it is given the states of the text."""

    blocks = (1, 3)
    n_batch = 8
    best_head = "logits"

    def __init__(self, context, n_first):
        self.n_first = n_first
        self.kind = HeadFormat(n_first=n_first)
        self._context = context
        self._rows = {}
        self._texts = []
        self.file = SimpleNamespace(
            n_bytes_read=100, file=SimpleNamespace(path=SimpleNamespace(name="fake"), n_bytes=1)
        )

    def sequence(self, seq_id):
        rows = self._rows.setdefault(seq_id, [])
        return SimpleNamespace(
            seq_id=seq_id, rollback_if_open=lambda n: rows.__delitem__(slice(n, None))
        )

    def fuse(self, features):
        return features

    def decode(self, rows, states, head="logits", among=None, block=0):
        assert block == 0
        held = self._rows[rows.seq_ids[0]]
        text = self._context.sequence(rows.seq_ids[0]).held
        assert rows.pos[0] == len(held)
        for pos, token, given in zip(rows.pos, rows.tokens, states, strict=True):
            n_seen = pos + 1 - self.n_first
            if n_seen <= len(text):
                want = [x for block in self.blocks for x in state(text[:n_seen], block)]
                assert np.array_equal(given, np.array(want, np.float32) * (n_seen > 0))
            held.append(token)
        start = text[: 1 - self.n_first]
        both = min(len(text), len(start) + len(held))
        assert [*start, *held][:both] == text[:both]
        self._texts = [[*start, *held[: pos + 1]] for pos in rows.pos]
        return states[[i for i, wanted in enumerate(rows.outputs) if wanted]]

    def argmax(self, row):
        law = self._context.model.target(self._texts[row])
        token = int(np.argmax(law))
        return token, float(law[token])


class FakeSharedHead(FakeHead):
    """A head that attends to the cells of the model."""

    def __init__(self, context, n_first):
        super().__init__(context, n_first)
        self.kind = HeadFormat(shares_cells=True)
        self._left = np.full((1, 1), -1, np.float32)

    def sequence(self, seq_id):
        return SimpleNamespace(seq_id=seq_id)  # it has no cells to give back

    def decode(self, rows, states, head="logits", among=None, block=0):
        text = self._context.sequence(rows.seq_ids[0]).held
        assert rows.pos == (len(text),)
        if states is not self._left:
            want = [x for block in self.blocks for x in state(text, block)]
            assert np.array_equal(states, [np.array(want, np.float32)])
            self._texts = [text]
        self._texts = [[*self._texts[0], rows.tokens[0]]]
        return self._left


class FakeBlockHead(FakeHead):
    """A head that drafts blocks: each row gives the token that follows those of the rows before."""

    def __init__(self, context, n_first):
        super().__init__(context, n_first)
        self.kind = HeadFormat(n_block=5, first_row=1)

    def keep(self, rows, features):
        held, text = self._rows[rows.seq_ids[0]], self._context.sequence(rows.seq_ids[0]).held
        assert rows.pos[0] == len(held)
        held += rows.tokens
        assert held == text[: len(held)]
        for pos, given in zip(rows.pos, features, strict=True):
            want = [x for block in self.blocks for x in state(text[: pos + 1], block)]
            assert np.array_equal(given, np.array(want, np.float32))

    def draft_block(self, rows, head="logits", among=None):
        held, text = self._rows[rows.seq_ids[0]], self._context.sequence(rows.seq_ids[0]).held
        assert rows.pos[0] == len(held) == len(text)
        held += rows.tokens
        self._texts = [[], [*text, rows.tokens[0]]]
        while len(self._texts) < len(rows):
            last = len(self._texts) - 1
            self._texts.append([*self._texts[-1], self.argmax(last)[0]])


class TestHead(DrafterConformance):
    n_first = 0
    fake = FakeHead

    def make(self, context):
        fake = partial(self.fake, context, self.n_first)
        if not hasattr(context, "heads"):
            context.heads = head.Heads(context, fake())
        return head.HeadDrafter(context, context.heads)


class TestHeadWithARowBeforeAllStates(TestHead):
    n_first = 1


class TestHeadWithoutCells(TestHead):
    fake = FakeSharedHead


class TestHeadOfBlocks(TestHead):
    fake = FakeBlockHead


# --- files that do not fit ---------------------------------------------------------------------


def written(path, of_weights=None, changes=None, **of_file):
    weights = tiny_head.random_weights(**(of_weights or {}))
    for name, data in (changes or {}).items():
        if data is None:
            del weights[name]
        else:
            weights[name] = data
    return tiny_head.write(path, weights, **of_file)


OWN = {"tokens": range(3, 300)}
BROKEN = {
    "two blocks": ({"n_layer": 2}, "has 2 blocks|block_count is 2"),
    "nothing to rotate": ({"n_rot": 0}, "rope.dimension_count is 0"),
    "two states": ({"blocks": (1, 2)}, "target_layers is .*not 3 blocks"),
    "a token outside": (
        {"of_weights": OWN, "changes": {"d2t": np.arange(297) + 100}},
        "'d2t' names token 317, allowed is 0 to 316",
    ),
    "tokens as floats": ({"of_weights": OWN, "types": {"d2t": "F16"}}, "'d2t' is F16 .*I64"),
    "a norm of half precision": (
        {"types": {"blk.0.attn_norm_2.weight": "F16"}},
        "norms, biases, scales must be F32",
    ),
    "whole numbers as weights": ({"types": {"fc.weight": "I32"}}, "'fc.weight' is I32"),
    "no fc": ({"changes": {"fc.weight": None}}, "cannot load this model: .*fc.weight"),
}
FOREIGN = {
    "width": ({"n_embd_target": 128}, "states of 128 values, but .* has 64"),
    "block behind the last": ({"blocks": (1, 3, 5)}, "block 5, but .* has states at 1 to 4"),
    "block before the first": ({"blocks": (0, 1, 2)}, "block 0, but .* has states at 1 to 4"),
    "vocabulary": ({"n_vocab": 320}, "vocabulary of 320 tokens, but .* has 317"),
    "embedding": (
        {"changes": {"token_embd.weight": np.zeros((300, 64), np.float32)}},
        "embeds 300 tokens, but .* has 317",
    ),
    "embedding that is shared": (
        {"of_weights": {"n_embd": 96, "n_head": 3, "own_embedding": False}},
        "has no token_embd.weight and cannot use that of .*: states have 96 and 64",
    ),
    "output that is shared": (
        {"of_weights": OWN, "changes": {"output.weight": None}},
        "tokens of its own .* but no output.weight",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_head_is_refused(context, tmp_path, case):
    changes, why = BROKEN[case]
    path = written(tmp_path / "head.gguf", **changes)
    require_refused(context, path, ModelFileError, why)


@pytest.mark.parametrize("case", FOREIGN)
def test_a_head_for_another_model_is_refused(context, tmp_path, case):
    changes, why = FOREIGN[case]
    path = written(tmp_path / "head.gguf", **changes)
    text = require_refused(context, path, ArgumentError, why)
    assert text.endswith("take the head that was made for this model")


def test_another_token_of_the_vocabulary_is_named(context, tmp_path, monkeypatch):
    add = tiny_vocab.spm_vocab

    def other(n_vocab):
        texts, scores, types = add(n_vocab)
        texts[280] = "other"
        return texts, scores, types

    monkeypatch.setattr(tiny_vocab, "spm_vocab", other)
    with pytest.raises(ArgumentError, match="token 280 is b'other' and b"):
        drafter_of(context, written(tmp_path / "head.gguf"))


def test_no_file_and_no_head_are_told_apart(context, tmp_path, tiny_path):
    with pytest.raises(ArgumentError, match="this model has no draft head"):
        head.make(context, head.Options())
    with pytest.raises(ModelFileError, match="no such file"):
        drafter_of(context, tmp_path / "none.gguf")
    with pytest.raises(ModelFileError, match="architecture llama, not a draft head"):
        drafter_of(context, tiny_path(**MODEL))


def test_the_command_line_drafts_with_a_head(tiny_path, knowing):
    args = ("generate", tiny_path(**MODEL), "-p", "the other", "-n", "24", "--temp", "0", "-t", "1")
    plain = command_line.run(*args, "--draft", "off", "--json").json
    found = command_line.run(
        *args, "--draft", "head", "-o", f"path={knowing}", "--draft-max", "3", "--json"
    ).json
    assert found["tokens"] == plain["tokens"]
    assert found["sources"]["head"]["n_accepted_at"][0] > 0
    refused = command_line.run(*args, "--draft", "head", "-o", "path=none.gguf")
    assert (refused.status, refused.stdout) == (1, "")
    assert refused.stderr == "Error: none.gguf: no such file\n"


def test_a_head_is_no_model_to_write_with(knowing):
    require_no_model(knowing)


def test_a_refused_head_is_refused_before_any_text(context, tmp_path):
    with pytest.raises(ArgumentError, match="this model has no draft head"):
        Completion(context, "a", draft="head")
    assert context.n_decodes == 0
