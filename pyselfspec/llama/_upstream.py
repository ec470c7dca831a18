"""Imports llama_cpp after loading this package's library, so that both use the same one."""

from __future__ import annotations

from ..runtime.ffi import load

load.loaded()  # before the import, which uses the library that is loaded

from llama_cpp import Llama, LlamaState  # noqa: E402

__all__ = ["Llama", "LlamaState"]
