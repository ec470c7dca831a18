"""Masked passes against files without the skipped parts. Every comparison here is bit for bit.

What serves as truth: a model file whose skipped sublayers end in zeroed tensors, or that lacks the
skipped blocks, decoded with a plain ``llama_decode``. In that call none of our code does anything:
the patched functions see a batch without a request and return at once. That the plain call equals
an unpatched llama.cpp is checked where PYSELFSPEC_STOCK_LIB names the library folder of such a
build, made from the same pin with the same options; an installation has only the patched one.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attentions import ATTENTIONS
from numpy.typing import NDArray
from parameters import crossed, for_seeds, in_turn
from tiny_mamba import write_mamba

from pyselfspec import Context, LayerMask, Model
from pyselfspec.errors import (
    ArgumentError,
    ContextFullError,
    MaskError,
    SelfSpecError,
    UnsupportedError,
)
from pyselfspec.runtime.ffi import calls
from pyselfspec.runtime.ffi.load import llama, native
from pyselfspec.util.build import LIB_DIR
from tools.models import random_gguf, tiny_archs

N_LAYER = 4
ALL = range(N_LAYER)
N_PROMPT, N_MORE = 10, 4
Logits = NDArray[np.float32]

# attention skipped, feed-forward skipped
SKIPS = {
    "attn-first": ([0], []),
    "attn-middle": ([1], []),
    "attn-last": ([3], []),
    "ffn-first": ([], [0]),
    "ffn-middle": ([], [2]),
    "ffn-last": ([], [3]),
    "block-first": ([0], [0]),
    "block-middle": ([2], [2]),
    "block-last": ([3], [3]),
    "several": ([0, 2, 3], [1, 3]),
    "all-attn": (ALL, []),
    "all-ffn": ([], ALL),
    "all-but-one-ffn": (ALL, [0, 1, 3]),
    "all-but-last-attn": ([0, 1, 2], ALL),
    "nothing": ([], []),
}
EACH_ARCH = pytest.mark.parametrize("arch", tiny_archs.ARCHITECTURES)


def logits_of(context: Context, tokens: Sequence[int], mask: LayerMask | None = None) -> Logits:
    """A prompt in one batch, the rest token by token on its K/V: float32 [len(tokens), n_vocab]."""
    context.sequence().drop()
    rows = [context.decode(tokens[:N_PROMPT], mask=mask).logits]
    rows += [context.decode([token], mask=mask).logits for token in tokens[N_PROMPT:]]
    return np.concatenate(rows)


def plain_logits_of(context: Context, tokens: Sequence[int]) -> Logits:
    """Decode with llama_decode alone, without our library calls."""
    rows = []
    context.sequence().drop()
    for part in [tokens[:N_PROMPT], *([token] for token in tokens[N_PROMPT:])]:
        batch = llama.llama_batch_init(len(part), 0, 1)
        first = context.sequence().n_past
        batch.n_tokens = len(part)
        for i, token in enumerate(part):
            batch.token[i], batch.pos[i], batch.logits[i] = token, first + i, True
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
        assert llama.llama_decode(context.handle, batch) == 0
        for i in range(len(part)):
            row = llama.llama_get_logits_ith(context.handle, i)
            rows.append(np.ctypeslib.as_array(row, (context.model.n_vocab,)).copy())
        llama.llama_batch_free(batch)
    return np.stack(rows)


def skip(attn: Iterable[int], ffn: Iterable[int]) -> LayerMask:
    return LayerMask.skipping(N_LAYER, attn=attn, ffn=ffn)


@pytest.fixture
def tokens(token_ids: Any) -> list[int]:
    return list(token_ids(N_PROMPT + N_MORE))


# --- the oracle ------------------------------------------------------------------------------


# all of them on three architectures, of the others one of each kind
FEW = ("attn-middle", "ffn-first", "block-last", "several")
IN_DEPTH = ("llama", "gemma2", "qwen2moe")


@crossed(
    "arch skips",
    tiny_archs.ARCHITECTURES,
    SKIPS,
    always={
        (arch, skips)
        for arch in tiny_archs.ARCHITECTURES
        for skips in (SKIPS if arch in IN_DEPTH else FEW)
    },
)
def test_masked_pass_equals_zeroed_file(
    arch: str, skips: str, tiny: Any, new_context: Any, tokens: list[int]
) -> None:
    attn, ffn = SKIPS[skips]
    zeroed = tiny(arch, zero_attn=tuple(attn), zero_ffn=tuple(ffn))
    got = logits_of(new_context(tiny(arch)), tokens, skip(attn, ffn))
    np.testing.assert_array_equal(got, plain_logits_of(new_context(zeroed), tokens))
    if skips != "nothing":  # the oracle could not tell if the skipped part had no influence
        full = plain_logits_of(new_context(tiny(arch)), tokens)
        assert not (got == full).all(axis=1).any()


@EACH_ARCH
@pytest.mark.parametrize("dropped", [(0,), (1,), (3,), (0, 1), (1, 2), (0, 3)])
def test_skipped_blocks_equal_a_file_without_them(
    arch: str, dropped: tuple[int, ...], tiny: Any, new_context: Any, tokens: list[int]
) -> None:
    got = logits_of(new_context(tiny(arch)), tokens, skip(dropped, dropped))
    shorter = tiny(arch, drop_blocks=dropped)
    assert shorter.n_layer == N_LAYER - len(dropped)
    np.testing.assert_array_equal(got, plain_logits_of(new_context(shorter), tokens))


@EACH_ARCH
@pytest.mark.parametrize("keep", [1, 2, 3])
def test_early_exit_equals_the_first_blocks(
    arch: str, keep: int, tiny: Any, new_context: Any, tokens: list[int]
) -> None:
    got = logits_of(new_context(tiny(arch)), tokens, LayerMask.early_exit(N_LAYER, keep))
    truncated = tiny(arch, drop_blocks=tuple(range(keep, N_LAYER)))
    np.testing.assert_array_equal(got, plain_logits_of(new_context(truncated), tokens))


@EACH_ARCH
def test_empty_mask_and_no_mask_equal_plain_decode(
    arch: str, tiny: Any, new_context: Any, tokens: list[int]
) -> None:
    want = plain_logits_of(new_context(tiny(arch)), tokens)
    np.testing.assert_array_equal(logits_of(new_context(tiny(arch)), tokens), want)
    np.testing.assert_array_equal(
        logits_of(new_context(tiny(arch)), tokens, LayerMask.full(N_LAYER)), want
    )


STOCK = """
import json, sys
import numpy as np
from tiny_mamba import write_mamba
import llama_cpp.llama_cpp as llama
n_prompt, tokens, paths = json.loads(sys.argv[1])
silent = llama.llama_log_callback(lambda *_: None)
llama.llama_log_set(silent, None)
llama.llama_backend_init()
rows = []
for path in paths:
    model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
    params = llama.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = 256, 64, 64
    params.n_threads = params.n_threads_batch = 1
    params.n_seq_max, params.kv_unified, params.swa_full = 4, True, True
    context = llama.llama_init_from_model(model, params)
    n_vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    at = 0
    for part in [tokens[:n_prompt], *([t] for t in tokens[n_prompt:])]:
        batch = llama.llama_batch_init(len(part), 0, 1)
        batch.n_tokens = len(part)
        for i, token in enumerate(part):
            batch.token[i], batch.pos[i], batch.logits[i] = token, at + i, True
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
        assert llama.llama_decode(context, batch) == 0
        at += len(part)
        for i in range(len(part)):
            row = llama.llama_get_logits_ith(context, i)
            rows.append(np.ctypeslib.as_array(row, (n_vocab,)).copy())
