"""Tests whether a model and a context fit into memory, before llama.cpp allocates anything.

Less free memory than needed is a warning, since the pages of a mapped file can come and go. A limit
on address space (ulimit -v) that is too low is an error: llama.cpp would abort.
"""

from __future__ import annotations

import warnings

from ..errors import DecodeError, ModelFileError, SelfSpecWarning
from ..gguf.file import GgufFile
from ..util import memory
from ..util.pass_width import MAX_PASS_WIDTH
from ..util.sizes import size_text

# ggml's scheduler: 60 tensors of 336 bytes for each of 8 nodes per tensor of the model, and more of
# them in some architectures. The graph and its tables take less than 8 tensors more.
SCHEDULER_BYTES = (60 + 8) * 336 * 8
MIN_TENSORS = 128
N_SCHEDULERS = 14  # the context's, those of 12 kept graphs, and one that is being replaced
LOGIT_BYTES = 4
SPARE_BYTES = 48 << 20  # of the program, with the stacks of a few threads
STACK_BYTES = 8 << 20  # of each further thread


def needed_bytes(
    file: GgufFile, n_ctx: int, type_k: str, type_v: str, n_state_bytes: int = 0
) -> int:
    """Memory that a model takes with a context: bytes of its file, of K and V of these types, and
    of recurrent states."""
    return file.n_bytes + file.kv_bytes(n_ctx, type_k, type_v) + n_state_bytes


def require_for_model(file: GgufFile) -> None:
    """Raise ModelFileError for a file that is too large to be mapped."""
    left = memory.address_space()
    if left is not None and file.n_bytes > left:
        raise ModelFileError(
            f"{file.path}: the model takes {size_text(file.n_bytes)} of address space, and the "
            f"limit leaves {size_text(left)}; raise the limit (ulimit)"
        )


def require_for_context(
    file: GgufFile,
    n_ctx: int,
    type_k: str,
    type_v: str,
    *,
    n_threads: int,
    free: int | None,
    n_state_bytes: int = 0,
) -> None:
    """Raise DecodeError for a context that cannot be mapped; warn when it and the model need more
    memory than was free, in bytes, before the model was loaded (None where that is unknown).

    n_state_bytes: of the recurrent states of all sequences, with their snapshots.
    """
    n_bytes = file.kv_bytes(n_ctx, type_k, type_v) + n_state_bytes
    require_room(file, f"a context of {n_ctx} tokens", n_bytes, n_threads=n_threads)
    needed = needed_bytes(file, n_ctx, type_k, type_v, n_state_bytes)
    if free is not None and needed > free:
        fits = file.n_bytes <= free
        advice = "give a smaller n_ctx (-c)" if fits else "take a smaller quantization"
        warning = SelfSpecWarning(
            f"the model {file.path.name} with a context of {n_ctx} tokens needs "
            f"{size_text(needed)} of memory, and {size_text(free)} are free: it may be very slow, "
            f"or the system may end the program; {advice}"
        )
        warnings.warn(warning, stacklevel=3)


def require_room(file: GgufFile, what: str, n_bytes: int = 0, *, n_threads: int) -> None:
    """Raise DecodeError when the limit on address space leaves no room for these bytes and for
    every graph that a context may keep: ggml aborts where it cannot make one."""
    left = memory.address_space()
    graph = SCHEDULER_BYTES * max(MIN_TENSORS, len(file.tensors))
    graph += MAX_PASS_WIDTH * LOGIT_BYTES * file.n_vocab
    needed = n_bytes + N_SCHEDULERS * graph + STACK_BYTES * n_threads + SPARE_BYTES
    if left is not None and needed > left:
        raise DecodeError(
            f"{what} takes up to {size_text(needed)} more of address space, and the limit leaves "
            f"{size_text(left)}; give a smaller n_ctx (-c), or raise the limit (ulimit)"
        )
