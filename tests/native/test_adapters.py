"""Adapters, control vectors and samplers set behind prepared graphs: all made before are void.

Each is set with llama.cpp's own functions on the context's handle, as a server would.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lora_adapters import narrow, set_adapters, set_control_vector, write_adapter

from pyselfspec import Context, LayerMask
from pyselfspec.errors import UnsupportedError
from pyselfspec.runtime.ffi.load import llama

MASK = LayerMask.skipping(4, ffn=[1])


@pytest.fixture
def adapters(tiny: Any, tmp_path: Path) -> list[int]:
    """Three, which live as long as their model."""
    paths = [write_adapter(tmp_path / f"{seed}.gguf", tiny(), seed) for seed in range(3)]
    handles = [llama.llama_adapter_lora_init(tiny().handle, bytes(path)) for path in paths]
    assert all(handles)
    return handles


@pytest.mark.sanitized
@pytest.mark.parametrize("mask", [None, MASK])
def test_a_control_vector_comes_and_goes(
    mask: LayerMask | None, tiny: Any, new_context: Any
) -> None:
    context, fresh = new_context(tiny()), new_context(tiny())
    vector = np.random.default_rng(0).normal(size=64 * 3).astype(np.float32) * np.float32(3)
    plain = narrow(context, mask)
    for each in (context, fresh):
        set_control_vector(each, vector)
    steered = narrow(fresh, mask)
    assert not np.array_equal(steered, plain)
    np.testing.assert_array_equal(narrow(context, mask), steered)
    set_control_vector(context, None)
    np.testing.assert_array_equal(narrow(context, mask), plain)


@pytest.mark.sanitized
@pytest.mark.parametrize("decode_between", [False, True])
def test_adapters_change_and_return(
    decode_between: bool, tiny: Any, new_context: Any, adapters: list[int]
) -> None:
    """Also where memory comes back at the same address, and where nothing of ours saw a change."""
    want = {}
    for i in (None, 0, 1):
        fresh = new_context(tiny())
        set_adapters(fresh, [] if i is None else [adapters[i]])
        want[i] = narrow(fresh)
    assert len({row.tobytes() for row in want.values()}) == 3
    context = new_context(tiny())
    for before, between, now in ((0, None, 1), (1, 0, None), (0, 1, None), (None, 0, 1)) * 3:
        for i in (before, between, now):
            set_adapters(context, [] if i is None else [adapters[i]])
            if i is before:
                narrow(context)
            elif decode_between:
                context.sequence().drop()
                context.decode(range(20, 40), outputs="none")  # too wide for a prepared graph
        np.testing.assert_array_equal(narrow(context), want[now])


MANY_NODES = """
import ctypes, sys
from pathlib import Path
from pyselfspec import Model
from pyselfspec.runtime.ffi.load import llama
from lora_adapters import narrow, set_adapters, write_adapter
with Model(sys.argv[1]) as model, model.context(n_ctx=256, n_batch=64, n_threads=1) as context:
    narrow(context)
    paths = [write_adapter(Path(sys.argv[2]) / f"{seed}.gguf", model, seed) for seed in range(12)]
    set_adapters(
        context, [llama.llama_adapter_lora_init(model.handle, bytes(path)) for path in paths]
    )
    narrow(context)
print("done")
"""


@pytest.mark.sanitized
def test_graphs_grow_with_adapters(tiny_path: Any, run_python: Any, tmp_path: Path) -> None:
    """More nodes than a graph made before has room for: llama.cpp ends the process there."""
    run = run_python(
        MANY_NODES, tiny_path(n_layer=40), tmp_path,
        GGML_NO_BACKTRACE="1",
    )  # fmt: skip
    assert run.stdout == "done\n", run.stderr


@contextmanager
def device_sampler(context: Context) -> Iterator[None]:
    chain = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params())
    llama.llama_sampler_chain_add(chain, llama.llama_sampler_init_greedy())
    assert llama.llama_set_sampler(context.handle, 0, chain)
    try:
        yield
    finally:
        llama.llama_set_sampler(context.handle, 0, None)
        llama.llama_sampler_free(chain)


@pytest.mark.sanitized
def test_a_sampler_in_the_graph_is_refused_and_forgotten(tiny: Any, new_context: Any) -> None:
    context = new_context(tiny())
    plain = narrow(context)
    with device_sampler(context), pytest.raises(UnsupportedError, match="samples by itself"):
        narrow(context)
    np.testing.assert_array_equal(narrow(context), plain)
