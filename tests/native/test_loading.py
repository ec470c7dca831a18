"""Weights that are copied and weights in a mapped file give the same logits."""

import re
import sys
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from places import llama_cpp
from preloads import preload, shared_library

from pyselfspec import Model
from pyselfspec.errors import ArgumentError
from pyselfspec.gguf import file as gguf_file
from pyselfspec.gguf.header import read_header, tensor_types
from pyselfspec.runtime import loading
from pyselfspec.runtime.ffi import devices
from pyselfspec.runtime.ffi.load import native
from pyselfspec.util import build, memory
from tools.models import random_gguf

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


def test_the_share_of_weights_that_stay_as_in_the_file(tmp_path):
    types = tensor_types()
    for i, name in enumerate(("Q8_0", "Q4_K")):
        file = gguf_file.check(of_type(tmp_path / f"{i}.gguf", name))
        number = next(n for n, (other, *_) in types.items() if other == name)
        is_interleaved = native.selfspec_interleaved_bytes(number) > 0
        norms = sum(t.n_bytes for t in file.tensors if t.type == "F32") / file.weight_bytes()
        assert loading.kept_share(file) == pytest.approx(norms if is_interleaved else 1)


def test_other_ways_are_refused(tiny_path):
    with pytest.raises(ArgumentError, match="load is one of auto, copy, map, got 'mmap'"):
        Model(tiny_path(), load="mmap")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_pages_of_interleaved_weights_are_given_back(tmp_path):
    path = of_type(tmp_path / "model.gguf", "Q4_0", n_embd=512, n_ff=4096)
    with Model(path, n_gpu_layers=0, load=loading.MAP) as model:
        if loading.kept_share(model.file) > 0.5:
            pytest.skip("this CPU reads the weights as they are in the file")
        model.context(n_ctx=64).decode(PROMPT)
        smaps = Path("/proc/self/smaps").read_text()
    in_kib = re.findall(rf" {re.escape(str(path))}\n(?:.*\n)*?Rss: +([0-9]+) kB", smaps)
    assert 0 < sum(map(int, in_kib)) << 10 < path.stat().st_size / 3


COUNTING = """
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
static int n;
const char * gguf_get_arr_str(const void * file, int64_t key, size_t i) {
    void * library = dlopen(getenv("GGML_BASE"), RTLD_NOW | RTLD_NOLOAD);
    const char * (*read)(const void *, int64_t, size_t) = dlsym(library, "gguf_get_arr_str");
    n++;
    return read(file, key, i);
}
__attribute__((destructor)) static void show(void) { printf("%d\\n", n); }
"""

LOAD = """
import sys
from pyselfspec import Model
Model(sys.argv[1]).close()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="puts a function before the library's own")
def test_strings_of_a_file_are_read_once(tiny_path, run_python, tmp_path):
    """And not again for the log, which shows the first characters of a vocabulary."""
    path, source = tiny_path(), tmp_path / "count.c"
    source.write_text(COUNTING)
    [library] = build.LIB_DIR.glob("*ggml-base*.so")
    counting = preload(shared_library(source, tmp_path))
    run = run_python(LOAD, path, LD_PRELOAD=counting, GGML_BASE=str(library))
    assert run.returncode == 0, run.stderr
    lists = [value for value in read_header(path).metadata.values() if isinstance(value, tuple)]
    n_strings = sum(isinstance(each, bytes) for each in chain(*lists))
    assert n_strings <= int(run.stdout) < 1.1 * n_strings


def test_special_tokens_have_a_bracket():
    """The library compares no token without one with the texts that llama.cpp looks for."""
    source = (llama_cpp() / "src" / "llama-vocab.cpp").read_text()
    texts = re.findall(r't\.first == "([^"]+)"', source)
    assert len(texts) > 50
    assert [text for text in texts if "<" not in text and "[" not in text] == []


def of_type(path, type_name, n_embd=256, n_ff=768):
    shape = random_gguf.Shape(n_layer=2, n_embd=n_embd, n_ff=n_ff, n_vocab=512)
    recipe = random_gguf.Recipe(shape, type_name, 0, 1.0, 1)
    random_gguf.write(path, recipe, 256, lambda _: None)
    return path


@pytest.mark.parametrize("type_name", ["IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"])
def test_weights_grow_where_there_is_room(type_name, tmp_path, monkeypatch):
    """In the file's layout they are multiplied exactly in narrow passes only."""
    path, logits = of_type(tmp_path / "model.gguf", type_name), {}
    with Model(path) as model:
        n_grown = model.file.n_bytes + loading.growth(model.file)
        if n_grown == model.file.n_bytes:
            pytest.skip("the CPU multiplies these weights as fast in their own size")
    assert n_grown < 3 * model.file.n_bytes
    for n_free, load in ((2 * n_grown, "auto"), (2 * n_grown - 1, "auto"), (4 * n_grown, "map")):
        monkeypatch.setattr(memory, "available", lambda n_free=n_free: n_free)
        with Model(path, load=load) as model:
            context = model.context(n_ctx=64)
            may_grow = n_free == 2 * n_grown
            assert context.abilities.exact_prompts == may_grow
            logits[may_grow] = context.decode(PROMPT).logits
    error = np.abs(logits[True] - logits[False]).max()
    assert 0 < error < 0.02 * np.abs(logits[False]).max()
