"""Contexts and decodes apart from masks: sizes, outputs, the life of logits, misuse."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from pyselfspec import Context, LayerMask, Model, Sampler
from pyselfspec.errors import ArgumentError, ContextFullError, DecodeError
from pyselfspec.runtime.ffi import load
from pyselfspec.runtime.ffi.load import llama
from pyselfspec.runtime.kv_types import CACHE_TYPES, FLOAT_CACHE_TYPES
from tools.models import tiny_archs, tiny_gguf


def test_sizes(tiny: Any) -> None:
    with tiny().context(n_ctx=300, n_batch=16, n_threads=1) as context:
        assert context.n_ctx >= 300  # rounded up
        assert context.n_batch == 16
        assert context.sequence().n_past == 0
    with tiny(n_ctx=320).context(n_threads=1) as context:  # the model's own length
        assert 320 <= context.n_ctx <= 512


@pytest.mark.parametrize(
    ("name", "least"), [("n_ctx", 1), ("n_batch", 4), ("n_threads", 1), ("n_seq_max", 1)]
)
@pytest.mark.parametrize("value", [0, -1])
def test_sizes_below_the_least(name: str, least: int, value: int, tiny: Any) -> None:
    with pytest.raises(ArgumentError, match=rf"{name}.* is at least {least}, got {value}"):
        tiny().context(**{name: value})


@pytest.mark.parametrize("name", ["n_ctx", "n_batch", "n_threads", "n_seq_max"])
def test_sizes_that_are_no_whole_numbers(name: str, tiny: Any) -> None:
    with pytest.raises(ArgumentError, match=rf"{name}.* is a whole number, got 256\.5"):
        tiny().context(**{name: 256.5})


def test_too_many_sequences(tiny: Any) -> None:
    with pytest.raises((ArgumentError, DecodeError), match="256"):
        tiny().context(n_ctx=512, n_seq_max=257)


@pytest.mark.parametrize(
    ("sizes", "about"),
    [
        ("n_batch=1", "n_batch"),  # llama.cpp wants an output row per sequence
        ("n_batch=64, n_seq_max=65", "n_batch"),
        ("n_threads=100_000", "n_threads"),
        ("n_ctx=2**32", "n_ctx"),
    ],
)
def test_sizes_that_llama_cpp_aborts_on_or_wraps(sizes: str, about: str, error_of: Any) -> None:
    error = error_of(f"model.context(**(dict(n_ctx=256, n_threads=1) | dict({sizes}))).decode([5])")
    kind, message = error.split(": ", 1)
    assert kind == "ArgumentError"
    assert about in message


def test_cache_types_are_ggmls() -> None:
    numbers = {
        name.lower(): int(number) for name, number in GGMLQuantizationType.__members__.items()
    }
    assert CACHE_TYPES.items() <= numbers.items()


@pytest.mark.parametrize("name", ["type_k", "type_v"])
def test_unknown_cache_type(name: str, tiny: Any) -> None:
    with pytest.raises(ArgumentError, match=f"{name} is one of f32, .*, q5_1, got 'q3_k'"):
        tiny().context(**{name: "q3_k"})


@pytest.mark.parametrize("type_v", sorted(CACHE_TYPES.keys() - FLOAT_CACHE_TYPES.keys()))
def test_quantized_v_without_flash_attention(type_v: str, tiny: Any) -> None:
    with pytest.raises(ArgumentError, match=f"V of type {type_v} needs flash attention"):
        tiny().context(flash_attn=False, type_v=type_v)


@pytest.mark.parametrize("flash_attn", [True, False, None])
def test_quantized_k_needs_whole_blocks(
    flash_attn: bool | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny_archs, "HEAD_DIM", 16)
    path = tiny_gguf.write(tmp_path / "small-heads.gguf", "llama", qtype="F16")
    with Model(path) as model:
        with pytest.raises(ArgumentError, match="multiple of 32 values, the model's have 16"):
            model.context(flash_attn=flash_attn, type_k="q8_0")
        model.context(flash_attn=flash_attn, type_k="bf16", n_ctx=256, n_threads=1)


def test_smallest_context(tiny: Any, new_context: Any) -> None:
    context = new_context(tiny(), n_ctx=1, n_batch=1, n_seq_max=1)
    assert (context.n_ctx, context.n_batch) == (256, 1)
    assert context.decode([5]).logits.shape == (1, tiny().n_vocab)


@pytest.mark.sanitized
def test_outputs(tiny: Any, new_context: Any, token_ids: Any) -> None:
    tokens = token_ids(5)
    n_vocab = tiny().n_vocab
    every = new_context(tiny()).decode(tokens)
    last = new_context(tiny()).decode(tokens, outputs="last")
    none = new_context(tiny()).decode(tokens, outputs="none")
    assert [each.logits.shape for each in (every, last, none)] == [
        (5, n_vocab), (1, n_vocab), (0, n_vocab)
    ]  # fmt: skip
    assert every.logits.dtype == np.float32
    assert every.hidden is None
    assert last.logits[0].argmax() == every.logits[-1].argmax()


@pytest.mark.sanitized
@pytest.mark.parametrize("arch", tiny_archs.ARCHITECTURES)
def test_the_best_token_without_logits(
    arch: str, tiny: Any, new_context: Any, token_ids: Any
) -> None:
    """Found in the graph, against the one found in logits; with masks and without, in turn."""
    with_logits, without = new_context(tiny(arch)), new_context(tiny(arch))
    for seed, mask in enumerate((None, LayerMask.early_exit(4, 2), None, LayerMask(4, {1}, {2}))):
        tokens = token_ids(5, seed=seed)
        with_logits.decode(tokens, mask=mask, outputs="last")
        got = without.decode(tokens, mask=mask, outputs="last", head="best")
        assert got.n_outputs == 0 and got.logits.shape == (0, tiny(arch).n_vocab)
        (token, p), (want, want_p) = without.argmax(4), with_logits.argmax(4)
        assert token == want and p == pytest.approx(want_p, rel=1e-4)
        for row in (3, 5):
            with pytest.raises(ArgumentError, match=f"no logits in row {row}"):
                without.argmax(row)
        with pytest.raises(ArgumentError, match="no logits in row 4"):
            without.logits(4)  # what lies there is of another pass
    after = [context.decode(token_ids(3)).logits for context in (with_logits, without)]
    np.testing.assert_array_equal(*after)
    with pytest.raises(ArgumentError, match="no logits in row 4"):
        without.argmax(4)  # of the pass before


@pytest.mark.sanitized
def test_the_best_token_comes_with_states(tiny: Any, new_context: Any, token_ids: Any) -> None:
    one, other = new_context(tiny()), new_context(tiny())
    want = one.decode(token_ids(4), hidden_at=2).hidden
    np.testing.assert_array_equal(
        other.decode(token_ids(4), hidden_at=2, outputs="last", head="best").hidden, want
    )
    assert other.argmax(3)[0] == one.argmax(3)[0]


def test_unknown_outputs(tiny: Any, new_context: Any) -> None:
    context = new_context(tiny())
    with pytest.raises(ArgumentError, match="none, last, all"):
        context.decode([5], outputs="first")
    assert context.sequence().n_past == 0


def test_argmax(tiny: Any, new_context: Any, token_ids: Any) -> None:
    context = new_context(tiny())
    logits = context.decode(token_ids(6)).logits
    for row, values in enumerate(logits):
        token, p = context.argmax(row)
        e = np.exp(values.astype(np.float64) - values.max())
        assert token == values.argmax()
        assert p == pytest.approx(e[token] / e.sum(), rel=1e-5)


def test_argmax_without_logits(tiny: Any, new_context: Any) -> None:
    context = new_context(tiny())
    for row in (0, 5):
        with pytest.raises(ArgumentError, match=f"no logits in row {row}"):
            context.argmax(row)
    context.decode([5, 6], outputs="last")
    with pytest.raises(ArgumentError, match="no logits in row 0"):
        context.argmax(0)
    assert context.argmax(1)[1] > 0
    context.decode([7], outputs="none")
    with pytest.raises(ArgumentError, match="no logits in row 0"):
        context.argmax(0)


def test_logits_are_a_copy_and_end_with_the_next_decode(tiny: Any, new_context: Any) -> None:
    context = new_context(tiny())
    first = context.decode([5])
    logits = first.logits
    kept = logits.copy()
    context.decode([6])
    np.testing.assert_array_equal(logits, kept)
    with pytest.raises(ArgumentError, match="decoded again"):
        _ = first.logits


@pytest.mark.sanitized
def test_prefill_in_batches(tiny: Any, new_context: Any, token_ids: Any) -> None:
    """Batches decoded one by one give the same K/V as a prompt, also one just longer than a
    batch."""
    tokens = token_ids(41)
    filled, by_hand = (new_context(tiny(), n_batch=20) for _ in range(2))
    filled.prefill(tokens)
    for part in (tokens[:20], tokens[20:40], tokens[40:]):
        by_hand.decode(part, outputs="none")
    assert filled.sequence().n_past == 41
    np.testing.assert_array_equal(filled.decode([7]).logits, by_hand.decode([7]).logits)


def test_prefill_too_long_decodes_nothing(tiny: Any, new_context: Any, token_ids: Any) -> None:
    context = new_context(tiny())
    context.prefill(token_ids(100))
    with pytest.raises(ContextFullError, match="257 tokens, the context 256"):
        context.prefill(token_ids(157))
    assert context.sequence().n_past == 100


def test_empty_prefill(tiny: Any, new_context: Any) -> None:
    context = new_context(tiny())
    context.prefill([])
    assert context.sequence().n_past == 0


@pytest.mark.parametrize("tokens", [np.array([5, 6]), list(np.array([5, 6], np.int64)), (5, 6)])
def test_kinds_of_token_sequences(tokens: Any, tiny: Any, new_context: Any) -> None:
    got = new_context(tiny()).decode(tokens).logits
    np.testing.assert_array_equal(got, new_context(tiny()).decode([5, 6]).logits)


@pytest.mark.parametrize("token", [2**31, 2**32 + 5, -(2**32) + 5, 2**70])
def test_token_ids_do_not_wrap(token: int, tiny: Any, new_context: Any) -> None:
    context = new_context(tiny())
    with pytest.raises(ArgumentError, match="token id"):
        context.decode([token])
    assert context.sequence().n_past == 0


@pytest.mark.parametrize("pos", [1, 100, 2**31 - 1, 2**32, -(2**32)])
def test_an_empty_sequence_starts_at_zero(pos: int, tiny: Any, new_context: Any) -> None:
    context = new_context(tiny())
    with pytest.raises(ArgumentError, match="starts at 0"):
        context.decode([5], pos=pos)
    assert context.sequence().n_past == 0


@pytest.mark.sanitized
def test_hidden_at_does_not_wrap(tiny: Any, new_context: Any) -> None:
    context = new_context(tiny())
    with pytest.raises(ArgumentError, match="1 to 4"):
        context.decode([5], hidden_at=2**32 + 1)


@pytest.mark.sanitized
def test_states_below_the_entry_need_tokens(tiny: Any, new_context: Any) -> None:
    """Without ids there is nothing true to say about blocks before the entry."""
    context = new_context(tiny())
    states = np.ones((1, 64), np.float32)
    with pytest.raises(ArgumentError, match="hidden_at"):
        context.decode(hidden=states, mask=LayerMask.enter_at(4, 3), hidden_at=2)


def test_sequence_of_another_context(tiny: Any, new_context: Any) -> None:
    context, other = new_context(tiny()), new_context(tiny())
    with pytest.raises(ArgumentError, match="another context"):
        context.decode([5], seq=other.sequence())


@pytest.mark.sanitized
def test_states_that_are_no_numbers_stay_in_their_row(tiny: Any, new_context: Any) -> None:
    context = new_context(tiny())
    states = np.full((2, 64), 0.5, np.float32)
    states[1] = np.nan
    logits = context.decode(hidden=states, mask=LayerMask.enter_at(4, 2)).logits
    assert np.isfinite(logits[0]).all() and np.isnan(logits[1]).all()


@pytest.mark.sanitized
def test_strided_and_converted_states(tiny: Any, new_context: Any) -> None:
    states = np.random.default_rng(0).standard_normal((64, 3))  # float64, to be transposed
    mask = LayerMask.enter_at(4, 2)
    got = new_context(tiny()).decode(hidden=states.T, mask=mask).logits
    want = new_context(tiny()).decode(hidden=np.ascontiguousarray(states.T, np.float32), mask=mask)
    np.testing.assert_array_equal(got, want.logits)


@pytest.mark.parametrize("arch", tiny_archs.ARCHITECTURES)
def test_what_can_enter_does_enter(arch: str, tiny: Any, new_context: Any, token_ids: Any) -> None:
    """States copied out at a block and put in again, token by token and as one batch."""
    context, ordinary, tokens = new_context(tiny(arch)), new_context(tiny(arch)), token_ids(6)
    want = ordinary.decode(tokens).logits
    following = ordinary.decode([7]).logits
    for block in range(1, 4):
        assert context.can_enter(block)
        context.sequence().drop()
        hidden = context.decode(tokens, hidden_at=block, outputs="none").hidden
        mask = LayerMask.enter_at(4, block)
        entered = context.decode(tokens, pos=0, mask=mask, hidden=hidden, in_place=True)
        np.testing.assert_array_equal(entered.logits, want)
        np.testing.assert_array_equal(context.decode([7]).logits, following)


@pytest.mark.parametrize("block", [-1, 0, 4, 5, 2**31 - 1])
def test_no_state_to_share_enters_at_the_ends(block: int, tiny: Any, new_context: Any) -> None:
    """Below block 0 nothing is shared, and behind the last one nothing is left to check."""
    assert not new_context(tiny()).can_enter(block)


@pytest.mark.sanitized
def test_asking_what_can_enter_disturbs_nothing(
    tiny: Any, new_context: Any, token_ids: Any
) -> None:
    context, other = new_context(tiny()), new_context(tiny())
    for each in (context, other):
        each.decode(token_ids(5))
    before = context.graph_bytes
    assert context.can_enter(2)
    assert (context.graph_bytes, context.sequence().n_past) == (before, 5)
    np.testing.assert_array_equal(context.decode([6]).logits, other.decode([6]).logits)


def test_closed_context(tiny: Any, new_context: Any) -> None:
    context = new_context(tiny())
    decoded = context.decode([5])
    context.close()
    context.close()
    for use in (
        lambda: context.decode([5]),
        lambda: context.prefill([5]),
        lambda: context.argmax(0),
        lambda: context.mask_support,
        lambda: context.can_enter(1),
        lambda: context.sequence().n_past,
        lambda: decoded.logits,
    ):
        with pytest.raises(ArgumentError, match="the context is closed"):
            use()


def test_context_made_by_hand_closes_with_its_model(error_of: Any) -> None:
    code = "other = model.context(n_ctx=256, n_threads=1)\nmodel.close()\nother.decode([5])"
    assert error_of(code).startswith("ArgumentError: the context is closed")


def test_context_on_a_closed_model(error_of: Any) -> None:
    error = error_of("model.close()\nmodel.context(n_ctx=256, n_threads=1)")
    assert error.startswith("ArgumentError: the model") and error.endswith("is closed")


@pytest.mark.sanitized
def test_contexts_come_and_go(tiny: Any) -> None:
    """Closed contexts are not kept alive by their model."""
    import gc
    import weakref

    contexts = []
    for _ in range(3):
        with tiny().context(n_ctx=256, n_threads=1) as context:
            contexts.append(weakref.ref(context))
        del context
    gc.collect()
    assert [each() for each in contexts] == [None] * 3


def test_context_type(tiny: Any, new_context: Any) -> None:
    assert isinstance(new_context(tiny()), Context)


# --- threads -----------------------------------------------------------------------------------


@pytest.fixture
def elsewhere() -> Iterator[Callable[[Callable[[], Any]], BaseException | None]]:
    """Run something in another thread: what it raised."""

    def run(use: Callable[[], Any]) -> BaseException | None:
        raised: list[BaseException | None] = [None]

        def body() -> None:
            try:
                use()
            except BaseException as error:
                raised[0] = error

        thread = threading.Thread(target=body)
        thread.start()
        thread.join()
        return raised[0]

    yield run


def test_a_context_in_use_refuses_another_thread(
    tiny: Any, new_context: Any, elsewhere: Any
) -> None:
    context = new_context(tiny())
    decoded, seq = context.decode([5, 6]), context.sequence()
    with Sampler(tiny()) as sampler, context.lock():  # as a decode holds it
        for use in (
            lambda: context.decode([5]),
            lambda: context.argmax(0),
            lambda: context.can_enter(1),
            lambda: context.graph_bytes,
            lambda: decoded.logits,
            lambda: sampler.sample(context, 0),
            lambda: seq.n_past,
            lambda: seq.fork(1),
            lambda: seq.rollback(1),
            lambda: seq.can_keep(1),
            context.close,
        ):
            error = elsewhere(use)
            assert isinstance(error, ArgumentError) and "in use in another thread" in str(error)
        assert context.argmax(0) == context.argmax(0)  # the thread itself goes on
    assert elsewhere(lambda: context.decode([7])) is None
    assert seq.n_past == 3


@pytest.mark.sanitized
def test_a_model_does_not_close_under_a_decode(
    tiny_path: Any, new_context: Any, elsewhere: Any
) -> None:
    with Model(tiny_path()) as model:
        context = model.context(n_ctx=256, n_threads=1)
        with context.lock():
            assert isinstance(elsewhere(model.close), ArgumentError)
            context.decode([5])
        assert elsewhere(model.close) is None
        with pytest.raises(ArgumentError, match="closed"):
            context.decode([5])


@pytest.mark.sanitized
def test_threads_that_meet_in_one_context(tiny: Any, new_context: Any) -> None:
    """One of them is told, nothing else happens."""
    context, outcomes = new_context(tiny(), n_ctx=2048), []

    def work() -> None:
        for _ in range(100):
            try:
                context.decode([5, 6, 7])
                outcomes.append("decoded")
            except ArgumentError as error:
                assert "in use" in str(error) or "starts at" in str(error)
                outcomes.append("refused")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == 400
    assert context.sequence().n_past == 3 * outcomes.count("decoded")


def test_the_error_of_another_thread(tiny: Any, tmp_path: Path, elsewhere: Any) -> None:
    """A message that llama.cpp logs in one thread does not appear in the error of another."""
    load.clear_log_error()
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF" + bytes(60))

    def load_bad() -> None:
        assert not llama.llama_model_load_from_file(bytes(bad), llama.llama_model_default_params())
        assert load.log_error()

    assert elsewhere(load_bad) is None
    assert not load.log_error()
