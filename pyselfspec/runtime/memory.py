"""Whether a model and a context fit into memory, asked before llama.cpp allocates anything.

Less free memory than needed is a warning, since the pages of a mapped file can come and go. A limit
on address space (ulimit -v) that is too low is an error: llama.cpp would abort.
"""

from __future__ import annotations

import warnings

from ..errors import DecodeError, ModelFileError
from ..gguf.file import GgufFile
from ..util import memory
from ..util.memory import as_text

# ggml's scheduler: 60 tensors of 336 bytes for each of 8 nodes per tensor of the model, and more of
# them in some architectures.
SCHEDULER_BYTES = 60 * 336 * 8
MIN_TENSORS = 128
SPARE_BYTES = 16 << 20


def require_for_model(file: GgufFile) -> None:
    """Raise ModelFileError for a file that cannot be mapped; warn of one larger than memory."""
    left = memory.address_space()
    if left is not None and file.n_bytes > left:
        raise ModelFileError(
            f"{file.path}: the model takes {as_text(file.n_bytes)} of address space, and the limit "
            f"leaves {as_text(left)}; raise the limit (ulimit)"
        )
    free = memory.available()
    if free is not None and file.n_bytes > free:
        _warn(f"the model {file.path.name}", file.n_bytes, free, "take a smaller quantization")


def require_for_context(file: GgufFile, n_ctx: int, type_k: str, type_v: str) -> None:
    """Raise DecodeError for a context that cannot be mapped; warn of K/V larger than memory."""
    n_bytes = file.kv_bytes(n_ctx, type_k, type_v)
    require_room(file, f"a context of {n_ctx} tokens", n_bytes)
    free = memory.available()
    if free is not None and n_bytes > free:
        _warn(f"a context of {n_ctx} tokens", n_bytes, free, "give a smaller n_ctx")


def require_room(file: GgufFile, what: str, n_bytes: int = 0) -> None:
    """Raise DecodeError when the limit on address space leaves no room for so many bytes and a
    scheduler, without which ggml aborts. A context that is open may need another scheduler."""
    left = memory.address_space()
    needed = n_bytes + SCHEDULER_BYTES * max(MIN_TENSORS, len(file.tensors)) + SPARE_BYTES
    if left is not None and needed > left:
        raise DecodeError(
            f"{what} takes at least {as_text(needed)} more of address space, and the limit leaves "
            f"{as_text(left)}; give a smaller n_ctx, or raise the limit (ulimit)"
        )


def _warn(what: str, n_bytes: int, free: int, advice: str) -> None:
    warnings.warn(
        f"{what} needs {as_text(n_bytes)} of memory, and {as_text(free)} are free: it may be very "
        f"slow, or the system may end the program; {advice}",
        stacklevel=4,
    )
