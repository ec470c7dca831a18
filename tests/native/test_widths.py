"""A token's logits are the same bits at every width, context length and number of threads, and
a prompt's however it is split.

The oracle is the same model fed one token at a time. What is compared runs through the kernels in
pyselfspec/native/kernels, for every type they know, with and without flash attention.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from fixture_types import NewContext, RunPython, TinyModel, TinyPath
from gguf import GGMLQuantizationType
from narrow_passes import decoded
from numpy.typing import NDArray
from parameters import crossed, nightly_unless
from preloads import preload, shared_library

from pyselfspec import Context, Model
from pyselfspec.convert import quantize
from pyselfspec.gguf.header import tensor_types
from pyselfspec.runtime.ffi import model_calls
from pyselfspec.runtime.width_check import same_at_widths
from pyselfspec.util import build
from tools.models import random_gguf, tiny_archs, tiny_gguf, tiny_vocab

WIDTHS = (2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 17, 24, 31, 32)
N_TOKENS = 32
N_PROMPT = 130
PIECES = (512, 97, 33, 7)
TYPES = ("Q4_0", "Q4_K", "Q4_K_M", "Q5_K", "Q6_K", "Q8_0", "F16", "BF16", "F32")
# The vocabulary is no multiple of eight, so the head is not repacked; rows are 3 or 5 K-blocks.
SHAPE = random_gguf.Shape(n_layer=2, n_embd=768, n_ff=1280, n_vocab=519)

Logits = NDArray[np.float32]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Model]:
    folder = tmp_path_factory.mktemp("widths")
    loaded: dict[str, Model] = {}

    def model(type_name: str) -> Model:
        if type_name not in loaded:
            path: Path = folder / f"{type_name}.gguf"
            recipe = random_gguf.Recipe(SHAPE, type_name, seed=0, late_scale=1.0, late_from=1)
            random_gguf.write(path, recipe, 4096, lambda _: None)
            loaded[type_name] = Model(path)
        return loaded[type_name]

    return model


def ids(n: int, seed: int) -> list[int]:
    low, high = tiny_vocab.N_CONTROL, tiny_vocab.N_VOCAB_MIN
    return [int(t) for t in np.random.default_rng(seed).integers(low, high, n)]


def assert_same_at_all_widths(context: Context, tokens: list[int]) -> Logits:
    want = decoded(context, tokens, 1)
    for width in WIDTHS:
        np.testing.assert_array_equal(decoded(context, tokens, width), want, f"width {width}")
    return want


def assert_same_in_all_pieces(context: Context, n_prompt: int = N_PROMPT) -> None:
    """A prompt's logits, and those of the token after it, which reads K and V of the prompt."""
    tokens = ids(n_prompt, seed=8)
    context.sequence().drop()

    def read(width: int) -> Logits:
        logits = [context.decode(tokens[i : i + width]).logits for i in range(0, n_prompt, width)]
        logits.append(context.decode(tokens[:1]).logits)
        context.sequence().drop()
        return np.concatenate(logits)

    want = read(N_TOKENS)
    assert np.isfinite(want).all()
    for piece in PIECES:
        np.testing.assert_array_equal(read(piece), want, f"pieces of {piece}")


@pytest.mark.parametrize("types", [("f16", "f16"), ("q8_0", "q8_0"), ("q4_0", "q4_0"), None])
@pytest.mark.parametrize("n_threads", [1, 2])
def test_a_prompt_does_not_depend_on_its_pieces(
    types: tuple[str, str] | None,
    n_threads: int,
    models: Callable[[str], Model],
    new_context: NewContext,
) -> None:
    """K and V of several types, and without flash attention; to beyond the 512 cells from which
    attention is divided among threads elsewhere."""
    options: dict[str, Any] = {"flash_attn": False}
    if types:
        options = {"flash_attn": True, "type_k": types[0], "type_v": types[1]}
    context = new_context(models("Q4_K_M"), n_ctx=1024, n_batch=512, n_threads=n_threads, **options)
    assert context.abilities.exact_prompts
    assert_same_in_all_pieces(context, 600)


