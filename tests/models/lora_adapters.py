"""LoRA adapters and control vectors with random weights, set with llama.cpp's own functions."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, quants
from numpy.typing import NDArray

from pyselfspec import Context, LayerMask, Model
from pyselfspec.runtime.ffi.load import llama

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


def write_adapter(
    path: Path,
    model: Model,
    seed: int,
    *,
    rank: int = 4,
    type_name: str = "F32",
    size: float = 0.3,
    extra: dict[str, str] | None = None,
    head: bool = False,
) -> Path:
    """A LoRA adapter of the attention outputs, and of the head. size: standard deviation of its
    values."""
    kind = GGMLQuantizationType[type_name]
    rng = np.random.default_rng(seed)
    writer = GGUFWriter(path, model.file.architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 8.0)
    for key, value in (extra or {}).items():
        writer.add_string(key, value)
    outputs = {f"blk.{il}.attn_output": model.n_embd for il in range(model.n_layer)}
    if head:
        outputs["output"] = model.n_vocab
    for weight, n_out in outputs.items():
        for part, shape in (("a", (rank, model.n_embd)), ("b", (n_out, rank))):
            values = rng.normal(size=shape).astype(np.float32) * np.float32(size)
            data = quants.quantize(values, kind)
            writer.add_tensor(f"{weight}.weight.lora_{part}", data, raw_dtype=kind)
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
