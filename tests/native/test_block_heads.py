"""Heads in files that draft a block of tokens in one pass (DFlash, DSpark, DFlash2): they draft
what an oracle in numpy says, wherever a text comes from, and a file that does not fit is refused
with a sentence."""

from dataclasses import replace
from types import SimpleNamespace

import command_line
import numpy as np
import pytest
import tiny_assistant
import tiny_dflash
import tiny_nextn
from dflash_oracle import Block
from gguf import GGUFReader
from head_oracle import (
    COUNTED,
    GREEDY,
    LONG_PROMPT,
    PROMPT,
    SEEDED,
    drafter_of,
    drawn_steps,
    each_sampling,
    followed_turns,
    require_all,
    require_no_model,
    require_refused,
    require_side_by_side,
    steps,
    steps_with_gaps,
    tokens_of,
)
from tiny_dflash import DFLASH, KINDS

from pyselfspec import Completion, Fixed, Model
from pyselfspec.bench.pass_times import time_passes
from pyselfspec.errors import ArgumentError, ModelFileError, UnsupportedError
from pyselfspec.runtime.draft_head import DraftHead
from pyselfspec.runtime.passes import Rows
from pyselfspec.speculate.drafters import head

MODEL = {"late_scale": 0.25, "late_from": 0}
NEARLY = 0.55  # a gain of the sublayers with which a counting model often does not count
COUNTING = next(kind for kind in KINDS if kind.name == "dspark")
FROM_SECOND = next(kind for kind in KINDS if kind.name == "dspark from the second row")
SCORES = next(kind for kind in KINDS if kind.name == "dflash2")
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("blocks")


@pytest.fixture(scope="module")
def model(tiny):
    return tiny(**MODEL)


@pytest.fixture
def context(new_context, model):
    return new_context(model)


@pytest.fixture(scope="module")
def made(folder, tiny_path):
    """Return a head of a kind with random weights, and a function that makes its oracle."""
    tensors = {t.name: np.array(t.data) for t in GGUFReader(tiny_path(**MODEL)).tensors}
    embedding, output = tensors["token_embd.weight"], tensors["output.weight"]

    def made(kind):
        weights = tiny_dflash.random_weights(kind)
        path = tiny_dflash.write(folder / f"{kind.name}.gguf", weights, kind)
        return SimpleNamespace(
            path=path, oracle=lambda context: Block(context, weights, kind, embedding, output)
        )

    return made


@pytest.fixture(scope="module")
def counting(folder):
    """Return a model that counts, or nearly does, and a head that counts."""
    opened = {}

    def counting(gain, kind=COUNTING):
        if gain not in opened:
            weights, _ = tiny_assistant.counting_weights(gain=gain)
            opened[gain] = Model(tiny_assistant.write_model(folder / f"{gain}.gguf", weights))
        weights = tiny_dflash.counting_weights(kind)
        path = tiny_dflash.write(folder / f"counting {kind.name}.gguf", weights, kind)
        return opened[gain], path

    yield counting
    for model in opened.values():
        model.close()


@each_kind
@each_sampling
def test_drafts_are_those_of_the_oracle(new_context, model, made, kind, sampling):
    """The text grows longer than the window; a block is shorter than the controller's draft."""
    of_kind = made(kind)
    found = steps(new_context(model), of_kind.path, sampling=sampling, n_predict=40, n_max=9)
    require_all(of_kind.oracle(new_context(model, n_batch=256)), PROMPT, found)
    n_most = kind.n_block - (not kind.has_markov or kind.from_first is False)
    assert {step.n_drafted for step in found[:-9]} == {n_most}
    plain = steps(new_context(model), None, sampling=sampling, n_predict=40)
    assert tokens_of(found) == tokens_of(plain)


@pytest.mark.parametrize("kind", [COUNTING, FROM_SECOND], ids=lambda kind: kind.name)
def test_a_head_that_knows_is_always_right(new_context, counting, kind):
    model, path = counting(0.0, kind)
    found = steps(new_context(model), path, [*COUNTED], n_predict=40, n_max=9)
    assert tokens_of(found) == [*range(COUNTED.stop, COUNTED.stop + 40)]
    assert all(step.n_accepted == step.n_drafted >= 4 for step in found[1:-1])


@each_sampling
def test_rejected_tokens_leave_no_trace(new_context, counting, sampling):
    model, path = counting(NEARLY)
    plain = steps(new_context(model), None, sampling=sampling, n_predict=60)
    found = steps(new_context(model), path, sampling=sampling, n_predict=60)
    assert tokens_of(found) == tokens_of(plain)
    n_drafted = sum(step.n_drafted for step in found)
    assert 0.05 * n_drafted < sum(step.n_accepted for step in found) < 0.9 * n_drafted


