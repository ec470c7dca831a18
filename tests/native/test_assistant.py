"""Assistants for Gemma 4, heads in files that attend to the model's K and V: they draft what an
oracle in numpy says, leave the model's cells alone, and are refused with a sentence where they do
not fit."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import tiny_assistant
from assistant_oracle import Assistant
from head_oracle import (
    COUNTED,
    GREEDY,
    LONG_PROMPT,
    PROMPT,
    drafter_of,
    each_sampling,
    followed_turns,
    require_all,
    require_no_model,
    require_refused,
    require_same_pass,
    require_side_by_side,
    steps,
    steps_with_gaps,
    tokens_of,
)
from tiny_assistant import N_EMBD, PAIRS, PLAIN, SHARED

from pyselfspec import Completion, Fixed, Model, generate_batch
from pyselfspec.bench.pass_times import time_passes
from pyselfspec.errors import ArgumentError, ModelFileError
from pyselfspec.runtime.passes import Rows
from pyselfspec.speculate.drafters import head

NEARLY = 0.55  # a gain of the sublayers with which a counting model often does not count
each_pair = pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("assistants")


@pytest.fixture(scope="module")
def opened(folder):
    """Return loaded models with the paths and weights of their assistants."""
    made = {}

    def opened(pair, weights_of=tiny_assistant.random_weights, **options):
        key = pair, weights_of, *options.items()
        if key not in made:
            weights, of_head = weights_of(pair, **options)
            path = tiny_assistant.write_model(folder / f"{len(made)}.gguf", weights, pair)
            head = tiny_assistant.write(folder / f"{len(made)}-head.gguf", of_head, pair)
            made[key] = SimpleNamespace(
                model=Model(path), path=path, head=head, weights=weights, of_head=of_head, pair=pair
            )
        return made[key]

    yield opened
    for each in made.values():
        each.model.close()


@pytest.fixture
def plain(opened):
    return opened(PLAIN)


@pytest.fixture
def nearly(opened):
    return opened(PLAIN, tiny_assistant.counting_weights, gain=NEARLY)


def oracle_of(new_context, pair):
    context = new_context(pair.model, n_batch=256)
    return Assistant(context, pair.weights, pair.of_head, pair.pair)


@each_pair
@each_sampling
def test_drafts_are_those_of_the_oracle(new_context, opened, pair, sampling):
    """The text grows longer than the window."""
    made = opened(pair)
    found = steps(new_context(made.model), made.head, sampling=sampling, n_predict=40)
    require_all(oracle_of(new_context, made), PROMPT, found)
    plain = steps(new_context(made.model), None, sampling=sampling, n_predict=40)
    assert tokens_of(found) == tokens_of(plain)


@each_pair
def test_an_assistant_that_knows_is_always_right(new_context, opened, pair):
    """It draws on the state that it is handed alone, so that of any other token makes it wrong."""
    made = opened(pair, tiny_assistant.counting_weights)
    found = steps(new_context(made.model), made.head, [*COUNTED], n_predict=40)
    assert tokens_of(found) == [*range(COUNTED.stop, COUNTED.stop + 40)]
    assert all(step.n_accepted == step.n_drafted == 4 for step in found[1:-1])


@each_sampling
def test_rejected_tokens_leave_no_trace(new_context, nearly, sampling):
    plain = steps(new_context(nearly.model), None, sampling=sampling, n_predict=60)
    context = new_context(nearly.model)
    found = steps(context, nearly.head, sampling=sampling, n_predict=60)
    assert tokens_of(found) == tokens_of(plain)
    require_all(oracle_of(new_context, nearly), PROMPT, found)
    n_drafted = sum(step.n_drafted for step in found)
    assert 0.1 * n_drafted < sum(step.n_accepted for step in found) < 0.9 * n_drafted


@pytest.mark.sanitized
@pytest.mark.parametrize("flash_attn", [False, True])
def test_k_and_v_are_read_as_the_model_stores_them(new_context, plain, flash_attn):
    found = steps(new_context(plain.model, flash_attn=flash_attn), plain.head, n_predict=40)
    require_all(oracle_of(new_context, plain), PROMPT, found)


@pytest.mark.sanitized
def test_quantized_k_and_v_are_read(new_context, plain):
    types = {"type_k": "q8_0", "type_v": "q8_0", "flash_attn": True}
    found = steps(new_context(plain.model, **types), plain.head, n_predict=40)
    without = steps(new_context(plain.model, **types), None, n_predict=40)
    assert tokens_of(found) == tokens_of(without)
    exact = steps(new_context(plain.model), plain.head, n_predict=40)
    assert found[0].draft.token_ids[:2] == exact[0].draft.token_ids[:2]
    assert found[0].draft.probs[:2] == pytest.approx(exact[0].draft.probs[:2], abs=0.02)


@pytest.mark.sanitized
def test_a_second_turn_and_another_text_are_followed(new_context, plain):
    """At most the last token in the K/V cache is evaluated again, for its states."""
    oracle = oracle_of(new_context, plain)
    turn, other = followed_turns(new_context(plain.model), plain.head, oracle)
    assert turn <= 2 and other <= 22


def test_long_prompts_and_steps_without_drafts_are_followed(new_context, plain):
    found = steps_with_gaps(new_context(plain.model, n_batch=24), plain.head, LONG_PROMPT)
    require_all(oracle_of(new_context, plain), LONG_PROMPT, found)


@pytest.mark.sanitized
@each_sampling
def test_texts_side_by_side_have_their_own_drafts(new_context, opened, sampling):
    made = opened(SHARED)
    oracle = oracle_of(new_context, made)
    require_side_by_side(new_context, made.model, made.head, oracle, sampling)


@pytest.mark.sanitized
def test_cells_still_move_where_texts_need_room(new_context, plain):
    """The cells of texts side by side stay in order, or their last bits would change, and the head
    reads them where they are then."""
    left = []
    for n_others in (0, 1):
        context = new_context(plain.model, n_ctx=256, n_seq_max=2)
        own = drafter_of(context, plain.head)._heads.head
        states = context.decode(PROMPT, hidden_at=plain.model.n_layer + 1).hidden.numpy()[-1:]
        other = context.sequence(1)
        for token in range(3, 243 if n_others else 3):
            context.decode([token], seq=other)
        assert (context.n_moves > 0) == (n_others > 0)
        assert context.sequence(0).in_order and other.in_order
        left.append(own.decode(Rows.of(0, len(PROMPT), [290], "last"), states))
        left.append(context.decode([290]).logits)
    assert np.array_equal(left[0], left[2])
    assert np.array_equal(left[1], left[3])


@each_sampling
def test_many_texts_side_by_side_are_plain(new_context, nearly, sampling):
    context = new_context(nearly.model, n_ctx=512, n_seq_max=8)
    prompts = [[*range(30 + 7 * i, 40 + 9 * i)] for i in range(5)]
    texts = [
        Completion(
            context,
            prompt,
            n_predict=50 + 10 * i,
            sampling=sampling,
            draft=f"head:{nearly.head}",
            controller=Fixed(3, p_min=0),
            seq=context.sequence(i),
        )
        for i, prompt in enumerate(prompts)
    ]
    for _ in generate_batch(texts):
        pass
    for i, (text, prompt) in enumerate(zip(texts, prompts, strict=True)):
        n = 50 + 10 * i
        alone = steps(new_context(nearly.model), None, prompt, n_predict=n, sampling=sampling)
        assert text.tokens == tokens_of(alone)


def test_a_full_context_has_room_for_drafts(new_context, nearly):
    """Rows of the head take no cells."""
    context = new_context(nearly.model, n_ctx=256, n_seq_max=2)
    prompt = [*range(3, 240)]
    found = steps(context, nearly.head, prompt, n_predict=19, n_max=8)
    plain = steps(new_context(nearly.model, n_ctx=256, n_seq_max=2), None, prompt, n_predict=19)
    assert tokens_of(found) == tokens_of(plain)
    own = drafter_of(context, nearly.head)._heads.head
    used = context.sequence().n_past
    left = context.decode([5] * (256 - used), hidden_at=nearly.model.n_layer + 1, outputs="none")
    states = left.hidden.numpy()[-1:]
    own.decode(Rows.of(0, 256, [7], "last"), states)
    assert context.sequence().n_past == 256


def test_opening_it_leaves_texts_in_the_context(new_context, plain):
    context = new_context(plain.model)
    context.prefill(PROMPT)
    context.prefill(PROMPT[:5], context.sequence(1))
    want = new_context(plain.model)
    want.prefill(PROMPT)
    own = drafter_of(context, plain.head)._heads.head
    assert context.sequence(0).n_past == own.sequence(0).n_past == len(PROMPT)
    assert context.sequence(1).n_past == 5
    logits = [each.decode([280]).logits for each in (context, want)]
    assert np.array_equal(*logits)
    own.close()
    assert context.sequence(0).n_past == len(PROMPT) + 1


def test_it_joins_with_copies(new_context, plain):
    context, prompt = new_context(plain.model), PROMPT * 3
    text = Completion(
        context, prompt, n_predict=40, sampling=GREEDY, draft=f"ngram+head:{plain.head}"
    )
    list(text)
    assert text.tokens == tokens_of(steps(new_context(plain.model), None, prompt, n_predict=40))


def test_a_short_list_shortens_its_vocabulary(new_context, nearly):
    context = new_context(nearly.model)
    drafter = head.make(context, head.Options(nearly.head, shortlist=100))
    found = steps(context, None, [*COUNTED], n_max=3, n_predict=40, drafter=drafter)
    plain = steps(new_context(nearly.model), None, [*COUNTED], n_predict=40)
    assert tokens_of(found) == tokens_of(plain)
    assert any(step.n_accepted for step in found)


@each_pair
def test_states_for_it_do_not_change_a_pass(new_context, opened, pair):
    last = pair.n_layer + 1
    require_same_pass(new_context, opened(pair).model, last, (1, last), N_EMBD)


def test_its_costs_can_be_measured(new_context, plain):
    """Until then they are those of the weights that it reads."""
    context = new_context(plain.model)
    drafter = drafter_of(context, plain.head)
    estimated = drafter.costs().at(0)
    read = drafter._heads.head.file.n_bytes_read
    assert read == sum(data.nbytes for data in plain.of_head.values())
    share = read / plain.model.file.weight_bytes()
    assert estimated.token_us / estimated.plain_us == pytest.approx(share)
    assert time_passes(context, drafter, lambda _share: None, 1).costs.at(8).token_us > 0


def test_it_is_no_model_to_write_with(plain):
    require_no_model(plain.head)


# --- files that do not fit ---------------------------------------------------------------------


def written(path, changes=None, **of_file):
    weights = tiny_assistant.random_weights()[1] | (changes or {})
    weights = {name: data for name, data in weights.items() if data is not None}
    return tiny_assistant.write(path, weights, **of_file)


BROKEN = {
    "a block too many": ({"n_nextn": 2}, "nextn_predict_layers is 2 of 3 blocks"),
    "no block": ({"n_nextn": 0}, "nextn_predict_layers is 0 of 3 blocks"),
    "no window": ({"windows": [False] * 3}, "sliding_window_pattern names no block"),
    "nothing to rotate": ({"n_rot": (32, 0)}, "dimension_count_swa is 0"),
    "too much to rotate": ({"n_rot": (32, 64)}, "dimension_count_swa is 64: .* at most .* 32"),
    "heads of two sizes": (
        {"n_values": 32},
        "attention.key_length is 64 and .*attention.value_length is 32, but they must be equal",
    ),
    "no projection": (
        {"changes": {"nextn.pre_projection.weight": None}},
        "cannot load this model: .*nextn.pre_projection.weight",
    ),
    "a short projection": (
        {"changes": {"nextn.post_projection.weight": np.ones((32, 96), np.float32)}},
        "cannot load this model: .*nextn.post_projection.weight",
    ),
    "a scale of half precision": (
        {"changes": {"blk.0.layer_output_scale.weight": np.ones(1, np.float16)}},
        "layer_output_scale.weight' is F16, but must be F32",
    ),
    "whole numbers as weights": (
        {"changes": {"nextn.pre_projection.weight": np.ones((96, 128), np.int32)}},
        "pre_projection.weight' is I32, which is no type for weights",
    ),
}
FOREIGN = {
    "width": ({"n_embd_target": 128}, "states of 128 values, but .* has 64"),
    "vocabulary": ({"n_vocab": 320}, "vocabulary of 320 tokens, but .* has 317"),
    "heads of K and V": (
        {"n_head_kv": (2, 1)},
        "block 0 reads K and V with 1 heads of 32 values, but in .* they are 2 of 32",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_assistant_is_refused(new_context, plain, tmp_path, case):
    changes, why = BROKEN[case]
    path = written(tmp_path / "head.gguf", **changes)
    require_refused(new_context(plain.model), path, ModelFileError, why)


@pytest.mark.parametrize("case", FOREIGN)
def test_an_assistant_for_another_model_is_refused(new_context, plain, tmp_path, case):
    changes, why = FOREIGN[case]
    path = written(tmp_path / "head.gguf", **changes)
    text = require_refused(new_context(plain.model), path, ArgumentError, why)
    assert text.endswith("take the head that was made for this model")


def test_models_without_such_blocks_have_no_assistant(new_context, plain, tiny, folder):
    with pytest.raises(ArgumentError, match=r"is an assistant for gemma4, but .* is llama"):
        drafter_of(new_context(tiny()), plain.head)
    odd = tiny_assistant.Pair("odd", n_layer=5)
    weights, _ = tiny_assistant.random_weights(odd)
    path = tiny_assistant.write_model(folder / "odd.gguf", weights, odd)
    why = f"last block but one has a sliding window, and the last one has none, unlike {path.name}"
    with Model(path) as model, pytest.raises(ArgumentError, match=re.escape(why)):
        drafter_of(new_context(model), plain.head)


@pytest.mark.sanitized
def test_a_closed_context_has_closed_it(plain):
    with plain.model.context(n_ctx=256, n_batch=64, n_threads=1) as context:
        own = drafter_of(context, plain.head)._heads.head._context
    assert own.closed
