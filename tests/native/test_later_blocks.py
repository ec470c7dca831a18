"""Heads of several blocks in a model's file: each drafts at a position of its own, with K/V of the
text that are always those of its oracle."""

import random
import re
from dataclasses import replace

import numpy as np
import pytest
import tiny_nextn
from head_oracle import (
    GREEDY,
    LONG_PROMPT,
    OWN,
    PROMPT,
    require_all,
    require_side_by_side,
    steps,
    text_in,
    tokens_of,
)
from nextn_oracle import Chain, OwnHead, opened_models
from tiny_nextn import HY_V3, MIMO2, N_LAYER, STEP35

from pyselfspec import Completion, Fixed, Model
from pyselfspec.errors import ArgumentError, DecodeError, ModelFileError
from pyselfspec.gguf import file as gguf_file
from pyselfspec.gguf import heads
from pyselfspec.runtime.draft_head import DraftHead
from pyselfspec.runtime.passes import Rows
from pyselfspec.runtime.sampling import SamplingParams
from pyselfspec.speculate.batching import run_steps
from pyselfspec.speculate.config import DraftConfig
from pyselfspec.speculate.drafters import head
from pyselfspec.speculate.pass_requests import run_request

WARM = SamplingParams(temperature=0.7, seed=7)
KINDS = (
    replace(HY_V3, n_nextn=3),
    replace(HY_V3, is_dense=True, n_nextn=2),
    replace(MIMO2, n_nextn=2),
    replace(STEP35, n_nextn=3).with_own("shared_head_head", "shared_head_norm"),
)
GAIN = 8.0  # of the head's sublayers, beside which it counts
each_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


@pytest.fixture(scope="module")
def model_of(tmp_path_factory):
    with opened_models(tmp_path_factory.mktemp("later")) as model:
        yield model


@pytest.fixture
def oracle_of(new_context, model_of):
    def oracle(kind):
        context = new_context(model_of(kind), n_batch=256)
        return Chain(context, tiny_nextn.weights(kind), kind)

    return oracle


@each_kind
@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "warm"])
@pytest.mark.parametrize("n_prompt", [2, 3, len(PROMPT)])
def test_each_position_has_its_block(new_context, model_of, oracle_of, kind, sampling, n_prompt):
    """Also in texts that are shorter than the head has blocks, and beyond the last block."""
    model, prompt = model_of(kind), PROMPT[:n_prompt]
    found = steps(new_context(model), OWN, prompt, n_max=5, sampling=sampling)
    require_all(oracle_of(kind), prompt, found)
    assert max(len(step.draft.tokens) for step in found) == 5 > kind.n_nextn
    plain = steps(new_context(model), None, prompt, sampling=sampling)
    assert tokens_of(found) == tokens_of(plain)


@each_kind
def test_they_are_not_the_first_block_again(new_context, model_of, kind):
    found = steps(new_context(model_of(kind)), OWN, n_max=5)
    first = OwnHead(new_context(model_of(kind), n_batch=256), tiny_nextn.weights(kind), kind)
    with pytest.raises(AssertionError):
        require_all(first, PROMPT, found)


@each_kind
@pytest.mark.parametrize("n_batch", [24, 256])
def test_turns_and_long_prompts_are_followed(new_context, model_of, oracle_of, kind, n_batch):
    context, oracle = new_context(model_of(kind), n_batch=n_batch), oracle_of(kind)
    found = steps(context, OWN, LONG_PROMPT)
    require_all(oracle, LONG_PROMPT, found)
    first = [*LONG_PROMPT, *tokens_of(found)]
    for turn in ([*first, 299, 283], [*first[:-15], 282, 285, 300]):
        text = text_in(context, OWN, turn)
        require_all(oracle, turn, list(run_steps(context, text)))
        assert text.n_reused >= len(first) - 16 - kind.n_nextn


@each_kind
@pytest.mark.parametrize("sampling", [GREEDY, WARM], ids=["greedy", "warm"])
def test_drafts_that_are_accepted_in_part_are_followed(new_context, tmp_path, kind, sampling):
    """The model counts, and the blocks of its head nearly know that, so that rows that have read
    draft tokens run again with other tokens, or the same."""
    tensors, random_ones = tiny_nextn.counting_weights(kind, gain=2.0), tiny_nextn.weights(kind)
    for name, w in tensors.items():
        block = re.match(r"blk\.(\d+)\.(attn_output|ffn_down)", name)
        if block and int(block[1]) >= N_LAYER:
            w[:] = GAIN * random_ones[name]
    with Model(tiny_nextn.write(tmp_path / "nearly.gguf", tensors, kind)) as model:
        prompt = [*range(20, 26)]
        oracle = Chain(new_context(model, n_batch=256), tensors, kind)
        found = steps(new_context(model), OWN, prompt, sampling=sampling, n_predict=60)
        require_all(oracle, prompt, found)
        n_drafted = sum(len(step.draft.tokens) for step in found)
        n_accepted = len(tokens_of(found)) - len(found)
        assert 0.1 * n_drafted < n_accepted < 0.9 * n_drafted
        plain = steps(new_context(model), None, prompt, sampling=sampling, n_predict=60)
        assert tokens_of(found) == tokens_of(plain)