@pytest.mark.parametrize("flash_attn", [False, True])
@pytest.mark.parametrize("type_name", TYPES)
def test_logits_do_not_depend_on_the_width(
    type_name: str, flash_attn: bool, models: Callable[[str], Model], new_context: NewContext
) -> None:
    """At the start, across a boundary of the cache's view (256 cells), and beyond the 512 cells
    from which upstream splits attention among threads; with one thread and two."""
    options = {"n_ctx": 1024, "n_batch": 512, "flash_attn": flash_attn}
    rows = []
    for n_threads in (1, 2):
        context = new_context(models(type_name), n_threads=n_threads, **options)
        for n_past in (0, 250, 700):
            context.sequence().drop()
            if n_past:
                context.prefill(ids(n_past, seed=n_past))
            rows.append(assert_same_at_all_widths(context, ids(N_TOKENS, seed=1)))
    for one, two in zip(rows[:3], rows[3:], strict=True):
        np.testing.assert_array_equal(one, two, "number of threads")


@pytest.mark.parametrize("types", [("bf16", "bf16"), ("q8_0", "q8_0"), ("q5_1", "iq4_nl")])
def test_logits_do_not_depend_on_the_width_whatever_k_and_v_are(
    types: tuple[str, str], models: Callable[[str], Model], new_context: NewContext
) -> None:
    """Behind enough cells for upstream to split them among the threads; with one thread and two."""
    options = {"n_ctx": 1024, "n_batch": 512, "flash_attn": True}
    rows = []
    for n_threads in (1, 2):
        context = new_context(
            models("Q8_0"), n_threads=n_threads, type_k=types[0], type_v=types[1], **options
        )
        context.prefill(ids(700, seed=7))
        rows.append(assert_same_at_all_widths(context, ids(N_TOKENS, seed=1)))
    np.testing.assert_array_equal(rows[0], rows[1], "number of threads")


@pytest.mark.slow
@pytest.mark.parametrize("flash_attn", [False, True])
@pytest.mark.parametrize("type_name", nightly_unless(["Q4_0", "Q8_0", "Q4_K", "F16"], TYPES))
def test_logits_do_not_depend_on_the_width_in_a_long_context(
    type_name: str, flash_attn: bool, models: Callable[[str], Model], new_context: NewContext
) -> None:
    context = new_context(
        models(type_name), n_ctx=2304, n_batch=512, n_threads=2, flash_attn=flash_attn
    )
    for n_past in (1, 17, 500, 1023, 1530, 2000):
        context.sequence().drop()
        context.prefill(ids(n_past, seed=n_past))
        assert_same_at_all_widths(context, ids(N_TOKENS, seed=2))


QTYPES = ("F32", "F16", "Q8_0", "Q4_0")


# types in turn: all of them are in test_every_type_of_the_pin
@crossed(
    "arch qtype flash_attn",
    tiny_archs.ARCHITECTURES,
    QTYPES,
    (False, True),
    always={
        (arch, QTYPES[(i + 2 * flash_attn) % 4], flash_attn)
        for i, arch in enumerate(tiny_archs.ARCHITECTURES)
        for flash_attn in (False, True)
    },
)
def test_every_architecture(
    arch: str, qtype: str, flash_attn: bool, tiny: TinyModel, new_context: NewContext
) -> None:
    """Small rows, experts, biases, shared and single K/V heads, windows."""
    context = new_context(tiny(arch, qtype=qtype), flash_attn=flash_attn, n_batch=N_PROMPT)
    context.prefill(ids(40, seed=3))
    assert_same_at_all_widths(context, ids(N_TOKENS, seed=4))
    assert_same_in_all_pieces(context)


# Types of matrices; the others are activations, indices, or for reference only.
NO_WEIGHTS = {"Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64"}
ALL_TYPES = {name: n for n, (name, *_) in tensor_types().items() if name not in NO_WEIGHTS}
# For prompts, upstream's products are used.
INEXACT_PROMPTS = {"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"}


