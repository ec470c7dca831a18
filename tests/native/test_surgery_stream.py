"""Copying a model: everything arrives, little is in memory, nothing half-written stays."""

from __future__ import annotations

import shutil
import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import broken_gguf
import numpy as np
import pytest
from broken_gguf import RawTensor
from fixture_types import TinyPath
from gguf import GGMLQuantizationType, GGUFValueType, quants
from gguf.constants import GGML_QUANT_SIZES

from pyselfspec.convert import stream
from pyselfspec.convert.relayer import relayer
from pyselfspec.convert.stream import Copy, read_model
from pyselfspec.convert.widen import widen
from pyselfspec.errors import ArgumentError, ModelFileError
from pyselfspec.gguf.header import read_header

Type = GGMLQuantizationType
NO_WEIGHTS = (Type.F64, Type.I8, Type.I16, Type.I32, Type.I64, Type.Q8_K, Type.Q8_1)
WEIGHT_TYPES = [t for t in Type if t not in NO_WEIGHTS]


def identical(path: Path) -> Copy:
    source = read_model(path)
    return Copy(source, source.metadata, tuple(tensor.copy() for tensor in source.tensors))


@pytest.mark.parametrize("qtype", ["F32", "Q8_0"])
def test_a_copy_has_the_same_metadata_and_tensors(
    tiny_path: TinyPath, tmp_path: Path, qtype: str
) -> None:
    path = tiny_path(qtype=qtype)
    identical(path).write(tmp_path / "copy.gguf")
    assert broken_gguf.read(tmp_path / "copy.gguf") == broken_gguf.read(path)


def test_every_kind_of_metadata_arrives(tiny_path: TinyPath, tmp_path: Path) -> None:
    raw = broken_gguf.read(tiny_path())
    values = {"UINT8": 200, "INT8": -100, "UINT16": 60000, "INT16": -30000, "UINT32": 2**32 - 1,
              "INT32": -(2**31), "FLOAT32": 0.1, "BOOL": True, "UINT64": 2**64 - 1,
              "INT64": -(2**63), "FLOAT64": 0.1}  # fmt: skip
    for name, value in values.items():
        kind = GGUFValueType[name]
        raw.metadata[f"test.{name}"] = (kind, value)
        raw.set_array(f"test.{name}.array", kind, [value, value])
    (tmp_path / "kinds.gguf").write_bytes(raw.to_bytes())
    identical(tmp_path / "kinds.gguf").write(tmp_path / "copy.gguf")
    before, after = (broken_gguf.read(tmp_path / f"{name}.gguf") for name in ("kinds", "copy"))
    assert len(after.metadata) == len(raw.metadata)
    assert after == before


def test_strings_need_not_be_text(tiny_path: TinyPath, tmp_path: Path) -> None:
    raw = broken_gguf.read(tiny_path())
    word = b"\xff\xfe"
    head = raw.string("test.words") + raw.pack("IIQ", GGUFValueType.ARRAY, GGUFValueType.STRING, 2)
    raw.extra_metadata.append(head + 2 * (struct.pack("<Q", len(word)) + word))
    (tmp_path / "bytes.gguf").write_bytes(raw.to_bytes())
    identical(tmp_path / "bytes.gguf").write(tmp_path / "copy.gguf")
    assert read_header(tmp_path / "copy.gguf").metadata["test.words"] == (word, word)


def test_what_no_longer_holds_is_left_out(tiny_path: TinyPath, tmp_path: Path) -> None:
    raw = broken_gguf.read(tiny_path())
    raw.set_u32("general.alignment", 32)
    raw.set_string("general.size_label", "7B")
    (tmp_path / "label.gguf").write_bytes(raw.to_bytes())
    identical(tmp_path / "label.gguf").write(tmp_path / "copy.gguf")
    assert not {"general.alignment", "general.size_label"} & set(
        read_header(tmp_path / "copy.gguf").metadata
    )