@pytest.mark.parametrize("gain", [0.0, 6.0])
def test_hybrid_models_have_such_heads_too(new_context, folder, gain):
    """Rejected tokens are removed with snapshots of their states."""
    weights = tiny_nextn.counting_weights(tiny_nextn.QWEN35, gain)
    path = tiny_nextn.write(folder / f"hybrid {gain}.gguf", weights, tiny_nextn.QWEN35)
    kind = replace(COUNTING, name="hybrid", n_block=4)
    counting = tiny_dflash.counting_weights(kind)
    own = tiny_dflash.write(folder / "hybrid head.gguf", counting, kind)
    with Model(path) as model:
        prompt = [*COUNTED, 70, 71, 20, 21] if gain else [*COUNTED]
        for sampling in (GREEDY, SEEDED):
            plain = steps(new_context(model), None, prompt, sampling=sampling, n_predict=40)
            found = steps(new_context(model), own, prompt, sampling=sampling, n_predict=40)
            assert tokens_of(found) == tokens_of(plain)
        n_drafted = sum(step.n_drafted for step in found)
        n_accepted = sum(step.n_accepted for step in found)
        assert 0 < n_accepted < n_drafted if gain else 0 < n_accepted


def test_a_draft_ends_where_it_is_unsure(new_context, model, made):
    """The probability of each row decides, as for other heads."""
    whole, sure = (
        steps(new_context(model), made(DFLASH).path, controller=Fixed(4, p_min=p_min))[0].draft
        for p_min in (0, 0.6)
    )
    n_sure = next(i for i, p in enumerate(whole.probs) if p < 0.6)
    assert 0 < n_sure < len(whole.tokens)
    assert sure.token_ids == whole.token_ids[:n_sure]


@pytest.mark.sanitized
def test_a_second_turn_and_another_text_are_followed(new_context, context, made):
    """Tokens in the K/V cache are not evaluated again, except tokens that the head has not read."""
    of_kind = made(KINDS[3])
    oracle = of_kind.oracle(new_context(context.model, n_batch=256))
    assert followed_turns(context, of_kind.path, oracle) == [1, 20]


@pytest.mark.sanitized
def test_texts_side_by_side_have_their_own_drafts(new_context, model, made):
    of_kind = made(COUNTING)
    oracle = of_kind.oracle(new_context(model, n_batch=256))
    require_side_by_side(new_context, model, of_kind.path, oracle, SEEDED)


def test_long_prompts_and_steps_without_drafts_are_followed(new_context, model, made):
    of_kind = made(DFLASH)
    found = steps_with_gaps(new_context(model, n_batch=24), of_kind.path, LONG_PROMPT)
    require_all(of_kind.oracle(new_context(model, n_batch=256)), LONG_PROMPT, found)


@pytest.mark.sanitized
def test_blocks_reach_over_the_end_of_a_context(new_context, counting):
    """And a block may be wider than the passes of the model."""
    model, path = counting(0.0)
    options = {"n_ctx": 256, "n_seq_max": 2, "n_batch": 4}
    prompt = [*range(3, 240)]
    found = steps(new_context(model, **options), path, prompt, n_predict=19, n_max=3)
    assert tokens_of(found) == [*range(240, 259)]


def test_a_short_list_shortens_its_vocabulary(new_context, model, made):
    context = new_context(model)
    drafter = head.make(context, head.Options(made(KINDS[1]).path, shortlist=150))
    found = steps(context, None, n_predict=40, drafter=drafter)
    assert tokens_of(found) == tokens_of(steps(new_context(model), None, n_predict=40))
    assert drafter._heads.head.can_shorten


@pytest.mark.sanitized
@pytest.mark.parametrize("kind", [k for k in KINDS if not k.n_candidates], ids=lambda k: k.name)
def test_the_likeliest_token_without_logits_is_that_of_all_logits(context, made, kind):
    left = context.decode(PROMPT, hidden_at=tiny_dflash.BLOCKS, outputs="none").hidden.numpy()
    with DraftHead(context, made(kind).path) as opened:
        n, found = len(PROMPT), {}
        opened.keep(Rows.of(0, 0, PROMPT, "none"), left)
        block = Rows.of(0, n, [290, *[tiny_dflash.MASK] * (kind.n_block - 1)])
        for what in ("logits", "best"):
            opened.draft_block(block, what)
            found[what] = [opened.argmax(i) for i in range(kind.n_block)]
            opened.sequence(0).rollback(n)
        for (token, p), (same, close) in zip(found["best"], found["logits"], strict=True):
            assert token == same
            assert p == pytest.approx(close, rel=1e-4)


