"""llama_cpp on top of this package's library: whoever imports it from here has both."""

from __future__ import annotations

from ..runtime import _lib

_lib.load()  # before the import, which takes whatever library is there

from llama_cpp import Llama, LlamaState  # noqa: E402

__all__ = ["Llama", "LlamaState"]
