"""The tiny models: exact oracles for masks, a vocabulary for any text, nothing half-written."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize
from numpy.typing import NDArray

from pyselfspec.gguf.file import check
from tools.models import random_gguf, tiny_archs, tiny_gguf, tiny_vocab


def contents(path: Path) -> dict[str, bytes]:
    return {t.name: np.asarray(t.data).tobytes() for t in GGUFReader(path).tensors}


def is_output(name: str, block: int, sublayer: str) -> bool:
    return name.startswith(f"blk.{block}.{sublayer}")


@pytest.mark.parametrize("arch", tiny_archs.ARCHITECTURES)
@pytest.mark.parametrize("qtype", ["F32", "Q8_0", "Q4_0"])
def test_zeroing_changes_the_sublayer_outputs_only(tmp_path: Path, arch: str, qtype: str) -> None:
    plain = contents(tiny_gguf.write(tmp_path / "p.gguf", arch, qtype=qtype))
    path = tiny_gguf.write(tmp_path / "z.gguf", arch, qtype=qtype, zero_attn=[1], zero_ffn={2, 3})
    zeroed = contents(path)
    assert zeroed.keys() == plain.keys()
    changed = {name for name in plain if zeroed[name] != plain[name]}
    assert changed == {
        name
        for name in plain
        if is_output(name, 1, "attn_output")
        or is_output(name, 2, "ffn_down")
        or is_output(name, 3, "ffn_down")
    }
    for tensor in GGUFReader(path).tensors:
        if tensor.name in changed:
            assert not np.any(dequantize(tensor.data, tensor.tensor_type))
    biases = {name for name in changed if name.endswith("bias")}
    assert len(biases) == (3 if arch == "gptneox" else 0)


@pytest.mark.parametrize("arch", tiny_archs.ARCHITECTURES)
def test_dropping_renumbers_and_changes_nothing_else(tmp_path: Path, arch: str) -> None:
    plain = contents(tiny_gguf.write(tmp_path / "p.gguf", arch, n_layer=5))
    path = tiny_gguf.write(tmp_path / "d.gguf", arch, n_layer=5, drop_blocks=[0, 3])
    kept = {1: 0, 2: 1, 4: 2}
    expected = {}
    for name, data in plain.items():
        block = tiny_archs.block_of(name)
        if block is None:
            expected[name] = data
        elif block in kept:
            expected[name.replace(f"blk.{block}.", f"blk.{kept[block]}.")] = data
    assert contents(path) == expected
    assert check(path).n_layer == 3


def test_dropped_blocks_keep_the_windows_of_the_others(tmp_path: Path) -> None:
    path = tiny_gguf.write(tmp_path / "d.gguf", "gemma3", n_layer=6, drop_blocks=[0, 1])
    window = GGUFReader(path).get_field("gemma3.attention.sliding_window_pattern")
    assert window is not None
    assert window.contents() == [False, True, True, False]  # blocks 2 and 5 see everything


@pytest.mark.parametrize("arch", ["llama", "gemma2", "qwen2moe"])
def test_late_scale_shrinks_late_outputs_only(tmp_path: Path, arch: str) -> None:
    plain = GGUFReader(tiny_gguf.write(tmp_path / "p.gguf", arch))
    late = GGUFReader(tiny_gguf.write(tmp_path / "l.gguf", arch, late_scale=0.25))
    n_scaled = 0
    for before, after in zip(plain.tensors, late.tensors, strict=True):
        block = tiny_archs.block_of(before.name)
        outputs = (".post_",) if arch == "gemma2" else (".attn_output.", ".ffn_down")
        scaled = block is not None and block >= 2 and any(o in before.name for o in outputs)
        assert np.array_equal(after.data, before.data * (0.25 if scaled else 1.0))
        n_scaled += scaled
    assert n_scaled == {"llama": 4, "gemma2": 4, "qwen2moe": 6}[arch]


# --- vocabulary -----------------------------------------------------------------------------------


def test_vocabulary_has_every_byte_and_no_token_twice() -> None:
    for n_vocab in (tiny_vocab.N_VOCAB_MIN, 32000):
        texts, scores, types = tiny_vocab.spm_vocab(n_vocab)
        assert len(texts) == len(scores) == len(types) == len(set(texts)) == n_vocab
        assert {f"<0x{byte:02X}>" for byte in range(256)} <= set(texts)
        assert types.count(6) == 256  # byte tokens


def test_every_pair_can_be_merged_from_shorter_tokens() -> None:
    """SentencePiece only joins two tokens at a time: longer ones need their parts."""
    texts = set(tiny_vocab.spm_vocab()[0][259:])
    for text in texts:
        cuts = [(text[:i], text[i:]) for i in range(1, len(text))]
        assert len(text) == 1 or any(a in texts and b in texts for a, b in cuts), text


# --- command line ---------------------------------------------------------------------------------


def test_command_writes_what_the_function_writes(tmp_path: Path) -> None:
    out = tmp_path / "c.gguf"
    line = f"qwen3 {out} --blocks 3 --seed 4 --type Q8_0 --zero-attn 0,2 --drop 1 --late-scale 0.5"
    result = CliRunner().invoke(tiny_gguf.main, line.split())
    assert result.exit_code == 0 and result.stdout == ""
    same = tiny_gguf.write(
        tmp_path / "f.gguf", "qwen3", n_layer=3, seed=4, qtype="Q8_0", zero_attn=(0, 2),
        drop_blocks=(1,), late_scale=0.5,
    )  # fmt: skip
    assert out.read_bytes() == same.read_bytes()


# --- random_gguf ----------------------------------------------------------------------------------

SMALL = ["--params", "3M", "--blocks", "2", "--vocab", "320"]


@pytest.mark.parametrize("type_name", random_gguf.MODEL_TYPES)
def test_random_model_has_sane_weights(tmp_path: Path, type_name: str) -> None:
    out = tmp_path / "r.gguf"
    result = CliRunner().invoke(random_gguf.main, [str(out), *SMALL, "--type", type_name])
    assert result.exit_code == 0, result.output
    assert check(out).file_type == {"Q4_K": "Q4_K_S", "Q5_K": "Q5_K_S"}.get(type_name, type_name)
    for tensor in GGUFReader(out).tensors:
        if "norm" in tensor.name:
            continue
        weights = dequantize(tensor.data, tensor.tensor_type)[tiny_vocab.N_CONTROL :]
        n_in = int(tensor.shape[0])
        spread = float(weights.std()) * (1 if tensor.name.startswith("token") else n_in**0.5)
        gain = tiny_gguf.SUBLAYER_GAIN if "output.w" in tensor.name[4:] else 1.0
        gain = tiny_gguf.SUBLAYER_GAIN if "ffn_down" in tensor.name else gain
        assert spread == pytest.approx(gain, rel=0.05), tensor.name
        assert abs(float(weights.mean())) < 0.1 * float(weights.std())
        assert len(np.unique(weights, axis=0)) == len(weights)  # no row twice


def test_random_q4_k_m_mixes_types(tmp_path: Path) -> None:
    out = tmp_path / "r.gguf"
    arguments = [str(out), "--params", "8M", "--blocks", "8", "--vocab", "320", "--type", "Q4_K_M"]
    assert CliRunner().invoke(random_gguf.main, arguments).exit_code == 0
    types = {t.name: t.tensor_type for t in GGUFReader(out).tensors}
    assert types["output.weight"] == GGMLQuantizationType.Q6_K
    assert types["token_embd.weight"] == types["blk.0.ffn_up.weight"] == GGMLQuantizationType.Q4_K
    finer = [b for b in range(8) if types[f"blk.{b}.ffn_down.weight"] == GGMLQuantizationType.Q6_K]
    assert finer == [0, 3, 6, 7]
    assert all(types[f"blk.{b}.attn_v.weight"] == types[f"blk.{b}.ffn_down.weight"] for b in finer)


def test_random_late_scale(tmp_path: Path) -> None:
    out = tmp_path / "r.gguf"
    arguments = [str(out), *SMALL, "--type", "Q8_0", "--late-scale", "0.1", "--late-from", "1"]
    assert CliRunner().invoke(random_gguf.main, arguments).exit_code == 0

    def std(name: str) -> float:
        tensor = next(t for t in GGUFReader(out).tensors if t.name == name)
        weights: NDArray[np.float32] = dequantize(tensor.data, tensor.tensor_type)
        return float(weights.std())

    for kind in ("attn_output", "ffn_down"):
        ratio = std(f"blk.1.{kind}.weight") / std(f"blk.0.{kind}.weight")
        assert ratio == pytest.approx(0.1, rel=0.05)
    assert std("blk.1.ffn_up.weight") == pytest.approx(std("blk.0.ffn_up.weight"), rel=0.05)


def test_shape_search_hits_the_size() -> None:
    for n_params, n_layer in ((100_000_000, 12), (850_000_000, 16), (7_000_000_000, 32)):
        shape = random_gguf.find_shape(n_params, n_layer, 32000)
        assert shape.n_params == pytest.approx(n_params, rel=0.05)
        assert 1.5 < shape.n_ff / shape.n_embd < 5
    sizes = [random_gguf.find_shape(n * 10**8, 16, 32000).n_params for n in (2, 4, 8, 16)]
    assert all(small < large for small, large in pairwise(sizes))


@pytest.mark.parametrize("params", ["1K", "many", "-5"])
def test_impossible_sizes_are_refused(tmp_path: Path, params: str) -> None:
    out = tmp_path / "r.gguf"
    result = CliRunner().invoke(random_gguf.main, [str(out), f"--params={params}"])
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: ") and result.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "r.gguf"
    with monkeypatch.context() as nearly_full:
        nearly_full.setattr(random_gguf.shutil, "disk_usage", lambda _path: SimpleNamespace(free=1))
        result = CliRunner().invoke(random_gguf.main, [str(out), *SMALL])
    assert result.exit_code == 1 and result.stderr.count("\n") == 1
    assert "but only 1 are free" in result.stderr

    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(random_gguf.GGUFWriter, "write_tensor_data", full)
    result = CliRunner().invoke(random_gguf.main, [str(out), *SMALL])
    assert result.stderr.strip() == f"Error: {out}: No space left on device"
    assert not list(tmp_path.iterdir())