@pytest.mark.sanitized
def test_scored_candidates_are_drawn_from(new_context, model, made):
    of_kind = made(SCORES)
    found = drawn_steps(new_context(model), of_kind.path)
    require_all(of_kind.oracle(new_context(model, n_batch=256)), PROMPT, found)
    drawn = [token for step in found for token in step.draft.tokens]
    assert all(np.count_nonzero(token.distribution) <= SCORES.n_candidates for token in drawn)


def test_candidates_are_scored_in_order(context, made):
    """Each after a candidate of the row before it, in a pass with logits."""
    left = context.decode(PROMPT, hidden_at=tiny_dflash.BLOCKS, outputs="none").hidden.numpy()
    n, masks = len(PROMPT), [tiny_dflash.MASK] * SCORES.n_block
    with DraftHead(context, made(SCORES).path) as opened:
        opened.keep(Rows.of(0, 0, PROMPT, "none"), left)
        with pytest.raises(ArgumentError, match="there are no logits in row 1"):
            opened.score(1, 290)
        with pytest.raises(ArgumentError, match="9 tokens for a head whose blocks have 8"):
            opened.draft_block(Rows.of(0, n, [290, *masks]))
        block = Rows.of(0, n, [290, *masks[1:]])
        with pytest.raises(ArgumentError, match="needs the logits of all tokens"):
            opened.draft_block(block, "best")
        opened.draft_block(block)
        with pytest.raises(ArgumentError, match="row is 0, but the first row has no candidates"):
            opened.score(0, 290)
        opened.score(1, 290)
        candidates = np.flatnonzero(np.isfinite(opened.logits_of(1)))
        assert len(candidates) == SCORES.n_candidates
        other = next(token for token in range(317) if token not in candidates)
        with pytest.raises(ArgumentError, match=f"token {other} is no candidate of row 1"):
            opened.score(2, other)
        with pytest.raises(ArgumentError, match="no logits in row 8"):
            opened.score(8, candidates[0])
    with DraftHead(context, made(DFLASH).path) as opened:
        with pytest.raises(UnsupportedError, match="this head scores no candidates"):
            opened.score(1, 290)


def test_it_joins_with_copies(new_context, model, made):
    context, prompt = new_context(model), PROMPT * 3
    draft = f"ngram+head:{made(DFLASH).path}"
    text = Completion(context, prompt, n_predict=40, sampling=GREEDY, draft=draft)
    list(text)
    assert text.tokens == tokens_of(steps(new_context(model), None, prompt, n_predict=40))


def test_its_costs_can_be_measured(context, made):
    """Until then, a token costs its part of the weights that a block reads."""
    drafter = drafter_of(context, made(DFLASH).path)
    weights = tiny_dflash.random_weights(DFLASH)
    n_bytes = sum(d.nbytes for name, d in weights.items() if name != "token_embd.weight")
    assert drafter._heads.head.file.n_bytes_read == n_bytes // 4
    assert time_passes(context, drafter, lambda _share: None, 1).costs.at(8).token_us > 0


def test_it_is_no_model_to_write_with(made):
    require_no_model(made(DFLASH).path)


# --- files that do not fit ---------------------------------------------------------------------


def written(path, kind=DFLASH, changes=None, **of_file):
    weights = tiny_dflash.random_weights(kind) | (changes or {})
    weights = {name: data for name, data in weights.items() if data is not None}
    return tiny_dflash.write(path, weights, kind, **of_file)


