"""Quantizing: gguf-py's own quantizer is the oracle; nothing half-written keeps its name."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import FAILED, ONE_THREAD, USAGE, check_error, run
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import quantize as gguf_quantize
from written_files import metadata, small_files

from pyselfspec.convert import subprogram
from pyselfspec.convert.quantize import TYPES, quantize, quantize_steps, run_quantizer
from pyselfspec.errors import ArgumentError, ModelFileError
from pyselfspec.gguf import file as gguf_file
from pyselfspec.runtime.ffi import load


@pytest.fixture
def source(tiny_path: Any) -> Path:
    return tiny_path(n_embd=256, n_layer=2)  # K-quants come in blocks of 256


@pytest.mark.parametrize("name", ["f16", "bf16", "q8_0", "Q4_0", "q5_1"])
def test_weights_are_those_of_the_format(name: str, source: Path, tmp_path: Path) -> None:
    quantize(source, tmp_path / "out.gguf", name, n_threads=1)
    wanted = {tensor.name: tensor for tensor in GGUFReader(source).tensors}
    tensors = GGUFReader(tmp_path / "out.gguf").tensors
    assert {tensor.name for tensor in tensors} == wanted.keys()
    kind = GGMLQuantizationType[name.upper()]
    blocks = [t for t in tensors if t.name.startswith("blk.") and "norm" not in t.name]
    assert len(blocks) == 14 and {tensor.tensor_type for tensor in blocks} == {kind}
    for tensor in blocks:
        np.testing.assert_array_equal(
            tensor.data.view(np.uint8), gguf_quantize(wanted[tensor.name].data, kind).view(np.uint8)
        )


def test_pure_leaves_no_matrix_in_another_type(source: Path, tmp_path: Path) -> None:
    out, kinds = tmp_path / "out.gguf", []
    for pure in (False, True):
        for _ in run_quantizer(source, out, "q4_0", 1, pure=pure, origin=source, target=out):
            pass
        tensors = GGUFReader(out).tensors
        kinds.append({tensor.tensor_type.name for tensor in tensors if len(tensor.shape) > 1})
    assert kinds[0] > kinds[1] == {"Q4_0"}


@pytest.mark.parametrize("name", ["f32", "q4_k_m", "Q6_K", "iq4_xs"])
def test_file_says_what_it_is_and_keeps_its_metadata(
    name: str, source: Path, tmp_path: Path
) -> None:
    quantize(source, tmp_path / "out.gguf", name, n_threads=1)
    assert gguf_file.check(tmp_path / "out.gguf").file_type == name.upper()
    assert metadata(tmp_path / "out.gguf") == metadata(source)
    assert list(tmp_path.iterdir()) == [tmp_path / "out.gguf"]


def test_progress_counts_every_tensor(source: Path, tmp_path: Path) -> None:
    steps = list(quantize_steps(source, tmp_path / "out.gguf", "q8_0", n_threads=1))
    n = len(gguf_file.check(source).tensors)
    assert [(step.n_done, step.n_total) for step in steps] == [(i + 1, n) for i in range(n)]


def test_a_file_can_be_written_over_but_not_the_source(source: Path, tmp_path: Path) -> None:
    file, link = tmp_path / "model.gguf", tmp_path / "link.gguf"
    for name, wanted in (("f16", "F16"), ("q8_0", "Q8_0")):
        quantize(source, file, name, n_threads=1)
        assert gguf_file.check(file).file_type == wanted
    link.symlink_to(source)
    before = source.read_bytes()
    for target in (source, link):
        with pytest.raises(ArgumentError, match="is the model itself"):
            quantize(source, target, "q8_0", n_threads=1)
    assert source.read_bytes() == before


def test_leaving_early_leaves_nothing(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[str]] = []

    class Recorded(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            started.append(self)

    monkeypatch.setattr(subprogram.subprocess, "Popen", Recorded)
    (tmp_path / "out.gguf").write_text("old")
    steps = quantize_steps(source, tmp_path / "out.gguf", "q4_k_m", n_threads=1)
    next(steps)
    assert len(list(tmp_path.iterdir())) == 2
    steps.close()
    assert [p.returncode is not None for p in started] == [True]
    assert list(tmp_path.iterdir()) == [tmp_path / "out.gguf"]
    assert (tmp_path / "out.gguf").read_text() == "old"


@pytest.mark.parametrize("limit", [1000, 100_000, 400_000])
def test_full_disk(limit: int, source: Path, tmp_path: Path) -> None:
    """In the header, in the tensors, and near the end."""
    with small_files(limit), pytest.raises(OSError, match="is the disk full"):
        quantize(source, tmp_path / "out.gguf", "f16", n_threads=1)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "words"),
    [("nvfp4", "invalid output file type"), ("iq2_xxs", "requires an imatrix")],
)
def test_what_llama_cpp_refuses(name: str, words: str, source: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=words) as error:
        quantize(source, tmp_path / "out.gguf", name, n_threads=1)
    assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_quantized_source(source: Path, tmp_path: Path) -> None:
    quantize(source, tmp_path / "q8.gguf", "q8_0", n_threads=1)
    with pytest.raises(ModelFileError, match="has Q8_0 weights already: start from"):
        quantize(tmp_path / "q8.gguf", tmp_path / "out.gguf", "q4_0", n_threads=1)
    assert list(tmp_path.iterdir()) == [tmp_path / "q8.gguf"]


@pytest.mark.parametrize(
    ("target", "words"), [(".", "no plain file"), ("/dev/null", "no plain"), ("x/y", "no folder")]
)
def test_target_that_cannot_be(target: str, words: str, source: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=words):
        quantize(source, tmp_path / target, "f16", n_threads=1)


# --- command line ----------------------------------------------------------------------------


def test_command(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    outcome = run("models", "convert", source, out, "--type", "Q8_0", *ONE_THREAD, "--json")
    file = gguf_file.check(out)
    assert outcome.json["file_type"] == file.file_type == "Q8_0"
    assert outcome.json["n_bytes"] == out.stat().st_size
    assert sum(outcome.json["tensor_types"].values()) == len(file.tensors)
    outcome = run("models", "convert", source, out, *ONE_THREAD)
    assert (outcome.status, outcome.stderr) == (0, "")
    assert outcome.stdout.startswith(f"{out}: llama") and " F16" in outcome.stdout


@pytest.mark.parametrize(
    ("content", "words"), [(None, "no folder"), (b"", "empty"), (b"text" * 9, "not a GGUF file")]
)
def test_command_says_what_is_wrong(content: bytes | None, words: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "in").write_bytes(content)
    check_error(run("models", "convert", tmp_path / "in", tmp_path / "out.gguf"), FAILED, words)
    assert not (tmp_path / "out.gguf").exists()


def test_command_with_an_unknown_type(source: Path, tmp_path: Path) -> None:
    outcome = run("models", "convert", source, tmp_path / "out.gguf", "--type", "q9")
    check_error(outcome, USAGE, "--type", "q9", "q4_k_m")


def test_types_are_those_of_the_library():
    """They are listed without it, so that help texts need no library."""
    prefix = re.compile("^LLAMA_FTYPE_(ALL|MOSTLY)_")
    known = {
        prefix.sub("", name).lower(): number
        for name, number in vars(load.loaded()).items()
        if prefix.match(name)
    }
    assert known == TYPES
