"""Texts about pictures: with drafts they are those without, and pictures are read once.

The oracle evaluates the chunks of a prompt with libmtmd's own helper in a context of its own, and
decodes token by token.
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixture_types import NewContext, TinyModel, TinyPath
from numpy.typing import NDArray
from png_files import png
from tiny_hybrids import write_hybrid
from tiny_mmproj import MROPE, N_ROWS, write

from pyselfspec import GREEDY, Completion, Context, Fixed, Model
from pyselfspec.errors import ArgumentError, ModelFileError, UnsupportedError
from pyselfspec.runtime.ffi import pictures as ffi
from pyselfspec.runtime.ffi.load import llama
from pyselfspec.runtime.passes import FULL, Hidden, Pass, PictureRows, Rows
from pyselfspec.runtime.pictures import Picture, PictureMap
from pyselfspec.runtime.projector import Projector
from pyselfspec.runtime.projector_trial import require_sound
from tools.models import hybrids

N_PREDICT = 24
DRAFTS: list[dict[str, Any]] = [
    {"draft": None},
    {"draft": "ngram"},
    {"draft": "auto"},
    {"draft": "layer-skip", "controller": Fixed(4, p_min=0)},
    {"draft": "ngram+layer-skip"},
]


PAIRS = (
    *(("llama", kind) for kind in sorted(N_ROWS)),
    *(("qwen2vl", MROPE), ("lfm2", "janus_pro"), ("qwen35", MROPE)),
)


@pytest.fixture(scope="module", params=PAIRS, ids="-".join)
def projector(
    request: Any, tiny_path: TinyPath, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Projector]:
    arch, kind = request.param
    folder = tmp_path_factory.mktemp("mmproj")
    is_hybrid = arch in hybrids.TINY
    file = write_hybrid(folder / "m.gguf", arch, varied=True) if is_hybrid else tiny_path(arch)
    with Model(file) as model:
        path = write(folder / "p.gguf", model.n_embd, kind)
        with Projector(model, path, n_threads=1) as made:
            yield made


def prompt_of(model: Model, before: str, picture: Picture, after: str) -> list[int]:
    def tokens(text: str) -> list[int]:
        return model.tokenize(text, add_special=False)

    return [*tokens(before), *picture.tokens, *tokens(after)]


def oracle(
    projector: Projector, data: bytes, before: str, after: str, context: Context
) -> tuple[list[int], NDArray[np.float32]]:
    """The most likely tokens, by libmtmd's own evaluation of the prompt, and the logits after the
    prompt and all of them but the last."""
    library, model = ffi.mtmd(), projector.model
    buffer = (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
    bitmap = library.mtmd_helper_bitmap_init_from_buf(projector._handle, buffer, len(data), False)
    chunks = library.mtmd_input_chunks_init()
    marker = library.mtmd_default_marker()
    text = library.mtmd_input_text(marker, len(marker), False, True)
    bitmaps = (library.mtmd_bitmap_p_ctypes * 1)(bitmap)
    assert not library.mtmd_tokenize(projector._handle, chunks, ctypes.byref(text), bitmaps, 1)
    first = model.tokenize(before, add_special=False)
    decode(context, first, 0)
    n_past = ctypes.c_int32()
    assert not library.mtmd_helper_eval_chunks(
        projector._handle, context.handle, chunks, len(first), 0, context.n_batch, False,
        ctypes.byref(n_past),
    )  # fmt: skip
    library.mtmd_input_chunks_free(chunks)
    library.mtmd_bitmap_free(bitmap)
    last = model.tokenize(after, add_special=False)
    logits = decode(context, last, n_past.value)
    found = [int(np.argmax(logits))]
    pos = n_past.value + len(last)
    while len(found) < N_PREDICT:
        logits = decode(context, found[-1:], pos + len(found) - 1)
        found.append(int(np.argmax(logits)))
    return found, logits


def decode(context: Context, tokens: Sequence[int], pos: int) -> NDArray[np.float32]:
    """Evaluate tokens from a position on as llama.cpp does. Returns the logits after the last."""
    n = len(tokens)
    batch = llama.llama_batch_init(n, 0, 1)
    batch.n_tokens = n
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.logits[i] = token, pos + i, i + 1 == n
        batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
    assert not llama.llama_decode(context.handle, batch)
    llama.llama_batch_free(batch)
    logits = llama.llama_get_logits_ith(context.handle, n - 1)
    return np.ctypeslib.as_array(logits, (context.model.n_vocab,)).copy()


def text_of(context: Context, prompt: Sequence[int], pictures: Any, **options: Any) -> Completion:
    made = Completion(
        context, prompt, n_predict=N_PREDICT, sampling=GREEDY, pictures=pictures, **options
    )
    for _ in made:
        pass
    return made


BEFORE, AFTER = "Look at this: ", " What is it? Look at this: "


@pytest.mark.parametrize("drafting", DRAFTS)
def test_texts_are_those_of_libmtmd(
    drafting: dict[str, Any], projector: Projector, new_context: NewContext
) -> None:
    model, texts = projector.model, set()
    context = new_context(model, n_ctx=512, n_batch=64)
    for seed in (0, 1, 0):
        data = png(seed, 200, 120)  # of MROPE, more rows than fit into a pass
        picture = projector.read(data)
        other = new_context(model, n_ctx=512, n_batch=64)
        want, _ = oracle(projector, data, BEFORE, AFTER, other)
        prompt = prompt_of(model, BEFORE, picture, AFTER)
        if model.state_bytes and "layer-skip" in str(drafting["draft"]):
            with pytest.raises(UnsupportedError, match="drop any number of tokens"):
                text_of(context, prompt, [picture], **drafting)
            return
        made = text_of(context, prompt, [picture], **drafting)
        assert made.tokens == want[: len(made.tokens)]
        assert len(made.tokens) == N_PREDICT or made.finish_reason == "eog"
        texts.add(tuple(want))
    assert len(texts) == 2, "the pictures make no difference"


def test_logits_are_those_of_libmtmd(projector: Projector, new_context: NewContext) -> None:
    """Also in a fork, and cut back into the text after the picture."""
    model, data = projector.model, png(0, 200, 120)
    want, logits = oracle(projector, data, BEFORE, AFTER, new_context(model, n_ctx=512, n_batch=64))
    picture = projector.read(data)
    text = [*prompt_of(model, BEFORE, picture, AFTER), *want[:-1]]
    context, pictures = (
        new_context(model, n_ctx=512, n_batch=64, n_seq_max=2),
        PictureMap([picture]),
    )
    seq, pos, end = context.sequence(), 0, len(text) - 5
    while pos < end:
        n, rows = pictures.next_pass(text, pos, min(16, end - pos), context.n_batch)
        context.run(Rows.of(0, pos, text[pos : pos + n], "none"), rows or FULL)
        pos += n
    seq.save_checkpoint()  # where the model has recurrent states
    for same in (seq, seq.fork(1), seq):
        same.rollback(end)
        found = context.decode(text[end:], seq=same, outputs="last").logits[0]
        np.testing.assert_allclose(found, logits, atol=1e-4)


def test_a_picture_is_read_once(projector: Projector, new_context: NewContext) -> None:
    model = projector.model
    context = new_context(model, n_ctx=512, n_batch=64)
    one, two = (projector.read(png(seed)) for seed in (0, 1))
    assert projector.read(png(0)) is one
    assert [t for t in one.tokens if t < 0] != [t for t in two.tokens if t < 0]

    def n_reused(picture: Picture, after: str) -> int:
        prompt = prompt_of(model, BEFORE, picture, after)
        return text_of(context, prompt, [picture], draft=None).stats.n_prompt_reused

    prompt = prompt_of(model, BEFORE, one, "")
    n_before = len(prompt) - len(one.tokens)
    end = 1 + max(i for i, token in enumerate(prompt) if token < 0)
    assert n_reused(one, AFTER) == 0
    assert n_reused(one, "Something else") >= end
    assert n_before <= n_reused(two, AFTER) < n_before + N_ROWS["gemma3"]
    assert n_reused(two, AFTER) >= end


def test_what_drafters_and_prompts_may_hold(projector: Projector, new_context: NewContext) -> None:
    context = new_context(projector.model, n_ctx=512, n_batch=64)
    picture = projector.read(png(0))
    prompt = prompt_of(projector.model, BEFORE, picture, AFTER)
    with pytest.raises(ArgumentError, match="the prompt has a row of another picture"):
        text_of(context, prompt, [])
    with pytest.raises(ArgumentError, match="ends with a picture"):
        text_of(context, [t for t in prompt if t < 0], [picture])
    with pytest.raises(ArgumentError, match=r"the drafter head reads text only; with pictures use"):
        text_of(context, prompt, [picture], draft="head")


def shrunk(data: bytes, side: int) -> bytes:
    """A PNG file with more data than its size says."""
    kind = b"IHDR" + side.to_bytes(4, "big") * 2 + data[24:29]
    return data[:12] + kind + zlib.crc32(kind).to_bytes(4, "big") + data[33:]


def test_pictures_that_are_refused(projector: Projector) -> None:
    for data, words in (
        (b"hello", "no known format"),
        (b"RIFF....WAVE", "no known format"),
        (png(0)[:60], "cannot be decoded"),
        (shrunk(png(0, 300, 300), 8), "unpack to more than its 8 x 8 pixels"),
        (png(0, 1, 1)[:16] + (1 << 20).to_bytes(4, "big") * 2 + png(0)[24:], "make it smaller"),
    ):
        with pytest.raises(Exception, match=words) as error:
            projector.read(data)
        assert "\n" not in str(error.value)


def test_files_that_are_refused(tiny: TinyModel, tiny_path: TinyPath, tmp_path: Path) -> None:
    model = tiny()
    with pytest.raises(ModelFileError, match="is no projector"):
        Projector(model, tiny_path())
    other = write(tmp_path / "wide.gguf", 2 * model.n_embd)
    with pytest.raises(ModelFileError, match="cannot load this projector"):
        Projector(model, other)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ({"n_head": 3}, "head_count is 3, which does not divide 32 values"),
        ({"n_head": 0}, "head_count is 0, not 1 or more"),
        *(
            ({"cut": f"v.blk.1.{name}.weight"}, "does not fit the blocks of 32 values")
            for name in ("attn_q", "attn_v", "attn_out", "ffn_up", "ffn_down")
        ),
        ({"cut": "v.blk.0.attn_k.bias"}, "attn_k.bias has 16 values, not 32"),
    ],
)
def test_encoders_that_do_not_fit_their_header(
    broken: dict[str, Any], words: str, tiny: TinyModel, tmp_path: Path
) -> None:
    """The first picture would end the process."""
    with pytest.raises(ModelFileError, match=words):
        Projector(tiny(), write(tmp_path / "p.gguf", tiny().n_embd, **broken))


def test_projectors_are_tried_in_another_process(tiny_path: TinyPath, tmp_path: Path) -> None:
    require_sound(tiny_path(), write(tmp_path / "sound.gguf", 64))
    broken = write(tmp_path / "broken.gguf", 64, "janus_pro", cut="mm.1.weight")
    with pytest.raises(ModelFileError, match=r"cannot prepare a picture.*GGML_ASSERT"):
        require_sound(tiny_path(), broken)
    require_sound(tiny_path(), tiny_path())  # Projector says what is wrong


def test_rows_that_do_not_fit_into_a_pass(tiny: TinyModel, new_context: NewContext) -> None:
    """Before, llama.cpp ended the process."""
    context = new_context(tiny(), n_batch=32)
    rows = Rows.of(0, 0, [-1 - i for i in range(33)], "none")
    states = Hidden(np.zeros((33, tiny().n_embd), np.float32))
    with pytest.raises(ArgumentError, match="33 rows of a picture do not fit into a pass of 32"):
        context.run(rows, Pass(embedded=PictureRows(states, is_causal=True)))


def decode_rows(context: Context, states: NDArray[np.float32], grid: Any, pos: int) -> None:
    """Evaluate rows of a picture as llama.cpp does with M-RoPE."""
    n = len(states)
    places = [pos] * n + [pos + row for row, _ in grid] + [pos + column for _, column in grid]
    seq_id = ctypes.c_int32(0)
    batch = llama.llama_batch(
        n, None, states.ctypes.data_as(ctypes.POINTER(ctypes.c_float)),
        (ctypes.c_int32 * (4 * n))(*places), (ctypes.c_int32 * n)(*[1] * n),
        (ctypes.POINTER(ctypes.c_int32) * n)(*[ctypes.pointer(seq_id)] * n), (ctypes.c_int8 * n)(),
    )  # fmt: skip
    assert not llama.llama_decode(context.handle, batch)


def test_rows_that_are_wider_than_the_model(tiny: TinyModel, new_context: NewContext) -> None:
    """Qwen3-VL's, of which the first blocks add a part each."""
    model = tiny("qwen3vl")
    assert model.n_embd_in == 3 * model.n_embd
    states = np.random.default_rng(0).standard_normal((6, model.n_embd_in), np.float32)
    grid = np.array([(i // 3, i % 3) for i in range(6)], np.int32)
    other = new_context(model)
    decode(other, [5, 6, 7], 0)
    decode_rows(other, states, grid, 3)
    want = decode(other, [8, 9], 6)

    context = new_context(model)
    context.decode([5, 6, 7], outputs="none")
    rows = PictureRows(Hidden(states), is_causal=True, grid=grid)
    for first, n in ((0, 4), (4, 2)):
        ids = [-1 - first - i for i in range(n)]
        context.run(Rows.of(0, 3 + first, ids, "none"), Pass(embedded=rows.part(first, n)))
    found = context.decode([8, 9], outputs="last").logits[0]
    np.testing.assert_allclose(found, want, atol=1e-4)


def test_places_in_a_picture_are_given_where_the_model_needs_them(
    tiny: TinyModel, new_context: NewContext
) -> None:
    rows, grid = Rows.of(0, 0, [-1, -2], "none"), np.array([(0, 0), (0, 1)], np.int32)
    for arch, wrong, words in (
        ("llama", grid, "have no places in it in this model"),
        ("qwen2vl", None, "need their places in it in this model"),
        ("qwen2vl", grid[:1], r"a grid has shape \[2, 2\] for 2 rows, got \[1, 2\]"),
    ):
        states = Hidden(np.zeros((2, tiny(arch).n_embd), np.float32))
        with pytest.raises(ArgumentError, match=words):
            new_context(tiny(arch)).run(
                rows, Pass(embedded=PictureRows(states, is_causal=True, grid=wrong))
            )
