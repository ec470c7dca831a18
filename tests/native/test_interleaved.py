"""Several texts in one context: each has the logits that it has alone, bit for bit.

Rows of one pass carry their own sequence and position. The oracle is the same text in a context of
its own, fed the same parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from fixture_types import NewContext, TinyModel
from numpy.typing import NDArray

from pyselfspec import Context, LayerMask, Model
from pyselfspec.errors import ArgumentError, ContextFullError
from pyselfspec.runtime.ffi import calls
from pyselfspec.runtime.ffi.load import llama, native
from tools.models import random_gguf, tiny_archs, tiny_vocab

Logits = NDArray[np.float32]
N_CTX = 512
WINDOWED = "gemma3"


def ids(n: int, rng: np.random.Generator) -> list[int]:
    return [int(t) for t in rng.integers(tiny_vocab.N_CONTROL, tiny_vocab.N_VOCAB_MIN, n)]


@dataclass
class Part:
    """Tokens that a text decodes at once, and how many of them it keeps."""

    tokens: list[int]
    n_keep: int


@dataclass
class Rows:
    """Rows of one pass."""

    tokens: list[int] = field(default_factory=list)
    seq_ids: list[int] = field(default_factory=list)
    pos: list[int] = field(default_factory=list)

    def add(self, seq_id: int, pos: int, tokens: Sequence[int]) -> None:
        self.tokens += tokens
        self.seq_ids += [seq_id] * len(tokens)
        self.pos += range(pos, pos + len(tokens))

    def shuffled(self, rng: np.random.Generator) -> Rows:
        """Sequences take turns at random, each with its rows in order."""
        order = rng.permutation(self.seq_ids)
        queues = {seq: [i for i, s in enumerate(self.seq_ids) if s == seq] for seq in order}
        picks = [queues[seq].pop(0) for seq in order]
        return Rows(*([each[i] for i in picks] for each in (self.tokens, self.seq_ids, self.pos)))


def decode(
    context: Context,
    rows: Rows,
    *,
    outputs: bytes | None = None,
    mask: LayerMask | None = None,
    hidden: NDArray[np.float32] | None = None,
    hidden_at: int | None = None,
    head: str = "logits",
    in_place: bool = False,
) -> NDArray[np.float32]:
    """Decode rows; the states entering block hidden_at."""
    n = len(rows.tokens)
    hidden_out = np.zeros((n, context.model.n_embd), np.float32)
    calls.decode(
        context.session,
        tokens=rows.tokens,
        seq_ids=rows.seq_ids,
        pos=rows.pos,
        outputs=b"\1" * n if outputs is None else outputs,
        hidden=hidden,
        mask=None if mask is None else mask.to_bytes(),
        hidden_at=() if hidden_at is None else (hidden_at,),
        hidden_out=None if hidden_at is None else hidden_out,
        head=head,
        in_place=in_place,
    )
    return hidden_out


def logits_of(context: Context, rows: Rows) -> dict[int, list[Logits]]:
    """Return the logits of every row by sequence, in the order of positions."""
    found: dict[int, list[Logits]] = {seq: [] for seq in rows.seq_ids}
    for i, seq in enumerate(rows.seq_ids):
        found[seq].append(calls.logits(context.session, i, context.model.n_vocab))
    return found


def parts_of(n_prompt: int, n_steps: int, rng: np.random.Generator) -> list[Part]:
    """A prompt, then checks of drafts of which some tokens are taken back."""
    parts = [Part(ids(n_prompt, rng), n_prompt)]
    for _ in range(n_steps):
        width = int(rng.integers(1, 6))
        parts.append(Part(ids(width, rng), int(rng.integers(1, width + 1))))
    return parts


def alone(context: Context, parts: Sequence[Part]) -> list[Logits]:
    rows, seq = [], context.sequence()
    for part in parts:
        n_past = seq.n_past
        rows.append(context.decode(part.tokens).logits)
        seq.rollback(n_past + part.n_keep)
    return rows


def together(
    context: Context, texts: Sequence[Sequence[Part]], rng: np.random.Generator
) -> list[list[Logits]]:
    """Each pass takes the next part of some of the texts; a prompt has a pass of its own."""
    got: list[list[Logits]] = [[] for _ in texts]
    while open_texts := [i for i, text in enumerate(texts) if len(got[i]) < len(text)]:
        chosen = [i for i in open_texts if rng.random() < 0.7] or open_texts[:1]
        if prompts := [i for i in chosen if not got[i]]:
            chosen = prompts[:1]
        rows, kept = Rows(), {}
        for i in chosen:
            part, n_past = texts[i][len(got[i])], context.sequence(i).n_past
            rows.add(i, n_past, part.tokens)
            kept[i] = n_past + part.n_keep
        rows = rows.shuffled(rng)
        decode(context, rows)
        for i, logits in logits_of(context, rows).items():
            got[i].append(np.stack(logits))
            context.sequence(i).rollback(kept[i])
    return got


def assert_alone_and_together_agree(
    new: Callable[[], Context], prompts: Sequence[int], n_steps: int, seed: int
) -> None:
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    texts = [parts_of(n, n_steps, rng) for n in prompts]
    want = [alone(new(), text) for text in texts]
    context = new()
    if calls.exact_width(context.session) < 16:
        pytest.skip("our kernels do not compute here")
    for i, got in enumerate(together(context, texts, rng)):
        for step, (one, other) in enumerate(zip(got, want[i], strict=True)):
            np.testing.assert_array_equal(one, other, f"text {i}, step {step}")


@pytest.mark.parametrize("qtype", ["F16", "Q8_0", "Q4_0"])
@pytest.mark.parametrize("arch", ["llama", WINDOWED, "gemma2", "falcon", "qwen2moe"])
def test_texts_do_not_see_each_other(
    arch: str, qtype: str, tiny: TinyModel, new_context: NewContext
) -> None:
    """Until both together fill most of the cache, so that their cells alternate."""
    assert_alone_and_together_agree(
        lambda: new_context(tiny(arch, qtype=qtype), n_ctx=N_CTX, n_batch=256),
        prompts=[180, 40],
        n_steps=60,
        seed=sum(map(ord, arch + qtype)),
    )


@pytest.mark.sanitized
@pytest.mark.parametrize("n_threads", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_three_texts(seed: int, n_threads: int, tiny: TinyModel, new_context: NewContext) -> None:
    assert_alone_and_together_agree(
        lambda: new_context(
            tiny(WINDOWED, qtype="Q8_0"), n_ctx=1024, n_batch=256, n_threads=n_threads
        ),
        prompts=[90, 200, 41],
        n_steps=30,
        seed=seed,
    )


@pytest.mark.parametrize("type_name", ["Q4_K", "Q6_K"])
def test_types_of_wide_rows(type_name: str, tmp_path: Path, new_context: NewContext) -> None:
    shape = random_gguf.Shape(n_layer=2, n_embd=256, n_ff=512, n_vocab=519)
    recipe = random_gguf.Recipe(shape, type_name, seed=0, late_scale=1.0, late_from=1)
    random_gguf.write(tmp_path / "wide.gguf", recipe, 4096, lambda _: None)
    with Model(tmp_path / "wide.gguf") as model:
        assert_alone_and_together_agree(
            lambda: new_context(model, n_ctx=N_CTX, n_batch=256),
            prompts=[180, 40],
            n_steps=60,
            seed=7,
        )


@pytest.mark.sanitized
@pytest.mark.parametrize("arch", tiny_archs.ARCHITECTURES)
def test_drafts_of_two_texts_are_completed_in_one_pass(
    arch: str, tiny: TinyModel, new_context: NewContext
) -> None:
    """Early exits of both, then the blocks above in place, against ordinary passes."""
    rng = np.random.default_rng(1)
    texts = [ids(12, rng), ids(9, rng)]
    rows, want = Rows(), {}
    context = new_context(tiny(arch))
    for seq, tokens in enumerate(texts):
        plain = new_context(tiny(arch))
        plain.decode(tokens[:6])
        context.decode(tokens[:6], seq=context.sequence(seq))
        want[seq] = plain.decode(tokens[6:]).logits
        rows.add(seq, 6, tokens[6:])
    rows = rows.shuffled(rng)
    hidden = decode(context, rows, mask=LayerMask.early_exit(4, 2), hidden_at=2)
    decode(context, rows, mask=LayerMask.enter_at(4, 2), hidden=hidden, in_place=True)
    for seq, logits in logits_of(context, rows).items():
        np.testing.assert_array_equal(np.stack(logits), want[seq])


@pytest.fixture
def small_ubatches(tiny: TinyModel) -> Iterator[Context]:
    """A context as Context does not make it: a batch is computed in parts of three rows."""
    params = llama.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = 256, 64, 3
    params.n_threads = params.n_threads_batch = 1
    params.n_seq_max, params.kv_unified = 4, True
    handle = llama.llama_init_from_model(tiny().handle, params)
    session = native.selfspec_init(handle)
    yield cast(Context, SimpleNamespace(model=tiny(), handle=handle, session=session))
    native.selfspec_free(session)
    llama.llama_free(handle)


@pytest.mark.sanitized
@pytest.mark.parametrize("in_parts", [False, True])
def test_best_tokens_of_several_rows(
    in_parts: bool, tiny: TinyModel, new_context: NewContext, small_ubatches: Context
) -> None:
    """Every row with an output has a likeliest token, and no other row has one."""
    rng = np.random.default_rng(2)
    rows = Rows()
    rows.add(0, 0, ids(7, rng))
    rows.add(2, 0, ids(5, rng))
    outputs = bytes([0, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 1])
    plain = new_context(tiny())
    context = small_ubatches if in_parts else new_context(tiny())
    decode(plain, rows)
    decode(context, rows, outputs=outputs, head="best")
    for row, marked in enumerate(outputs):
        if marked:
            (token, p), (want, want_p) = calls.argmax(context.session, row), plain.argmax(row)
            assert token == want and p == pytest.approx(want_p, rel=1e-4)
        else:
            with pytest.raises(ArgumentError, match=f"no logits in row {row}"):
                calls.argmax(context.session, row)


@pytest.mark.sanitized
def test_states_of_a_pass_that_is_computed_in_parts(
    tiny: TinyModel, new_context: NewContext, small_ubatches: Context
) -> None:
    rng = np.random.default_rng(3)
    rows = Rows()
    rows.add(1, 0, ids(8, rng))
    mask = LayerMask.skipping(4, ffn=[3])
    want = decode(new_context(tiny()), rows, mask=mask, hidden_at=2)
    got = decode(small_ubatches, rows, mask=mask, hidden_at=2)
    np.testing.assert_array_equal(got, want)


def test_positions_of_a_sequence_go_on(tiny: TinyModel, new_context: NewContext) -> None:
    context = new_context(tiny())
    context.decode([5, 6, 7])
    for seq_ids, pos, message in (
        ([0, 0], [3, 5], "sequence 0 has 5 after 3"),
        ([0, 1, 0], [3, 0, 3], "sequence 0 has 3 after 3"),
        ([0, 1], [3, 1], "sequence 1 ends at position -1"),
        ([0, 1], [4, 0], "sequence 0 ends at position 2"),
        ([0, 4], [3, 0], "seq_id is 4, allowed is 0 to 3"),
    ):
        with pytest.raises(ArgumentError, match=message):
            decode(context, Rows([5] * len(pos), seq_ids, pos))
    assert [context.sequence(i).n_past for i in range(4)] == [3, 0, 0, 0]


@pytest.mark.sanitized
def test_after_a_failed_decode_no_row_has_an_output(
    tiny: TinyModel, new_context: NewContext
) -> None:
    context = new_context(tiny())
    for head in ("logits", "best"):
        decode(context, Rows([5], [0], [context.sequence().n_past]), head=head)
        context.argmax(0)
        with pytest.raises(ArgumentError, match="not at 99"):
            decode(context, Rows([5], [0], [99]), head=head)
        with pytest.raises(ArgumentError, match="no logits in row 0"):
            context.argmax(0)
        with pytest.raises(ArgumentError, match="no logits in row 0"):
            calls.logits(context.session, 0, context.model.n_vocab)


@pytest.mark.sanitized
def test_a_second_text_takes_the_last_cells(tiny: TinyModel, new_context: NewContext) -> None:
    """Cells are moved when only cells below those of a sequence are free."""
    context = new_context(tiny())
    one, other = context.sequence(0), context.sequence(1)
    for _ in range(3):
        context.decode([5] * 64, outputs="none", seq=one)
    context.decode([5] * 20, outputs="none", seq=other)
    context.decode([5] * 44, outputs="none", seq=other)
    assert (one.n_past, other.n_past) == (192, 64)
    with pytest.raises(ContextFullError):
        context.decode([5], seq=one)
    one.rollback(100)
    context.decode([5] * 64, seq=other)
    assert (one.n_past, other.n_past) == (100, 128)
    assert one.in_order and other.in_order


def test_asking_twice_builds_no_graph(tiny: TinyModel, new_context: NewContext) -> None:
    context = new_context(tiny())
    mask = LayerMask.early_exit(4, 2)

    def everything() -> int:
        assert context.can_enter(2) and not context.can_enter(4)
        calls.mask_support(context.session, 4)
        context.sequence().drop()
        hidden = context.decode([5, 6], mask=mask, hidden_at=2).hidden
        enter = LayerMask.enter_at(4, 2)
        context.decode([5, 6], pos=0, mask=enter, hidden=hidden, in_place=True)
        return int(native.selfspec_n_graph_checks(context.session))

    assert native.selfspec_n_graph_checks(context.session) == 0
    first = everything()
    assert first > 0
    assert everything() == first