np.save(sys.argv[2], np.stack(rows))
"""


@pytest.mark.skipif("PYSELFSPEC_STOCK_LIB" not in os.environ, reason="no unpatched build is named")
def test_plain_decode_equals_unpatched_llama_cpp(
    tiny: Any, tokens: list[int], run_python: Any, tmp_path: Any
) -> None:
    """But for the kernels: they round otherwise, alike at every width (test_widths.py)."""
    models = [tiny(arch) for arch in tiny_archs.ARCHITECTURES]
    job = json.dumps([N_PROMPT, tokens, [str(model.path) for model in models]])
    logits = []
    for libraries in (os.environ["PYSELFSPEC_STOCK_LIB"], str(LIB_DIR)):
        out = tmp_path / f"{len(logits)}.npy"
        env = {"LLAMA_CPP_LIB_PATH": libraries, "PYSELFSPEC_KERNELS": "off"}
        run = run_python(STOCK, job, out, **env)
        assert run.returncode == 0, run.stderr
        logits.append(np.load(out))
    np.testing.assert_array_equal(*logits)


@pytest.mark.sanitized
@pytest.mark.parametrize("arch", ["llama", "gemma3", "falcon", "qwen2moe"])
@for_seeds(6)
def test_random_masks(arch: str, seed: int, tiny: Any, new_context: Any, tokens: list[int]) -> None:
    attn, ffn = np.random.default_rng(seed).random((2, N_LAYER)) < 0.5
    attn[seed % N_LAYER] = False  # something has to run
    mask = skip(np.flatnonzero(attn).tolist(), np.flatnonzero(ffn).tolist())
    print(mask)
    zeroed = tiny(arch, zero_attn=tuple(mask.skip_attn), zero_ffn=tuple(mask.skip_ffn))
    got = logits_of(new_context(tiny(arch)), tokens, mask)
    np.testing.assert_array_equal(got, plain_logits_of(new_context(zeroed), tokens))


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("qtype", ["F16", "Q8_0", "Q4_0"])
def test_other_types_and_attention_kernels(
    qtype: str, attention: str, tiny: Any, new_context: Any, tokens: list[int]
) -> None:
    attn, ffn = SKIPS["several"]
    plain = new_context(tiny(qtype=qtype), **ATTENTIONS[attention])
    zeroed = new_context(
        tiny(qtype=qtype, zero_attn=tuple(attn), zero_ffn=tuple(ffn)), **ATTENTIONS[attention]
    )
    want = plain_logits_of(zeroed, tokens)
    np.testing.assert_array_equal(logits_of(plain, tokens, skip(attn, ffn)), want)


# those that concern the last block on each architecture, all of them on one
@crossed(
    "arch skips",
    tiny_archs.ARCHITECTURES,
    SKIPS,
    always=in_turn(tiny_archs.ARCHITECTURES, ("attn-last", "ffn-last", "block-last"))
    | {*itertools.product(["llama"], SKIPS)},
)
def test_last_output_only(
    arch: str, skips: str, tiny: Any, new_context: Any, tokens: list[int]
) -> None:
    """The last block picks the output rows between its halves; that survives a skip of either."""
    attn, ffn = SKIPS[skips]
    zeroed = new_context(tiny(arch, zero_attn=tuple(attn), zero_ffn=tuple(ffn)))
    got = new_context(tiny(arch)).decode(tokens, mask=skip(attn, ffn), outputs="last")
    assert got.n_outputs == 1
    np.testing.assert_array_equal(got.logits, zeroed.decode(tokens, outputs="last").logits)


@pytest.mark.sanitized
def test_no_outputs_still_write_kv(tiny: Any, new_context: Any, tokens: list[int]) -> None:
    for name, (attn, ffn) in SKIPS.items():
        mask = skip(attn, ffn)
        a, b = new_context(tiny()), new_context(tiny())
        nothing = a.decode(tokens, mask=mask, outputs="none")
        assert nothing.logits.shape == (0, tiny().n_vocab)
        b.decode(tokens, mask=mask)
        np.testing.assert_array_equal(a.decode([7]).logits, b.decode([7]).logits, err_msg=name)


@pytest.mark.sanitized
@pytest.mark.parametrize("arch", ["llama", "gemma2", "gptneox", "qwen2moe"])
def test_masks_alternating_in_one_context(
    arch: str, tiny: Any, new_context: Any, tokens: list[int]
) -> None:
    """A graph kept for reuse must not serve another mask, whatever ran in between."""
    masks = [None, *(skip(attn, ffn) for attn, ffn in SKIPS.values())]
    shared = new_context(tiny(arch))
    shared.decode(tokens)
    n = len(tokens)
    want = {}
    for mask in masks:
        fresh = new_context(tiny(arch))
        fresh.decode(tokens)
        want[mask] = fresh.decode([7], mask=mask).logits
    for before, mask in itertools.product(masks, repeat=2):
        for each in (before, mask):
            got = shared.decode([7], mask=each).logits
            shared.sequence().rollback(n)
            np.testing.assert_array_equal(got, want[each], err_msg=f"{each} after {before}")


# --- hidden states ---------------------------------------------------------------------------


@EACH_ARCH
@pytest.mark.parametrize("entry", [1, 2, 3])
def test_entering_with_hidden_states_equals_the_ordinary_pass(
    arch: str, entry: int, tiny: Any, new_context: Any, tokens: list[int]
) -> None:
    prompt, batch, more = tokens[:6], tokens[6:10], tokens[10:]
    ordinary = new_context(tiny(arch))
    ordinary.decode(prompt)
    want = ordinary.decode(batch, hidden_at=entry)

    mask = LayerMask.enter_at(N_LAYER, entry)
    context = new_context(tiny(arch))
    context.decode(prompt)
    # Early exit: K/V of the blocks below is right, that of the others is not written at all.
    exited = context.decode(batch, mask=LayerMask.early_exit(N_LAYER, entry), hidden_at=entry)
    np.testing.assert_array_equal(exited.hidden, want.hidden)
    for ids in (None, batch):
        got = context.decode(ids, hidden=exited.hidden, pos=len(prompt), mask=mask, in_place=True)
        np.testing.assert_array_equal(got.logits, want.logits)
        assert context.sequence().n_past == len(prompt) + len(batch)

    for token in more:  # read the K/V that it left
        np.testing.assert_array_equal(
            context.decode([token]).logits, ordinary.decode([token]).logits
        )


@pytest.mark.sanitized
def test_entering_one_by_one_what_was_computed_together(tiny: Any, new_context: Any) -> None:
    """Rows of the hidden states go to their tokens, also when a graph is reused."""
    batch = [9, 8, 7, 6, 5]
    entry, mask = 2, LayerMask.enter_at(N_LAYER, 2)
    context = new_context(tiny(qtype="Q8_0"))
    want = context.decode(batch, hidden_at=entry)
    for i in range(len(batch)):
        got = context.decode(hidden=want.hidden[i : i + 1], pos=i, mask=mask, in_place=True)
        alone = new_context(tiny(qtype="Q8_0"))
        alone.decode(batch[:i] or [1], outputs="none")
        alone.sequence().rollback(i)
        np.testing.assert_array_equal(got.logits, alone.decode([batch[i]]).logits)


@pytest.mark.sanitized
@EACH_ARCH
def test_rewriting_cells_changes_only_these(
    arch: str, tiny: Any, new_context: Any, tokens: list[int]
) -> None:
    """Other tokens written in place equal a sequence that had them from the start."""
    other = list(reversed(tokens))
    context, fresh = new_context(tiny(arch)), new_context(tiny(arch))
    context.decode(tokens)
    context.decode(other[4:8], pos=4, in_place=True)
    fresh.decode([*tokens[:4], *other[4:8], *tokens[8:]])
    # K/V after the rewritten ones still comes from before: write it anew as well.
    context.decode(tokens[8:], pos=8, in_place=True)
    fresh.sequence().rollback(4)
    fresh.decode(other[4:8])
    fresh.decode(tokens[8:])
    np.testing.assert_array_equal(context.decode([7]).logits, fresh.decode([7]).logits)


@EACH_ARCH
def test_hidden_states_of_every_block(
    arch: str, tiny: Any, new_context: Any, tokens: list[int]
) -> None:
    """States entering block i are those leaving the last block of the model cut off there."""
    context = new_context(tiny(arch))
    n_embd = context.model.n_embd
    previous = None
    for at in range(1, N_LAYER + 1):
        context.sequence().drop()
        hidden = context.decode(tokens, hidden_at=at).hidden
        assert hidden is not None and hidden.shape == (len(tokens), n_embd)
        cut = new_context(tiny(arch, drop_blocks=tuple(range(at, N_LAYER))))
        np.testing.assert_array_equal(hidden, cut.decode(tokens, hidden_at=at).hidden)
        states = hidden.numpy()
        assert states.dtype == np.float32
        assert previous is None or not (states == previous).all(axis=1).any()
        previous = states


@pytest.mark.sanitized
def test_hidden_states_do_not_change_the_logits(
    tiny: Any, new_context: Any, tokens: list[int]
) -> None:
    want = new_context(tiny()).decode(tokens).logits
    for at in range(1, N_LAYER + 1):
        np.testing.assert_array_equal(new_context(tiny()).decode(tokens, hidden_at=at).logits, want)


@pytest.mark.sanitized
def test_hidden_states_pass_through_where_they_enter(tiny: Any, new_context: Any) -> None:
    states = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    got = new_context(tiny()).decode(
        hidden=states, mask=LayerMask.enter_at(N_LAYER, 2), hidden_at=2
    )
    np.testing.assert_array_equal(got.hidden, states)


def test_the_same_mask_with_and_without_hidden_states(tiny: Any, new_context: Any) -> None:
    """Same mask, same shape, but other graphs: embeddings or states enter the first block."""
    mask, context = LayerMask.enter_at(N_LAYER, 2), new_context(tiny())
    states = np.random.default_rng(0).standard_normal((1, 64)).astype(np.float32)
    want = {}
    for hidden in (None, states):
        want[hidden is None] = new_context(tiny()).decode([5], mask=mask, hidden=hidden).logits
    assert not np.array_equal(want[True], want[False])
    for hidden in (None, states, states, None, None, states):
        got = context.decode([5], mask=mask, hidden=hidden).logits
        context.sequence().drop()
        np.testing.assert_array_equal(got, want[hidden is None])


def test_returned_hidden_states_are_a_copy(tiny: Any, new_context: Any) -> None:
    context = new_context(tiny())
    first = context.decode([5, 6], hidden_at=2).hidden
    kept = first.numpy().copy()
    context.decode([7, 8], hidden_at=2)
    np.testing.assert_array_equal(first, kept)


# --- what a model can skip -------------------------------------------------------------------


@EACH_ARCH
def test_support_is_complete(arch: str, tiny: Any, new_context: Any) -> None:
    support = new_context(tiny(arch)).mask_support
    assert support.complete
    assert support.attn == support.ffn == set(ALL)


def test_asking_for_support_leaves_the_context_alone(
    tiny: Any, new_context: Any, tokens: list[int]
) -> None:
    asked, fresh = new_context(tiny()), new_context(tiny())
    for context in (asked, fresh):
        context.decode(tokens)
    before = asked.argmax(len(tokens) - 1)
    assert asked.mask_support.complete
    assert asked.argmax(len(tokens) - 1) == before  # its logits too
    for token in (7, 8, 9):
        np.testing.assert_array_equal(asked.decode([token]).logits, fresh.decode([token]).logits)
        del asked.mask_support  # ask anew, between steps that could share a graph
        assert asked.mask_support.complete


# --- what it costs ---

# of a skipped feed-forward part, by the names that llama.cpp gives its results
LEFT = {
    "llama": {"out"},
    "qwen3moe": {"moe_out"},
    "qwen2moe": {"norm", "moe_out", "shexp", "shexp_gate_inp", "shexp_gate", "shexp_out", "out"},
}


@pytest.mark.parametrize("arch", LEFT)
def test_what_is_left_of_a_skipped_part(arch: str, tiny: Any) -> None:
    """No product but that of a shared expert's gate; no router either."""
    name_of = llama._lib.ggml_get_name
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.c_void_p]
    names: list[str] = []

    @llama.ggml_backend_sched_eval_callback
    def note(tensor: int, _ask: bool, _data: Any) -> bool:
        names.append(name_of(tensor).decode())
        return False

    params = llama.llama_context_default_params()
    params.n_ctx, params.n_threads, params.cb_eval = 256, 1, note
    handle = llama.llama_init_from_model(tiny(arch).handle, params)
    session = native.selfspec_init(handle)
    mask = LayerMask.skipping(N_LAYER, ffn=[1])
    calls.decode(
        session, tokens=[5], seq_ids=[0], pos=[0], outputs=b"\1", hidden=None,
        mask=mask.to_bytes(), hidden_at=(), hidden_out=None, head="logits", in_place=False,
    )  # fmt: skip
    native.selfspec_free(session)
    llama.llama_free(handle)

    def parts_of(il: int) -> set[str]:
        found = (re.fullmatch(rf"ffn_(.*)-{il}", name) for name in names)
        return {match[1] for match in found if match} - {"inp"}  # what goes in

    assert parts_of(1) == LEFT[arch]
    assert parts_of(1) < parts_of(2)


