"""A device that is missing, full or lost, and what one cannot do: an error or a warning in one
line, never the end of the process.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from fixture_types import RunPython, TinyPath
from places import llama_cpp

from pyselfspec import Model
from pyselfspec.errors import ModelFileError
from pyselfspec.util import build

pytestmark = pytest.mark.device

with_vulkan = pytest.mark.skipif(
    not any(build.LIB_DIR.glob("*ggml-vulkan*")), reason="Vulkan's functions are replaced"
)


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> str:
    """For LD_PRELOAD: a library that lets a Vulkan device fail."""
    library = tmp_path_factory.mktemp("failing") / "libfailing.so"
    source, ggml = Path(__file__).with_name("failing_device.cpp"), llama_cpp() / "ggml"
    options = ["-std=c++17", "-O1", "-shared", "-fPIC", "-Wl,--no-as-needed"]
    options += [f"-I{ggml / folder}" for folder in ("include", "src")]
    command = ["c++", *options, "-o", str(library), str(source), "-lvulkan", "-ldl"]
    subprocess.run(command, check=True)
    return f"{os.environ.get('LD_PRELOAD', '')} {library}".strip()


#
# no device
#

NONE = """
import sys, warnings
from pyselfspec import Model
with warnings.catch_warnings(record=True) as found, Model(sys.argv[1], n_gpu_layers=3) as model:
    model.context(n_ctx=256, n_batch=64, n_threads=1).decode([1, 2, 3]).logits
print(model.n_gpu_layers, *(each.message for each in found))
"""


@with_vulkan
@pytest.mark.parametrize(
    "hidden",
    [
        {"GGML_VK_VISIBLE_DEVICES": ""},
        {"GGML_VK_VISIBLE_DEVICES": "7"},
        {"VK_ICD_FILENAMES": "/none", "VK_DRIVER_FILES": "/none"},
    ],
    ids=["none is visible", "no such number", "no driver"],
)
def test_no_device(hidden: dict[str, str], tiny_path: TinyPath, run_python: RunPython) -> None:
    run = run_python(NONE, tiny_path(), **hidden)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("0 n_gpu_layers (-ngl) has no effect")
    assert run.stdout.count("\n") == 1 and "Vulkan finds no GPU" in run.stdout


def test_no_device_of_this_number(tiny_path: TinyPath) -> None:
    with pytest.raises(ModelFileError, match="main_gpu: 99"):
        Model(tiny_path(), split_mode="none", main_gpu=99)


@with_vulkan
def test_no_rows_across_devices(tiny_path: TinyPath) -> None:
    with pytest.raises(ModelFileError, match="Vulkan0 does not support split buffers"):
        Model(tiny_path(), split_mode="row")


#
# too little memory
#

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


FULL = """
import ctypes, sys
from pyselfspec import LayerMask, Model
from pyselfspec.errors import SelfSpecError
process = ctypes.CDLL(None)

def logits():
    global stage
    stage = "load"
    with Model(sys.argv[1], n_gpu_layers=5) as model:
        stage = "context"
        context = model.context(n_ctx=256, n_batch=64, n_threads=1)
        stage = "pass"
        context.decode([4, 5, 6])
        context.decode(list(range(7, 60)))
        mask = LayerMask.early_exit(model.n_layer, 2)
        context.decode([7], mask=mask, head="best", hidden_at=2)
        return context.decode([8]).logits.tobytes()

wanted = logits()
for n in range(100):
    process.fill_memory_after(n)
    try:
        assert logits() == wanted
        break
    except SelfSpecError as error:
        print(stage, str(error))
    process.fill_memory_after(-1)
    assert logits() == wanted
print("alive")
"""


@with_vulkan
def test_every_allocation_that_fails(
    failing: str, tiny_path: TinyPath, run_python: RunPython
) -> None:
    """With memory again, the process goes on."""
    run = run_python(FULL, tiny_path(), LD_PRELOAD=failing)
    assert run.returncode == 0, run.stderr
    *lines, last = run.stdout.splitlines()
    assert last == "alive"
    found = {"load": 0, "context": 0, "pass": 0}
    for line in lines:
        stage = line.partition(" ")[0]
        found[stage] += 1
        if stage == "pass":
            assert "the GPU has no memory left for this pass; give a smaller n_ctx" in line
        else:
            assert "failed to allocate Vulkan0 buffer" in line
            assert "of device memory: give fewer, n_gpu_layers (-ngl)" in line
    assert min(found.values()) > 0, found


#
# a lost device
#

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


@with_vulkan
@pytest.mark.parametrize(("n_gpu_layers", "n_calls"), [(5, 0), (5, 1), (5, 3), (1, 2)])
def test_a_lost_device(
    n_gpu_layers: int, n_calls: int, failing: str, tiny_path: TinyPath, run_python: RunPython
) -> None:
    run = run_python(LOST, tiny_path(), n_gpu_layers, n_calls, LD_PRELOAD=failing)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["alive"]


BESIDES_PASSES = """
import ctypes, sys
from pathlib import Path
from png_files import png
from tiny_mmproj import write
from pyselfspec import Model
from pyselfspec.errors import SelfSpecError
from pyselfspec.runtime.embedding import EmbeddingContext
from pyselfspec.runtime.projector import Projector
from pyselfspec.runtime.sequence_snapshot import restore_sequence, save_sequence