ONES = np.ones((64, 64), np.float32)
OWN = next(kind for kind in KINDS if kind.name == "own tokens")
WINDOWS = next(kind for kind in KINDS if kind.name == "windows")
BROKEN = {
    "no block size": ({"keys": {"block_size": None}}, "block_size is None, allowed is 2 to 32"),
    "a long block": ({"keys": {"block_size": 33}}, "block_size is 33, allowed is 2 to 32"),
    "a long chain": (
        {"kind": COUNTING, "keys": {"block_size": 17}},
        "block_size is 17, allowed is 2 to 16",
    ),
    "no mask": ({"mask": None}, "mask_token_id is None, which is none of its tokens"),
    "a mask outside": ({"mask": 317}, "mask_token_id is 317, which is none of its tokens"),
    "no blocks to read": ({"keys": {"target_layers": None}}, "target_layers is None, not a list"),
    "heads of two sizes": (
        {"keys": {"attention.value_length": 64}},
        "its heads differ in size .*key_length 32, value_length 64",
    ),
    "heads of another size in windows": (
        {"kind": WINDOWS, "keys": {"attention.key_length_swa": 64}},
        "key_length_swa is 64, which fits none of the attn_k tensors",
    ),
    "blocks with other heads": (
        {"keys": {"attention.head_count_kv": [1, 2, 1]}},
        "its blocks differ in attention.head_count_kv",
    ),
    "another rotation": (
        {"kind": WINDOWS, "keys": {"rope.dimension_count_swa": 16}},
        "differ in rope.dimension_count",
    ),
    "nothing to rotate": ({"keys": {"rope.dimension_count": 0}}, "rope.dimension_count is 0"),
    "wide states": (
        {"keys": {"embedding_length_out": 128}},
        "embedding_length_out is 128, but its states have 64",
    ),
    "no window": (
        {"kind": WINDOWS, "keys": {"attention.sliding_window_pattern": [False] * 3}},
        "sliding_window_pattern names no block",
    ),
    "a token outside": (
        {"kind": OWN, "changes": {"d2t": np.arange(157) + 200}},
        "'d2t' names token 317, allowed is 0 to 316",
    ),
    "narrow tokens": ({"kind": OWN, "types": {"d2t": "int32"}}, "'d2t' is I32 .*I64"),
    "own tokens without an output": (
        {"kind": OWN, "changes": {"output.weight": None}},
        "tokens of its own .* but no output.weight",
    ),
    "no fc": ({"changes": {"fc.weight": None}}, "cannot load this model: .*fc.weight"),
    "a short fc": ({"changes": {"fc.weight": ONES}}, "cannot load this model: .*fc.weight"),
    "half a chain": (
        {"kind": COUNTING, "changes": {"markov_w2.weight": None}},
        "cannot load this model: .*markov_w2.weight",
    ),
    "a rank without a selector": (
        {"keys": {"selector_rank": 4}},
        "selector_rank is 4, but there is no selector_hidden.weight",
    ),
    "a selector without a rank": (
        {"kind": SCORES, "keys": {"selector_rank": None}},
        "selector_rank is None, but there is a selector_hidden.weight",
    ),
    "two ways to choose": (
        {"kind": SCORES, "changes": {"markov_w1.weight": ONES}},
        "has both markov_w1.weight and selector_hidden.weight",
    ),
    "no candidates": (
        {"kind": SCORES, "keys": {"selector_top_k": 0}},
        "selector_top_k is 0, allowed is 1 to 7",
    ),
    "too many candidates": (
        {"kind": SCORES, "keys": {"selector_top_k": 8}},
        "selector_top_k is 8, allowed is 1 to 7",
    ),
    "no kernel": (
        {"kind": SCORES, "keys": {"conv_kernel_size": None}},
        "conv_kernel_size is None, allowed is 1 to 64",
    ),
    "another kernel": (
        {"kind": SCORES, "keys": {"conv_kernel_size": 3}},
        "cannot load this model: .*attn_conv_base",
    ),
    "a group that does not divide": (
        {"kind": SCORES, "keys": {"conv_group_size": 24}},
        "conv_group_size is 24, which does not divide 64",
    ),
    "no group": (
        {"kind": SCORES, "keys": {"conv_group_size": 0}},
        "conv_group_size is 0, allowed is 1 to 64",
    ),
    "a base in half precision": (
        {"kind": SCORES, "types": {"blk.1.ffn_conv_base": "float16"}},
        "'blk.1.ffn_conv_base' is F16, but must be F32",
    ),
    "no successors": (
        {"kind": SCORES, "changes": {"selector_successor.weight": None}},
        "cannot load this model: .*selector_successor.weight",
    ),
    "whole numbers as weights": ({"types": {"fc.weight": "int32"}}, "'fc.weight' is I32"),
}
FOREIGN = {
    "block behind the last": (
        {"keys": {"target_layers": [1, 5]}},
        "block 5, but .* has states at 1 to 4",
    ),
    "vocabulary": ({"n_vocab": 320}, "vocabulary of 320 tokens, but .* has 317"),
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


def test_sizes_of_heads_may_be_left_out(new_context, context, tmp_path):
    """They are then those of llama.cpp."""
    keys = {"attention.key_length": None, "attention.value_length": None}
    found = steps(context, written(tmp_path / "head.gguf", keys=keys))
    assert tokens_of(found) == tokens_of(steps(new_context(context.model), None))


def test_a_head_of_another_width_is_refused(new_context, tiny, made):
    with pytest.raises(ArgumentError, match=r"states of 64 values, but .* has 128"):
        drafter_of(new_context(tiny(n_embd=128)), made(DFLASH).path)


def test_heads_for_deepseek_v4_are_named(context, tmp_path):
    path = written(tmp_path / "head.gguf", keys={"hyper_connection.count": 4})
    why = "a DSpark head with hyper-connections, for DeepSeek V4, which cannot be used yet"
    text = require_refused(context, path, UnsupportedError, why)
    assert text.startswith(str(path))
    refused = command_line.run("generate", path, "-p", "a")
    assert (refused.status, refused.stdout) == (1, "")
    assert refused.stderr.count("\n") == 1