@each_kind
def test_random_turns_are_followed(new_context, model_of, oracle_of, kind):
    """Turns that go on, that change the end of the one before, and that stop anywhere, with drafts
    of any length."""
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    context, oracle, text = new_context(model_of(kind)), oracle_of(kind), [1, 300, 290]
    for _ in range(6):
        text = text[: max(3, len(text) - rng.choice([0, 0, 1, 2, 3, 9]))]
        text += [rng.randrange(262, 316) for _ in range(rng.randrange(1, 5))]
        n_max, n = rng.choice([1, 2, 5]), rng.randrange(1, 16)
        found = list(run_steps(context, text_in(context, OWN, text, n_predict=n, n_max=n_max)))
        if any(step.draft.tokens for step in found):
            require_all(oracle, text, found)
        text = [*text, *tokens_of(found)]


@each_kind
def test_texts_side_by_side_have_their_own_drafts(new_context, model_of, oracle_of, kind):
    require_side_by_side(new_context, model_of(kind), OWN, oracle_of(kind))


@pytest.mark.sanitized
def test_a_prompt_that_was_interrupted_leaves_no_rows_of_another(new_context, model_of, oracle_of):
    """The rows of later blocks have read tokens of the first text that the second one has not."""
    kind = KINDS[0]
    context, oracle = new_context(model_of(kind)), oracle_of(kind)
    text = [1, *(270 + i * i % 41 for i in range(60))]
    for n_pieces in (1, 2):
        for n in (48, 49):
            list(run_steps(context, text_in(context, OWN, text)))
            other = text_in(context, OWN, [*text[:50], 300, 301, 302, 303])
            other.n_piece = 1
            work = other.begin()
            request = next(work)
            assert request.rows.pos == (47,)
            for _ in range(n_pieces):
                request = work.send(run_request(context, request))
            work.close()
            turn = [*text[:n], 310, 311, 312]
            require_all(oracle, turn, list(run_steps(context, text_in(context, OWN, turn))))


@each_kind
def test_a_short_list_changes_no_text(new_context, model_of, kind):
    plain, shortened = (
        Completion(
            new_context(model_of(kind)),
            PROMPT,
            n_predict=32,
            sampling=GREEDY,
            draft=draft,
            controller=Fixed(4, p_min=0),
        )
        for draft in (None, DraftConfig("head", options=head.Options(shortlist=40)))
    )
    for text in (plain, shortened):
        assert list(text)
    assert plain.tokens == shortened.tokens
    assert shortened.stats.n_drafted


@pytest.mark.sanitized
@each_kind
def test_a_failed_pass_costs_drafts_only(new_context, model_of, kind, monkeypatch):
    """The K/V of its rows are gone, so the text goes on without drafts."""
    decode, context = DraftHead.decode, new_context(model_of(kind))

    def failing(self, *args, block=0, **options):
        if block == 1 and failing.left == 0:
            failing.left = -1
            context.sequence(0)
            self.sequence(0).rollback(3)
            raise DecodeError("no memory")
        failing.left -= block == 1
        return decode(self, *args, block=block, **options)

    failing.left = 2
    monkeypatch.setattr(DraftHead, "decode", failing)
    text = text_in(context, OWN, PROMPT)
    with pytest.raises(DecodeError, match="no memory"):
        list(run_steps(context, text))
    monkeypatch.undo()
    plain = steps(new_context(model_of(kind)), None, text.history)
    again = steps(context, OWN, text.history)
    assert tokens_of(again) == tokens_of(plain)


def test_a_block_that_does_not_exist_is_refused(new_context, model_of):
    kind = KINDS[1]
    opened = DraftHead(new_context(model_of(kind)), None)
    states = np.zeros((1, tiny_nextn.N_EMBD), np.float32)
    assert opened.kind.n_chained == 2
    for block in (-1, 2):
        with pytest.raises(ArgumentError, match=f"nextn is {block}, allowed is 0 to 1"):
            opened.decode(Rows.of(0, 0, [300]), states, block=block)


@pytest.mark.parametrize("name", ["nextn.eh_proj", "attn_qkv"])
def test_a_later_block_that_is_broken_is_found(tmp_path, name):
    kind = replace(MIMO2, n_nextn=2)
    name = f"blk.{N_LAYER + 1}.{name}.weight"
    tensors = {each: w for each, w in tiny_nextn.weights(kind).items() if each != name}
    path = tiny_nextn.write(tmp_path / "broken.gguf", tensors, kind)
    with pytest.raises(ModelFileError, match=f"its draft head lacks {name}"):
        heads.own(gguf_file.check(path))
