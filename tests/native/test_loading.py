"""Weights that are copied and weights in a mapped file give the same logits."""

import re
from pathlib import Path

import numpy as np
import pytest

from pyselfspec import Model
from pyselfspec.errors import ArgumentError
from pyselfspec.runtime import loading
from pyselfspec.runtime.ffi import devices
from pyselfspec.util import memory

PROMPT = [1, 300, 290, 281, 270]


def is_mapped(path):
    maps = Path("/proc/self/maps").read_text()
    return re.search(rf" {re.escape(str(Path(path).resolve()))}$", maps, re.MULTILINE) is not None


@pytest.mark.parametrize("qtype", ["F32", "Q8_0", "Q4_0"])
def test_both_ways_give_the_same_logits(tiny_path, qtype):
    path, found = tiny_path(qtype=qtype), {}
    for load in (loading.COPY, loading.MAP):
        with Model(path, n_gpu_layers=0, load=load) as model:
            assert model.load == load
            assert is_mapped(path) == (load == loading.MAP)
            found[load] = model.context(n_ctx=64).decode(PROMPT).logits
    np.testing.assert_array_equal(*found.values())


def test_auto_maps_a_file_that_leaves_little_memory(tiny_path, monkeypatch):
    path = tiny_path()
    n_bytes = Path(path).stat().st_size
    monkeypatch.setattr(memory, "has_huge_pages", lambda: True)
    for n_free, load in ((3 * n_bytes, loading.COPY), (n_bytes, loading.MAP)):
        monkeypatch.setattr(memory, "available", lambda n_free=n_free: n_free)
        with Model(path, n_gpu_layers=0) as model:
            assert model.load == load


@pytest.mark.skipif(not devices.gpus(), reason="there is no GPU")
def test_auto_leaves_files_for_a_gpu_to_llama_cpp(tiny_path):
    with Model(tiny_path()) as model:
        assert model.load == loading.AUTO


def test_other_ways_are_refused(tiny_path):
    with pytest.raises(ArgumentError, match="load is one of auto, copy, map, got 'mmap'"):
        Model(tiny_path(), load="mmap")
