"""The settings of waiting threads reach the threads that compute, also in a process with torch.

Torch brings a libgomp, which reads the settings when torch is imported. What a thread does while it
waits shows in the processor time of a process that does nothing.
"""

from __future__ import annotations

import importlib.util

import pytest
from fixture_types import RunPython, TinyPath

from pyselfspec.util import build

ASLEEP, AWAKE = 0.1, 0.25  # seconds of processor time, of half a second

CODE = """
import os, sys, time
if sys.argv[2] == "torch first":
    import torch
    torch.set_num_threads(2)
    torch.ones(400, 400) @ torch.ones(400, 400)
if sys.argv[3]:
    os.environ["GOMP_SPINCOUNT"] = sys.argv[3]
from pyselfspec import Model
with Model(sys.argv[1]) as model, model.context(n_ctx=256, n_threads=2) as context:
    context.decode([1, 2, 3])
    begun = time.process_time()
    time.sleep(0.5)
    print(time.process_time() - begun)
"""
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
ORDERS = ["alone", pytest.param("torch first", marks=needs_torch)]


@pytest.mark.nightly  # other programs of the machine can take the time that is measured
@pytest.mark.parametrize("order", ORDERS)
def test_waiting_threads_sleep(order: str, tiny_path: TinyPath, run_python: RunPython) -> None:
    run = run_python(CODE, tiny_path(), order, "")
    assert float(run.stdout) < ASLEEP, run.stderr


@pytest.mark.nightly  # other programs of the machine can take the time that is measured
@pytest.mark.parametrize("order", ORDERS)
def test_a_setting_reaches_them(order: str, tiny_path: TinyPath, run_python: RunPython) -> None:
    """A setting counts even if it is made after another OpenMP runtime has read its own."""
    run = run_python(CODE, tiny_path(), order, "infinite")
    assert float(run.stdout) > AWAKE, run.stderr


def test_no_backend_uses_a_runtime_that_others_bring() -> None:
    for library in build.LIB_DIR.glob("*ggml*"):
        content = library.read_bytes()
        assert b"libgomp.so" not in content and b"libomp.so" not in content, library
