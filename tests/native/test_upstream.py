"""The process of bench and demo that computes with llama.cpp's own kernels."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import other_process
import pytest

from pyselfspec.bench.upstream import UpstreamKernels
from pyselfspec.errors import SelfSpecError, UnsupportedError
from pyselfspec.util import memory


@pytest.fixture
def start(demo: Any, demo_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("PYTHONPATH", str(Path(other_process.__file__).parent))
    return lambda path=demo_path: UpstreamKernels(demo, partial(other_process.opened, path))


@pytest.fixture
def process(start: Any) -> Iterator[UpstreamKernels]:
    with start() as process:
        yield process


def test_it_rounds_otherwise_than_our_kernels(
    process: UpstreamKernels, demo: Any, new_context: Any
) -> None:
    [theirs] = process.each(other_process.logits, 5)
    [ours] = other_process.logits(new_context(demo), 5)
    np.testing.assert_allclose(theirs, ours, atol=0.5)
    assert (theirs != ours).any()


def test_it_computes_an_item_when_it_is_asked_for(process: UpstreamKernels, tmp_path: Path) -> None:
    path = tmp_path / "a"
    for item in process.each(other_process.writes, path):
        assert path.read_text() == str(item)
    assert len(list(process.each(other_process.writes, path))) == 2


def test_one_that_ends_early_or_cannot_open_the_model_is_an_error(start: Any) -> None:
    with start() as process, pytest.raises(SelfSpecError, match="ended with status 3"):
        list(process.each(other_process.ends, 3))
    with pytest.raises(SelfSpecError, match=r"missing\.gguf"):
        start(Path("missing.gguf"))


def test_ctrl_c_and_the_end_of_this_process_end_it(start: Any) -> None:
    """Ctrl-C reaches both, and this one may still want to show what was measured."""
    with start() as process:
        process._process.send_signal(signal.SIGINT)
        assert len(list(process.each(other_process.logits, 5))) == 1
    assert process._process.poll() is not None
    alone = start()._process
    alone.communicate()  # closes its stdin, as the end of this process does
    assert alone.returncode == 0


def test_it_is_not_started_without_room_or_use(demo: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(memory, "available", lambda: 1000)
    with pytest.raises(UnsupportedError, match=r"loaded twice .* 1\.0 kB are free"):
        UpstreamKernels(demo, partial(pytest.fail, "opened"))
    on_gpu: Any = SimpleNamespace(n_gpu_layers=2)
    with pytest.raises(UnsupportedError, match="on CPUs only"):
        UpstreamKernels(on_gpu, partial(pytest.fail, "opened"))
    monkeypatch.setenv("PYSELFSPEC_KERNELS", "off")
    with pytest.raises(UnsupportedError, match="uses them already"):
        UpstreamKernels(demo, partial(pytest.fail, "opened"))
