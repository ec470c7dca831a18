"""Adapters, control vectors and samplers set behind prepared graphs: all made before are void.

Each is set with llama.cpp's own functions on the context's handle, as a server would.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter
from numpy.typing import NDArray

from pyselfspec import Context, LayerMask, Model
from pyselfspec.errors import UnsupportedError
from pyselfspec.runtime._lib import llama

MASK = LayerMask.skipping(4, ffn=[1])
Logits = NDArray[np.float32]


def narrow(context: Context, mask: LayerMask | None = None) -> Logits:
    """A pass that has a prepared graph, in an empty context."""
    context.sequence().drop()
    return context.decode([5], mask=mask).logits[0]


def set_control_vector(context: Context, vector: NDArray[np.float32] | None) -> None:
    model = context.model
    pointer = None if vector is None else vector.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
    size = 0 if vector is None else vector.size
    assert not llama.llama_set_adapter_cvec(
        context.handle, pointer, size, model.n_embd, 1, model.n_layer
    )


def write_adapter(path: Path, model: Model, seed: int) -> Path:
    """A LoRA adapter of the attention outputs."""
    rng = np.random.default_rng(seed)
    writer = GGUFWriter(path, model.file.architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 8.0)
    for il in range(model.n_layer):
        for part, shape in (("a", (4, model.n_embd)), ("b", (model.n_embd, 4))):
            values = rng.normal(size=shape).astype(np.float32) * np.float32(0.3)
            writer.add_tensor(f"blk.{il}.attn_output.weight.lora_{part}", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def set_adapters(context: Context, adapters: Sequence[int]) -> None:
    n = len(adapters)
    handles = (llama.llama_adapter_lora_p_ctypes * n)(*adapters) if n else None
    scales = (ctypes.c_float * n)(*[1.0] * n) if n else None
    assert not llama.llama_set_adapters_lora(context.handle, handles, n, scales)


@pytest.fixture
def adapters(tiny: Any, tmp_path: Path) -> list[int]:
    """Three, which live as long as their model."""
    paths = [write_adapter(tmp_path / f"{seed}.gguf", tiny(), seed) for seed in range(3)]
    handles = [llama.llama_adapter_lora_init(tiny().handle, bytes(path)) for path in paths]
    assert all(handles)
    return handles


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
sys.path[:0] = sys.argv[2:4]
from pathlib import Path
from pyselfspec import Model
from pyselfspec.runtime._lib import llama
from test_adapters import narrow, set_adapters, write_adapter
with Model(sys.argv[1]) as model, model.context(n_ctx=256, n_batch=64, n_threads=1) as context:
    narrow(context)
    paths = [write_adapter(Path(sys.argv[4]) / f"{seed}.gguf", model, seed) for seed in range(12)]
    set_adapters(
        context, [llama.llama_adapter_lora_init(model.handle, bytes(path)) for path in paths]
    )
    narrow(context)
print("done")
"""


def test_graphs_grow_with_adapters(tiny_path: Any, run_python: Any, tmp_path: Path) -> None:
    """More nodes than a graph made before has room for: llama.cpp ends the process there."""
    here = Path(__file__).parent
    run = run_python(
        MANY_NODES, tiny_path(n_layer=40), here, here.parent, tmp_path,
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


def test_a_sampler_in_the_graph_is_refused_and_forgotten(tiny: Any, new_context: Any) -> None:
    context = new_context(tiny())
    plain = narrow(context)
    with device_sampler(context), pytest.raises(UnsupportedError, match="samples by itself"):
        narrow(context)
    np.testing.assert_array_equal(narrow(context), plain)