def quantized(rows: NDArray[np.float32], ggml_type: int) -> NDArray[np.uint8]:
    """By ggml, all weights of the same importance."""
    ggml = ctypes.CDLL(str(sorted(build.LIB_DIR.glob("*ggml-base*"))[0]))
    ggml.ggml_quantize_chunk.restype = ctypes.c_size_t
    _, block_size, block_bytes = tensor_types()[ggml_type]
    n_rows, n = rows.shape
    out = np.empty((n_rows, n // block_size * block_bytes), np.uint8)
    pointers = (a.ctypes.data_as(ctypes.c_void_p) for a in (rows, out, np.ones(n, np.float32)))
    source, target, importance = pointers
    sizes = (ctypes.c_int64(0), ctypes.c_int64(n_rows), ctypes.c_int64(n))
    assert ggml.ggml_quantize_chunk(ggml_type, source, target, *sizes, importance) == out.nbytes
    return out


@dataclass(frozen=True)
class OfOneType(random_gguf.Recipe):
    """All matrices in a type that the recipe does not know."""

    matrix_type: GGMLQuantizationType

    def tensor_type(self, tensor: tiny_archs.Tensor) -> GGMLQuantizationType:
        return GGMLQuantizationType.F32 if tensor.keep_f32 else self.matrix_type

    def data(self, tensor: tiny_archs.Tensor) -> NDArray[Any]:
        if tensor.keep_f32:
            return super().data(tensor)
        rng = tiny_gguf.tensor_rng(self.seed, tensor.name)
        n_rows, n = tensor.shape
        rows = rng.standard_normal((min(n_rows, 37), n), np.float32) / np.float32(n**0.5)
        some = quantized(rows, self.matrix_type)  # a row of IQ1 takes milliseconds
        return np.resize(some, (n_rows, some.shape[1]))


@pytest.mark.parametrize("type_name", ALL_TYPES)
def test_every_type_of_the_pin(
    type_name: str, tiny_path: TinyPath, new_context: NewContext, tmp_path: Path
) -> None:
    """Exact with this processor: what the library repacks and, in the head, what it does not."""
    path = tmp_path / "model.gguf"
    if type_name in GGMLQuantizationType.__members__:
        shape = random_gguf.Shape(n_layer=1, n_embd=256, n_ff=768, n_vocab=519)
        recipe = OfOneType(shape, "F32", 0, 1.0, 1, GGMLQuantizationType[type_name])
        random_gguf.write(path, recipe, 256, lambda _: None)
    else:  # newer than gguf-py
        source = tiny_path(n_embd=256, n_layer=1)
        assert (
            model_calls.quantize(bytes(source), bytes(path), quantize.TYPES[type_name.lower()], 1)
            == 0
        )
    with Model(path) as model:
        context = new_context(model, n_batch=N_PROMPT)
        if not context.abilities.exact_width:
            pytest.skip("our kernels do not compute here")
        assert any(t.type == type_name for t in model.file.tensors)
        assert_same_at_all_widths(context, ids(N_TOKENS, seed=6))
        assert context.abilities.exact_prompts == (type_name not in INEXACT_PROMPTS)
        if context.abilities.exact_prompts:
            assert_same_in_all_pieces(context)


PROMISED = """
import sys
from pyselfspec import Model
with Model(sys.argv[1]) as model, model.context(n_ctx=256, n_threads=1) as context:
    print(context.abilities.exact_width)
"""


def test_the_promised_width(tiny: TinyModel, run_python: RunPython) -> None:
    """Our kernels, or no promise."""
    run = run_python(PROMISED, tiny().path, PYSELFSPEC_KERNELS="off")
    assert run.stdout == "0\n", run.stderr
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists() or " avx2 " not in cpuinfo.read_text():
        pytest.skip("the kernels are made for AVX2 and more")
    assert run_python(PROMISED, tiny().path).stdout == "32\n"


ALL_TOGETHER = """
import sys
import numpy as np
from pyselfspec import Model
with Model(sys.argv[1]) as model, model.context(n_ctx=256, n_threads=1) as context:
    np.save(sys.argv[2], context.decode(range(20, 30)).logits)
"""


@pytest.mark.parametrize("type_name", TYPES)
def test_the_kernels_compute_what_upstream_does(
    type_name: str, models: Callable[[str], Model], run_python: RunPython, tmp_path: Path
) -> None:
    """Up to rounding: an order of the weights that has changed would be far off."""
    logits = []
    for switch in ("on", "off"):
        out = tmp_path / f"{switch}.npy"
        run = run_python(ALL_TOGETHER, models(type_name).path, out, PYSELFSPEC_KERNELS=switch)
        assert run.returncode == 0, run.stderr
        logits.append(np.load(out))
    ours, upstream = logits
    assert np.abs(ours - upstream).max() < 0.1 * upstream.std()
    assert np.abs(upstream).max() > 0


TWO_NODES = """
#include <stdbool.h>
#include <stdio.h>
bool ggml_is_numa(void) {
    static int asked;
    if (!asked++) fputs("asked\\n", stderr);
    return true;
}
"""

TWO_THREADS = """
import sys
import numpy as np
from pyselfspec import Model
with Model(sys.argv[1]) as model, model.context(n_ctx=256, n_threads=2) as context:
    np.save(sys.argv[2], context.decode(range(20, 30)).logits)
"""


@pytest.mark.sanitized
@pytest.mark.skipif(sys.platform != "linux", reason="puts a function before the library's own")
@pytest.mark.parametrize("arch", ["llama", "qwen2moe"])
def test_rows_stay_with_their_threads_on_several_nodes(
    arch: str, tiny_path: TinyPath, run_python: RunPython, tmp_path: Path
) -> None:
    """With memory of several nodes the threads get fixed pieces: all of them, and the same bits."""
    source = tmp_path / "numa.c"
    source.write_text(TWO_NODES)
    two_nodes = {"LD_PRELOAD": preload(shared_library(source, tmp_path))}
    logits = []
    for changed in ({}, two_nodes):
        out = tmp_path / f"{len(logits)}.npy"
        model = tiny_path(arch, qtype="Q8_0")
        run = run_python(TWO_THREADS, model, out, **changed)
        assert run.returncode == 0, run.stderr
        assert ("asked" in run.stderr) == bool(changed)
        logits.append(np.load(out))
    np.testing.assert_array_equal(logits[1], logits[0])


@pytest.mark.sanitized
def test_more_threads_than_rows(tiny: TinyModel, new_context: NewContext) -> None:
    want = decoded(new_context(tiny(), n_threads=1), ids(5, seed=5), 3)
    got = decoded(new_context(tiny(), n_threads=64), ids(5, seed=5), 3)
    np.testing.assert_array_equal(got, want)


class Rounding:
    """A context whose logits change in the last bit above a width."""

    abilities = SimpleNamespace(can_draft=True, exact_width=32)

    def __init__(self, widest: int) -> None:
        self.model = SimpleNamespace(n_vocab=64)
        self.widest = widest

    def decode(self, tokens: list[int], outputs: str) -> SimpleNamespace:
        logits = np.ones((len(tokens), 64), np.float32)
        if len(tokens) > self.widest:
            logits[-1, -1] = np.nextafter(np.float32(1), np.float32(2))
        return SimpleNamespace(logits=logits)

    def sequence(self) -> SimpleNamespace:
        return SimpleNamespace(drop=lambda: None)


@pytest.mark.parametrize(("widest", "same"), [(32, True), (31, False), (2, False)])
def test_one_bit_is_a_difference(widest: int, same: bool) -> None:
    assert same_at_widths(cast(Context, Rounding(widest))) is same


@pytest.mark.sanitized
def test_what_info_tries_is_undone(models: Callable[[str], Model], new_context: NewContext) -> None:
    context = new_context(models("Q4_K_M"))
    assert same_at_widths(context) is True
    assert context.sequence().n_past == 0
