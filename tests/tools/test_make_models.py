"""The tools that make the demo and the benchmark models out of it."""

from __future__ import annotations

from pathlib import Path

import broken_gguf
import numpy as np
import pytest
from click.testing import CliRunner, Result
from fixture_types import TinyPath
from gguf import GGMLQuantizationType, quants

from pyselfspec import LayerMask, Model
from pyselfspec.convert.stream import read_model
from pyselfspec.gguf.file import check
from tools.models import make_bench_model, make_demo

Q8_0 = GGMLQuantizationType.Q8_0


def demo(*arguments: object) -> Result:
    return CliRunner().invoke(make_demo.main, [str(a) for a in arguments])


def bench(*arguments: object) -> Result:
    return CliRunner().invoke(make_bench_model.main, [str(a) for a in arguments])


def test_the_demo_is_its_training_result_quantized(tiny_path: TinyPath, tmp_path: Path) -> None:
    trained, out = tiny_path(qtype="F16"), tmp_path / "demo.gguf"
    assert demo(trained, "--exit", 2, "--name", "a name", "--out", out).exit_code == 0
    before, after = broken_gguf.read(trained), broken_gguf.read(out)
    for was, now in zip(before.tensors, after.tensors, strict=True):
        assert (now.name, now.shape) == (was.name, was.shape)
        if len(was.shape) == 1:
            assert now == was
        else:
            rows = np.frombuffer(was.data, np.float16).reshape(was.shape[::-1])
            assert now.type == Q8_0
            assert now.data == quants.quantize(rows.astype(np.float32), Q8_0).tobytes()
    with Model(out) as model:
        assert model.draft_mask == LayerMask.early_exit(4, 2)
        assert model.file.file_type == "Q8_0"
    assert after.metadata["general.name"][1] == "a name"
    assert "LayerSkip" in after.metadata["general.description"][1]
    assert after.metadata["general.dataset.count"][1] == len(make_demo.TEXTS)
    assert "public domain" in after.metadata["general.dataset.1.name"][1]
    assert after.metadata["tokenizer.ggml.tokens"] == before.metadata["tokenizer.ggml.tokens"]


@pytest.mark.parametrize(("exit_after", "trained"), [(5, None), (0, None), (2, "missing.gguf")])
def test_a_demo_that_cannot_be_made(
    tiny_path: TinyPath, tmp_path: Path, exit_after: int, trained: str | None
) -> None:
    out = tmp_path / "demo.gguf"
    result = demo(trained or tiny_path(), "--exit", exit_after, "--out", out)
    assert result.exit_code == 1 and result.stderr.startswith("Error: ")
    assert not list(tmp_path.iterdir())


def test_a_benchmark_model(tiny_path: TinyPath, tmp_path: Path) -> None:
    narrow, out = tiny_path(n_layer=2, n_embd=256, qtype="Q8_0"), tmp_path / "bench.gguf"
    wanted = make_bench_model.n_params(read_model(narrow), 2)
    result = bench("--model", narrow, "--params", wanted, "--type", "Q4_K_M", "--out", out)
    assert result.exit_code == 0, result.output
    file = check(out)
    assert (file.n_embd, file.n_params, file.file_type) == (512, wanted, "Q4_K_M")
    assert {tensor.type for tensor in file.tensors} == {"F32", "Q4_K", "Q6_K"}
    assert "2 blocks of 512" in result.stdout and "2 times as wide" in result.stdout
    assert list(tmp_path.iterdir()) == [out]
    with Model(out) as model, model.context(n_ctx=256, n_threads=1) as context:
        assert np.isfinite(context.decode([1, 300, 301]).logits).all()
