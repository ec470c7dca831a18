"""A device that is lost or too small is an error in one line, never the end of the process."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from fixture_types import RunPython, TinyPath

from pyselfspec.util import build

pytestmark = pytest.mark.device

with_vulkan = pytest.mark.skipif(
    not any(build.LIB_DIR.glob("*ggml-vulkan*")), reason="Vulkan's functions are replaced"
)

LOST = """
import ctypes, sys
from pyselfspec import LayerMask, Model
from pyselfspec.errors import DecodeError
process = ctypes.CDLL(None)
with Model(sys.argv[1], n_gpu_layers=int(sys.argv[2])) as model:
    context = model.context(n_ctx=256, n_batch=64, n_threads=1)
    context.decode([1, 2, 3])
    process.lose_device_after(int(sys.argv[3]))
    mask = LayerMask.early_exit(model.n_layer, 2)
    lost = 0
    for options in ({}, {"mask": mask, "head": "best", "hidden_at": 2}, {}) * 2:
        try:
            context.decode([4, 5], **options).logits
        except DecodeError as error:
            lost += 1
            assert "the GPU is lost" in str(error) and "start the program again" in str(error)
            assert "\\n" not in str(error)
    assert lost, "no pass has failed"
    context.close()
    try:
        model.context(n_ctx=256, n_batch=64, n_threads=1).decode([1])
    except DecodeError as error:
        assert "the GPU is lost" in str(error)
print("alive")
"""


@pytest.fixture(scope="module")
def losing(tmp_path_factory: pytest.TempPathFactory) -> str:
    """For LD_PRELOAD: a library that lets a Vulkan device get lost."""
    library = tmp_path_factory.mktemp("lost") / "liblost.so"
    source = Path(__file__).with_name("lost_device.cpp")
    options = ["-O1", "-shared", "-fPIC", "-Wl,--no-as-needed"]
    command = ["c++", *options, "-o", str(library), str(source), "-lvulkan", "-ldl"]
    subprocess.run(command, check=True)
    return f"{os.environ.get('LD_PRELOAD', '')} {library}".strip()


@with_vulkan
@pytest.mark.parametrize(("n_gpu_layers", "n_calls"), [(5, 0), (5, 1), (5, 3), (1, 2)])
def test_a_lost_device(
    n_gpu_layers: int, n_calls: int, losing: str, tiny_path: TinyPath, run_python: RunPython
) -> None:
    run = run_python(LOST, tiny_path(), n_gpu_layers, n_calls, LD_PRELOAD=losing)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["alive"]


SMALL = """
import sys
from pyselfspec import Model
from pyselfspec.errors import DecodeError
from pyselfspec.runtime.ffi import devices
from pyselfspec.runtime import offload
with Model(sys.argv[1], n_gpu_layers="auto") as model:
    n_free = devices.free_bytes()
    wanted = offload.fitting(model.file, n_free)
    assert 0 < model.n_gpu_layers <= wanted, (model.n_gpu_layers, wanted)
    try:
        model.context(n_ctx=2**26)
    except DecodeError as error:
        print(error)
"""


def test_too_little_memory(demo_path: Path, run_python: RunPython) -> None:
    run = run_python(SMALL, demo_path)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("\n") == 1 and "of device memory" in run.stdout, run.stdout
    assert 'give n_gpu_layers="auto"' in run.stdout