# --- refusals --------------------------------------------------------------------------------

STATES = np.zeros((2, 64), np.float32)
ENTER = LayerMask.enter_at(N_LAYER, 2)

# arguments of a decode on a context that holds 8 tokens; the error; a part of its message
REFUSED: dict[str, tuple[dict[str, Any], type[SelfSpecError], str]] = {
    "mask of another model": (
        {"tokens": [5], "mask": LayerMask.early_exit(3, 2)}, MaskError, "for 3 blocks"
    ),
    "no tokens": ({"tokens": []}, ArgumentError, "allowed is 1 to n_batch = 16"),
    "nothing at all": ({}, ArgumentError, "allowed is 1 to n_batch = 16"),
    "more than a batch": ({"tokens": [5] * 17}, ArgumentError, "n_tokens is 17"),
    "negative token": ({"tokens": [5, -1]}, ArgumentError, "token id -1"),
    "token after the last": ({"tokens": [317]}, ArgumentError, "0 to 316"),
    "gap": ({"tokens": [5], "pos": 10}, ArgumentError, "starts at 8, not at 10"),
    "overlap": ({"tokens": [5], "pos": 7}, ArgumentError, "starts at 8, not at 7"),
    "negative position": ({"tokens": [5], "pos": -1}, ArgumentError, "not at -1"),
    "in place after the end": (
        {"tokens": [5], "pos": 8, "in_place": True}, ArgumentError, "held 0 to 7"
    ),
    "in place across the end": (
        {"tokens": [5, 6], "pos": 7, "in_place": True}, ArgumentError, "asked 7 to 8"
    ),
    "in place before the start": (
        {"tokens": [5, 6], "pos": -1, "in_place": True}, ArgumentError, "asked -1 to 0"
    ),
    "states at block 0": ({"tokens": [5], "hidden_at": 0}, ArgumentError, "1 to 4"),
    "states after the end": ({"tokens": [5], "hidden_at": 5}, ArgumentError, "1 to 4"),
    "states at -1": ({"tokens": [5], "hidden_at": -1}, ArgumentError, "1 to 4"),
    "last states without outputs": (
        {"tokens": [5, 6], "hidden_at": 4, "outputs": "last"}, ArgumentError, "outputs of all"
    ),
    "states without a mask": ({"hidden": STATES}, ArgumentError, "mask"),
    "states into block 0": (
        {"hidden": STATES, "mask": LayerMask.full(N_LAYER)}, ArgumentError, "mask"
    ),
    "states of another width": (
        {"hidden": STATES[:, :32], "mask": ENTER}, ArgumentError, r"\[n_tokens, 64\], got \[2, 32\]"
    ),
    "states in one row": (
        {"hidden": STATES[0], "mask": ENTER}, ArgumentError, r"\[n_rows, n_embd\], got .64\W"
    ),
    "fewer tokens than states": (
        {"tokens": [5], "hidden": STATES, "mask": ENTER}, ArgumentError, "1 tokens"
    ),
    "no states": ({"hidden": STATES[:0], "mask": ENTER}, ArgumentError, "n_tokens is 0"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_change_nothing(name: str, tiny: Any, new_context: Any, tokens: list[int]) -> None:
    arguments, error, message = REFUSED[name]
    context, fresh = (new_context(tiny(), n_batch=16) for _ in range(2))
    for each in (context, fresh):
        each.decode(tokens[:8])
    with pytest.raises(error, match=message):
        context.decode(**arguments)
    assert context.sequence().n_past == 8
    np.testing.assert_array_equal(context.decode([5]).logits, fresh.decode([5]).logits)


@pytest.mark.sanitized
def test_full_cache_changes_nothing(tiny: Any, new_context: Any) -> None:
    context, fresh = new_context(tiny()), new_context(tiny())
    for each in (context, fresh):
        for _ in range(4):
            each.decode([5] * 62)
    with pytest.raises(ContextFullError, match="n_ctx is 256"):
        context.decode([5] * 9, mask=skip([1], [1]))
    assert context.sequence().n_past == 4 * 62
    np.testing.assert_array_equal(context.decode([6] * 8).logits, fresh.decode([6] * 8).logits)


@pytest.fixture
def mamba(tmp_path: Path) -> Iterator[Callable[..., Context]]:
    """Contexts on models by write_mamba."""
    with ExitStack() as stack:

        def context(zero: Collection[int] = (), n_snapshots: int | None = None) -> Context:
            path = write_mamba(tmp_path / f"mamba{sorted(zero)}.gguf", zero)
            model = stack.enter_context(Model(path))
            return model.context(
                n_ctx=64, n_batch=16, n_threads=1, n_seq_max=2, n_snapshots=n_snapshots
            )

        yield context


@pytest.mark.sanitized
def test_recurrent_models_refuse_what_they_cannot(mamba: Any) -> None:
    """Without snapshots and replay."""
    context, fresh = mamba(n_snapshots=0), mamba(n_snapshots=0)
    for each in (context, fresh):
        each.decode([5, 6, 7])
    assert not context.abilities.can_rollback
    with pytest.raises(UnsupportedError, match="in place"):
        context.decode([8], pos=2, in_place=True)
    with pytest.raises(UnsupportedError, match="draft=None"):
        context.sequence().rollback(2)
    assert context.sequence().n_past == 3
    np.testing.assert_array_equal(context.decode([8]).logits, fresh.decode([8]).logits)
    context.sequence().drop()
    assert context.sequence().n_past == 0


@pytest.mark.sanitized
@pytest.mark.parametrize("blocks", [[0], [1], [0, 1]])
def test_recurrent_masks_are_exact_or_refused(
    blocks: list[int], mamba: Any, tokens: list[int]
) -> None:
    context = mamba()
    mask = LayerMask.skipping(2, attn=blocks)
    if context.mask_support.attn >= set(blocks):
        want = plain_logits_of(mamba(zero=blocks), tokens)
        np.testing.assert_array_equal(logits_of(context, tokens, mask), want)
    else:
        with pytest.raises(UnsupportedError, match="mamba, block"):
            context.decode(tokens, mask=mask)


# --- the memory plan -------------------------------------------------------------------------


@pytest.mark.parametrize("hidden_at", [None, 1, 3])
@pytest.mark.parametrize("n_tokens", [1, 4])
@pytest.mark.parametrize("arch", ["llama", "qwen2moe", "gemma2"])
def test_a_request_repeated_after_a_shift_of_positions(
    arch: str, n_tokens: int, hidden_at: int | None, tiny: Any, new_context: Any
) -> None:
    """A shift replaces the memory plan of the last graph; the next one needs its own."""
    mask = LayerMask.skipping(N_LAYER, ffn=[2])
    results = []
    for something_between in (False, True):
        context = new_context(tiny(arch))
        memory = llama.llama_get_memory(context.handle)
        context.decode(range(20, 30))
        context.decode(range(30, 30 + n_tokens), mask=mask, hidden_at=hidden_at)
        llama.llama_memory_seq_rm(memory, 0, 0, 2)
        llama.llama_memory_seq_add(memory, 0, 2, -1, -2)
        if something_between:
            other = context.sequence(2)
            context.decode([40], seq=other)
            other.drop()
        got = context.decode(range(50, 50 + n_tokens), mask=mask, hidden_at=hidden_at)
        results.append((got.logits, got.hidden))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    if hidden_at is not None:
        np.testing.assert_array_equal(results[0][1], results[1][1])


# --- prepared graphs -------------------------------------------------------------------------

N_SLOTS = 12  # graph/slots.h


def many_masks(n: int) -> list[LayerMask]:
    """Different masks, more than graphs are kept for."""
    pairs = itertools.product(range(1 << N_LAYER), range(1 << N_LAYER))
    masks = (
        LayerMask.skipping(
            N_LAYER,
            attn=[il for il in ALL if a >> il & 1],
            ffn=[il for il in ALL if f >> il & 1],
        )
        for a, f in pairs
        if (a, f) != (15, 15)
    )
    return list(itertools.islice(masks, 0, 8 * n, 8))


@pytest.mark.sanitized
def test_graphs_that_make_room_for_each_other(tiny: Any, new_context: Any) -> None:
    """More masks and widths than slots, twice around: what comes back is what was asked for."""
    context, model = new_context(tiny()), tiny()
    context.decode(range(20, 30))
    for _ in range(2):
        for i, mask in enumerate(many_masks(N_SLOTS + 5)):
            tokens = range(40, 41 + i % 3)
            got = context.decode(tokens, mask=mask, pos=10).logits
            context.sequence().rollback(10)
            fresh = new_context(model)
            fresh.decode(range(20, 30))
            np.testing.assert_array_equal(got, fresh.decode(tokens, mask=mask).logits)


@pytest.mark.sanitized
def test_memory_of_prepared_graphs_is_bounded(tiny: Any, new_context: Any) -> None:
    context = new_context(tiny())
    assert context.graph_bytes == 0
    sizes = []
    for mask in many_masks(3 * N_SLOTS):
        context.decode([5], mask=mask)
        sizes.append(context.graph_bytes)
    assert 0 < sizes[0] < sizes[N_SLOTS - 1]
    assert max(sizes[N_SLOTS:]) <= 1.2 * sizes[N_SLOTS - 1]
    context.decode(range(20, 60))  # a prompt uses the context's own memory
    assert context.graph_bytes == sizes[-1]


NO_MEMORY = """
import resource, sys
import numpy as np
from tiny_mamba import write_mamba
from pathlib import Path
from pyselfspec import Model
with (
    # a copy would leave freed memory to use, a GPU has memory of its own
    Model(sys.argv[1], load="map", n_gpu_layers=0) as model,
    model.context(n_ctx=256, n_batch=64, n_threads=1) as context,
):
    def logits(n):
        context.sequence().drop()
        return context.decode(range(20, 20 + n)).logits

    logits(40)  # makes room for outputs, in the context's own graph
    limits = resource.getrlimit(resource.RLIMIT_AS)
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + (16 << 20), limits[1]))
    context.sequence().drop()
    context.decode(range(20, 36))
    size = context.graph_bytes
    resource.setrlimit(resource.RLIMIT_AS, limits)
    want = logits(16)
    print(size, context.graph_bytes > 0, np.isfinite(want).all())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits memory as Linux does")
def test_memory_for_a_prepared_graph_that_cannot_be_had(run_python: Any, tmp_path: Path) -> None:
    """The context's own graph, reserved at its start, takes the pass; later ones work again."""
    shape = random_gguf.Shape(n_layer=2, n_embd=256, n_ff=256, n_vocab=200_000)
    recipe = random_gguf.Recipe(shape, "Q4_0", seed=0, late_scale=1.0, late_from=1)
    random_gguf.write(tmp_path / "large.gguf", recipe, 4096, lambda _: None)
    # without layers on it, CUDA still has memory to give, and so have arenas of other threads
    environment = {"CUDA_VISIBLE_DEVICES": "", "MALLOC_ARENA_MAX": "1"}
    run = run_python(NO_MEMORY, tmp_path / "large.gguf", **environment)
    assert run.stdout == "0 True True\n", f"exit status {run.returncode}: {run.stderr[-500:]}"