@pytest.mark.parametrize("ggml_type", WEIGHT_TYPES, ids=lambda t: t.name)
def test_any_type_is_copied_and_silenced(
    tiny_path: TinyPath, tmp_path: Path, ggml_type: Type
) -> None:
    raw = broken_gguf.read(tiny_path())
    _block_size, block_bytes = GGML_QUANT_SIZES[ggml_type]
    data = np.random.default_rng(0).bytes(512 // _block_size * block_bytes * 3)
    name = "blk.1.attn_output.weight"
    raw.tensors = [
        RawTensor(name, [512, 3], int(ggml_type), data) if t.name == name else t
        for t in raw.tensors
    ]
    (tmp_path / "type.gguf").write_bytes(raw.to_bytes())
    source = read_model(tmp_path / "type.gguf")
    relayer(source, [1, 1]).write(tmp_path / "twice.gguf")
    twice = broken_gguf.read(tmp_path / "twice.gguf")
    for il in range(2):
        assert twice.tensor(f"blk.{il}.attn_output.weight").data == data
    relayer(source, zero_attn=[1]).write(tmp_path / "zero.gguf")
    zero = broken_gguf.read(tmp_path / "zero.gguf").tensor(name)
    assert zero.data == bytes(len(data))
    if ggml_type != Type.Q1_0:  # gguf-py cannot dequantize it
        assert not np.any(quants.dequantize(np.zeros((3, len(data) // 3), np.uint8), ggml_type))


@pytest.mark.parametrize("make", [identical, lambda path: widen(read_model(path), 3)])
def test_pieces_of_any_size_make_the_same_file(
    tiny_path: TinyPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[..., Copy]
) -> None:
    path = tiny_path("qwen3moe", qtype="Q8_0")
    make(path).write(tmp_path / "large.gguf")
    for module in ("stream", "widen"):
        monkeypatch.setattr(f"pyselfspec.convert.{module}.PIECE_BYTES", 1000)
    make(path).write(tmp_path / "small.gguf")
    assert (tmp_path / "small.gguf").read_bytes() == (tmp_path / "large.gguf").read_bytes()


@pytest.mark.parametrize("name", ["relayer", "widen"])
def test_memory_is_that_of_a_piece(
    tiny_path: TinyPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for module in ("stream", "widen", "relayer"):
        monkeypatch.setattr(f"pyselfspec.convert.{module}.PIECE_BYTES", 2**16)
    source = read_model(tiny_path(n_layer=2, n_embd=512))
    blocks = [0, 1] * 10
    copy = relayer(source, blocks, zero_ffn=[1]) if name == "relayer" else widen(source, 3)
    largest = max(tensor.n_bytes for tensor in copy.tensors)
    tracemalloc.start()
    copy.write(tmp_path / "copy.gguf")
    _now, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1.2e6 < largest


def test_steps_tell_all_bytes(tiny_path: TinyPath, tmp_path: Path) -> None:
    copy = identical(tiny_path())
    assert sum(copy.write_steps(tmp_path / "copy.gguf")) == copy.n_bytes
    assert copy.n_bytes == sum(t.n_bytes for t in copy.source.file.tensors)


# --- what goes wrong -------------------------------------------------------------------------


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """A file that is there already, and must stay as it is."""
    path = tmp_path / "target.gguf"
    path.write_bytes(b"old")
    return path


def assert_untouched(target: Path) -> None:
    assert target.read_bytes() == b"old"
    assert list(target.parent.iterdir()) == [target]


def test_leaving_early_leaves_nothing(tiny_path: TinyPath, target: Path) -> None:
    steps = identical(tiny_path()).write_steps(target)
    next(steps)
    assert len(list(target.parent.iterdir())) == 2
    steps.close()
    assert_untouched(target)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "No space left on device")])
def test_an_interrupted_write_leaves_nothing(
    tiny_path: TinyPath, target: Path, error: BaseException
) -> None:
    def pieces():
        yield np.zeros(4, np.uint8)
        raise error

    copy = identical(tiny_path())
    broken = replace(copy.tensors[-1], pieces=pieces())
    with pytest.raises((KeyboardInterrupt, OSError)) as raised:
        replace(copy, tensors=(*copy.tensors[:-1], broken)).write(target)
    assert_untouched(target)
    assert isinstance(raised.value, KeyboardInterrupt) or raised.value.filename == str(target)


def test_a_disk_too_small_is_refused_at_once(
    tiny_path: TinyPath, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = identical(tiny_path())
    free = SimpleNamespace(free=copy.n_bytes - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: free)
    with pytest.raises(OSError, match=f"has {copy.n_bytes} bytes, but only {free.free} are free"):
        copy.write(target)
    assert_untouched(target)


def test_the_model_itself_is_no_target(tiny_path: TinyPath, tmp_path: Path) -> None:
    path = tiny_path()
    before = path.read_bytes()
    link = tmp_path / "link.gguf"
    link.symlink_to(path)
    for target in (path, link):
        with pytest.raises(ArgumentError, match="is the model itself"):
            identical(path).write(target)
    assert path.read_bytes() == before


def test_models_in_several_files_are_refused(tiny_path: TinyPath, tmp_path: Path) -> None:
    raw = broken_gguf.read(tiny_path())
    raw.metadata["split.count"] = (GGUFValueType.UINT16, 3)
    raw.metadata["split.no"] = (GGUFValueType.UINT16, 1)
    path = tmp_path / "m-00002-of-00003.gguf"
    path.write_bytes(raw.to_bytes())
    with pytest.raises(ModelFileError, match=r"one of 3 parts .* llama-gguf-split --merge"):
        read_model(path)


def test_types_that_gguf_py_does_not_know_are_refused(
    tiny_path: TinyPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_path: Path) -> None:
        raise ValueError("42 is not a valid GGMLQuantizationType")

    monkeypatch.setattr(stream, "GGUFReader", refuse)
    with pytest.raises(ModelFileError, match=r"\.gguf: gguf-py cannot read it: 42 is not"):
        read_model(tiny_path())
