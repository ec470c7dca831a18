"""Wide models: the same text and logits, tensors that are copies of the narrow ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import broken_gguf
import numpy as np
import pytest
from broken_gguf import RawGguf
from fixture_types import CONTEXT, TinyPath
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, quants
from gguf.constants import GGML_QUANT_SIZES
from numpy.typing import NDArray

from pyselfspec import LayerMask, Model
from pyselfspec.convert.stream import read_model
from pyselfspec.convert.widen import ARCHITECTURES, SCALES, _multiply_scales, n_params, widen
from pyselfspec.errors import ArgumentError, UnsupportedError
from pyselfspec.runtime.model import MASK_KEY

Type = GGMLQuantizationType
TOKENS = [int(t) for t in np.random.default_rng(0).integers(3, 300, 40)]
N_TEXT = 40
# The logits of tiny models are up to 9. K/V are stored as F16, so a rounding of sums can move one
# by 2^-11; that of F16 and quantized activations moves more.
TOLERANCE = {"F32": 5e-3, "F16": 2e-2, "Q8_0": 0.3, "Q4_0": 0.3}
EPSILON = 0.3  # so large that leaving it alone would show


def with_epsilon(path: Path, out: Path) -> Path:
    raw = broken_gguf.read(path)
    key = next(key for key in raw.metadata if key.endswith("layer_norm_rms_epsilon"))
    raw.metadata[key] = (GGUFValueType.FLOAT32, EPSILON / 16)
    out.write_bytes(raw.to_bytes())
    return out


def tied(path: Path, out: Path) -> Path:
    raw = broken_gguf.read(path)
    raw.tensors = [t for t in raw.tensors if t.name != "output.weight"]
    out.write_bytes(raw.to_bytes())
    return out


def write(path: Path, out: Path, factor: int, dequantized: Type | None = None) -> Path:
    widen(read_model(path), factor, dequantized).write(out)
    return out


def logits(path: Path) -> NDArray[np.float32]:
    """Return the logits of a prompt in one pass and of the tokens after it one by one."""
    with Model(path) as model, model.context(**CONTEXT) as context:
        rows = [context.decode(TOKENS[:30]).logits]
        rows += [context.decode([token]).logits for token in TOKENS[30:]]
    return np.concatenate(rows)


def text(path: Path) -> list[int]:
    """Greedy tokens."""
    tokens = list(TOKENS[:10])
    with Model(path) as model, model.context(**CONTEXT) as context:
        row = context.decode(tokens).logits[-1]
        for _ in range(N_TEXT):
            tokens.append(int(row.argmax()))
            row = context.decode(tokens[-1:]).logits[-1]
    return tokens


# --- the function ----------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("factor", [2, 3, 8])
def test_logits_and_greedy_text_stay(
    tiny_path: TinyPath, tmp_path: Path, arch: str, factor: int
) -> None:
    path = tiny_path(arch)
    wide = write(path, tmp_path / "wide.gguf", factor)
    assert np.abs(logits(wide) - logits(path)).max() < TOLERANCE["F32"]
    assert text(wide) == text(path)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_epsilon_of_every_norm_is_right(tiny_path: TinyPath, tmp_path: Path, arch: str) -> None:
    path = with_epsilon(tiny_path(arch), tmp_path / "epsilon.gguf")
    assert np.abs(logits(path) - logits(tiny_path(arch))).max() > 10 * TOLERANCE["F32"]
    wide = write(path, tmp_path / "wide.gguf", 4)
    assert np.abs(logits(wide) - logits(path)).max() < TOLERANCE["F32"]


@pytest.mark.parametrize("qtype", ["F16", "Q8_0", "Q4_0"])
@pytest.mark.parametrize("factor", [2, 3])
def test_other_types_stay_within_their_rounding(
    tiny_path: TinyPath, tmp_path: Path, qtype: str, factor: int
) -> None:
    path = tiny_path(qtype=qtype)
    wide = write(path, tmp_path / "wide.gguf", factor)
    assert np.abs(logits(wide) - logits(path)).max() < TOLERANCE[qtype]


@pytest.mark.parametrize("qtype", ["F32", "Q8_0"])
def test_a_tied_embedding_gets_a_head_of_its_own(
    tiny_path: TinyPath, tmp_path: Path, qtype: str
) -> None:
    path = tied(tiny_path(qtype=qtype), tmp_path / "tied.gguf")
    wide = write(path, tmp_path / "wide.gguf", 2)
    narrow = logits(path)
    assert read_model(path).file.tied_embeddings and not read_model(wide).file.tied_embeddings
    error = np.abs(logits(wide) - narrow).max() / np.abs(narrow).max()
    assert error < TOLERANCE[qtype] / 9


# --- the tensors -----------------------------------------------------------------------------


def values(path: Path) -> dict[str, NDArray[np.float32]]:
    return {t.name: quants.dequantize(t.data, t.tensor_type) for t in GGUFReader(path).tensors}


def expected(name: str, narrow: NDArray[np.float32], k: int) -> NDArray[np.float32]:
    kind = name.removesuffix(".weight").split(".")[-1]
    if kind in ("attn_q_norm", "attn_k_norm"):
        return narrow
    if kind == "token_embd":
        return np.tile(narrow, k) * k
    if kind.endswith("_norm"):
        return np.tile(narrow, k) / k
    if narrow.ndim == 1 or kind in ("output", "ffn_gate_inp"):
        return np.tile(narrow, k)
    return np.tile(narrow, (k, k))


@pytest.mark.parametrize("arch", ["llama", "qwen2moe"])
@pytest.mark.parametrize("qtype", ["F32", "F16", "Q8_0", "Q4_0"])
def test_values_are_exact_copies(
    tiny_path: TinyPath, tmp_path: Path, arch: str, qtype: str
) -> None:
    path = tiny_path(arch, qtype=qtype)
    wide = write(path, tmp_path / "wide.gguf", 4)
    narrow = values(path)
    for name, got in values(wide).items():
        assert np.array_equal(got, expected(name, narrow[name], 4)), name
    types = [{t.name: t.tensor_type for t in GGUFReader(p).tensors} for p in (path, wide)]
    assert types[0] == types[1]


def test_what_a_type_cannot_hold_exactly_becomes_f32(tiny_path: TinyPath, tmp_path: Path) -> None:
    path = tiny_path(qtype="Q8_0")
    wide = write(path, tmp_path / "wide.gguf", 3)
    changed = {
        t.name for t in GGUFReader(wide).tensors if t.tensor_type == Type.F32 and len(t.shape) > 1
    }
    assert changed == {"token_embd.weight"}
    embedding = values(path)["token_embd.weight"]
    assert np.array_equal(values(wide)["token_embd.weight"], np.tile(embedding, 3) * np.float32(3))


@pytest.mark.parametrize("ggml_type", SCALES, ids=lambda t: t.name)
def test_scaled_blocks_have_exactly_so_large_values(ggml_type: Type) -> None:
    _size, block_bytes = GGML_QUANT_SIZES[ggml_type]
    rows = np.frombuffer(np.random.default_rng(1).bytes(7 * 5 * block_bytes), np.uint8)
    rows = rows.reshape(7, -1).copy()
    blocks = rows.reshape(-1, block_bytes)
    scales = np.random.default_rng(2).uniform(-1, 1, (35, 2)).astype(np.float16)
    n = SCALES[ggml_type].stop - SCALES[ggml_type].start
    blocks[:, SCALES[ggml_type]] = scales.view(np.uint8)[:, :n]
    narrow, wide = (
        quants.dequantize(r, ggml_type) for r in (rows, _multiply_scales("x", rows, 8.0, ggml_type))
    )
    assert np.array_equal(wide, 8 * narrow) and np.any(narrow)


@pytest.mark.parametrize("dequantized", [Type.F32, Type.F16, Type.BF16])
def test_quantized_matrices_can_become_floats(
    tiny_path: TinyPath, tmp_path: Path, dequantized: Type
) -> None:
    path = tiny_path(qtype="Q8_0")
    wide = write(path, tmp_path / "wide.gguf", 2, dequantized)
    narrow = values(path)
    for tensor in GGUFReader(wide).tensors:
        want = expected(tensor.name, narrow[tensor.name], 2)
        got = quants.dequantize(tensor.data, tensor.tensor_type)
        if tensor.tensor_type == dequantized:
            want = quants.dequantize(quants.quantize(want, dequantized), dequantized)
        else:  # vectors, and the embedding where the product would be rounded
            assert tensor.tensor_type == Type.F32
        assert np.array_equal(got, want), tensor.name
    assert read_model(wide).file.file_type == dequantized.name


# --- the metadata ----------------------------------------------------------------------------


def test_sizes_are_those_of_the_tensors(tiny_path: TinyPath, tmp_path: Path) -> None:
    path = tiny_path("qwen2moe")
    source = read_model(path)
    file = read_model(write(path, tmp_path / "wide.gguf", 3)).file
    assert file.n_params == n_params(source, 3)
    assert (file.n_embd, file.n_head) == (3 * source.file.n_embd, 3 * source.file.n_head)
    assert file.n_layer == source.file.n_layer


def test_counts_per_block_are_multiplied_too(tiny_path: TinyPath, tmp_path: Path) -> None:
    raw = broken_gguf.read(tiny_path())
    raw.set_array("llama.feed_forward_length", GGUFValueType.UINT32, [128] * 4)
    (tmp_path / "in.gguf").write_bytes(raw.to_bytes())
    wide = broken_gguf.read(write(tmp_path / "in.gguf", tmp_path / "wide.gguf", 2))
    key = "llama.feed_forward_length"
    assert wide.metadata[key] == (GGUFValueType.ARRAY, GGUFValueType.UINT32, [256] * 4)


def test_the_name_says_what_it_is_and_the_mask_stays(tiny_path: TinyPath, tmp_path: Path) -> None:
    raw = broken_gguf.read(tiny_path())
    mask = LayerMask.early_exit(4, 2)
    raw.set_string(MASK_KEY, mask.to_json())
    (tmp_path / "in.gguf").write_bytes(raw.to_bytes())
    wide = write(tmp_path / "in.gguf", tmp_path / "wide.gguf", 2)
    name = broken_gguf.read(wide).metadata["general.name"][1]
    assert name == "tiny random model, widened 2 times"
    with Model(wide) as model:
        assert model.draft_mask == mask


# --- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [1, 0, -2])
def test_factors_that_do_not_widen(tiny_path: TinyPath, factor: int) -> None:
    with pytest.raises(ArgumentError, match=f"the factor is 2 or more, got {factor}"):
        widen(read_model(tiny_path()), factor)


@pytest.mark.parametrize("arch", ["gemma3", "phi3", "gptneox"])
def test_other_architectures_are_refused_by_name(tiny_path: TinyPath, arch: str) -> None:
    message = f"{arch} models cannot be widened; supported are .* qwen3"
    with pytest.raises(UnsupportedError, match=message):
        widen(read_model(tiny_path(arch)), 2)


def changed(path: Path, out: Path, change: Any) -> Path:
    raw: RawGguf = broken_gguf.read(path)
    change(raw)
    out.write_bytes(raw.to_bytes())
    return out


def test_tensors_that_are_not_known_are_refused(tiny_path: TinyPath, tmp_path: Path) -> None:
    def rename(raw: RawGguf) -> None:
        raw.tensor("blk.1.attn_q.weight").name = "blk.1.attn_surprise.weight"

    path = changed(tiny_path(), tmp_path / "in.gguf", rename)
    with pytest.raises(UnsupportedError, match=r"'blk.1.attn_surprise.weight' cannot be widened"):
        widen(read_model(path), 2)


def test_values_that_grow_too_large_are_refused(tiny_path: TinyPath, tmp_path: Path) -> None:
    def enlarge(raw: RawGguf) -> None:
        tensor = raw.tensor("token_embd.weight")
        tensor.data = np.float16(40000).tobytes() + tensor.data[2:]

    path = changed(tiny_path(qtype="F16"), tmp_path / "in.gguf", enlarge)
    with pytest.raises(ArgumentError, match=r"'token_embd.weight' has values too large for F16"):
        write(path, tmp_path / "wide.gguf", 2)
    assert not (tmp_path / "wide.gguf").exists()