lose = ctypes.CDLL(None).lose_device_after
_, path, what, n_calls, folder = sys.argv

def load():
    lose(int(n_calls))
    with Model(path) as model:
        model.context(n_ctx=256, n_batch=64, n_threads=1).decode([1, 2, 3]).logits

def embed():
    with Model(path) as model:
        with EmbeddingContext(model, n_ctx=64, n_threads=1, pooling="mean") as made:
            made.embed([1, 2, 3])
            lose(int(n_calls))
            made.embed([1, 2, 3])

def save():
    with Model(path) as model, model.context(n_ctx=256, n_batch=64, n_threads=1) as context:
        context.decode([1, 2, 3]).logits
        lose(int(n_calls))
        assert save_sequence(context.sequence()) is None
        context.decode([4]).logits

def restore():
    with Model(path) as model, model.context(n_ctx=256, n_batch=64, n_threads=1) as context:
        context.decode([1, 2, 3], outputs="none")
        saved = save_sequence(context.sequence())
        assert saved is not None
        context.decode([4], outputs="none")
        lose(int(n_calls))
        restore_sequence(context.sequence(), saved)
        context.decode([4]).logits

def picture():
    with Model(path) as model:
        file = write(Path(folder) / "p.gguf", model.n_embd, "gemma3")
        with Projector(model, file, n_threads=1) as projector:
            projector.read(png(0))
            lose(int(n_calls))
            projector.read(png(1))

try:
    globals()[what]()
except SelfSpecError as error:
    print(error)
print("alive")
"""


@with_vulkan
@pytest.mark.parametrize("n_calls", [0, 1])
@pytest.mark.parametrize("what", ["load", "embed", "save", "restore", "picture"])
def test_a_device_that_is_lost_between_passes(
    what: str,
    n_calls: int,
    failing: str,
    tiny_path: TinyPath,
    run_python: RunPython,
    tmp_path: Path,
) -> None:
    run = run_python(BESIDES_PASSES, tiny_path(), what, n_calls, tmp_path, LD_PRELOAD=failing)
    assert run.returncode == 0, run.stderr
    error, last = run.stdout.splitlines()
    assert last == "alive" and error.startswith("the GPU is lost")


#
# missing operators
#

LACKING = """
import ctypes, sys
import numpy as np
from pyselfspec import LayerMask, Model
from pyselfspec.runtime.ffi.load import native

lack = ctypes.CDLL(None).lack_operator
lack.argtypes = [ctypes.c_void_p, ctypes.c_int]

def logits(n_gpu_layers):
    with Model(sys.argv[1], n_gpu_layers=n_gpu_layers) as model:
        with model.context(n_ctx=256, n_batch=64, n_threads=1) as context:
            early = context.decode([5, 6, 7, 8], mask=LayerMask.early_exit(model.n_layer, 2)).logits
            return np.array([early[0], context.decode([9]).logits[0]])

wanted = logits(0)
found = [native.ggml_backend_dev_get(i) for i in range(native.ggml_backend_dev_count())]
(device,) = (each for each in found if native.ggml_backend_dev_type(each) in (1, 2))
for operator in map(int, sys.argv[2:]):
    lack(device, operator)
    np.testing.assert_allclose(logits(5), wanted, atol=0.02 * np.ptp(wanted), err_msg=str(operator))
print("alive")
"""


@with_vulkan
def test_operators_that_a_device_lacks_are_computed_on_the_cpu(
    failing: str, tiny_path: TinyPath, run_python: RunPython
) -> None:
    header = (llama_cpp() / "ggml" / "include" / "ggml.h").read_text(encoding="utf-8")
    names = re.findall(r"^ +GGML_OP_(\w+)(?: = 0)?,", header, flags=re.MULTILINE)
    lacked = ("ADD", "MUL", "RMS_NORM", "MUL_MAT", "GET_ROWS", "ROPE", "FLASH_ATTN_EXT", "GLU")
    operators = [names.index(name) for name in lacked]
    run = run_python(LACKING, tiny_path(), *operators, LD_PRELOAD=failing)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["alive"]
