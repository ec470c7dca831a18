"""Calls of the library for LoRA adapters."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .load import llama


def load_adapter(model: int, path: Path) -> Any:
    """Return the pointer to an adapter, which is freed with the model; None where it failed."""
    return llama.llama_adapter_lora_init(model, os.fsencode(path)) or None


def set_adapters(context: int, adapters: Sequence[tuple[Any, float]]) -> None:
    """Let the passes of a context use these adapters, given as pointers and scales."""
    n = len(adapters)
    handles = scales = None
    if n:
        handles = (llama.llama_adapter_lora_p_ctypes * n)(*(handle for handle, _ in adapters))
        scales = (ctypes.c_float * n)(*(scale for _, scale in adapters))
    llama.llama_set_adapters_lora(context, handles, n, scales)
