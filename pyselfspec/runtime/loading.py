"""Chooses how a model's weights are loaded: copied into RAM or mapped from the file (mmap), and
whether they may take more memory than in the file.

A pass over one token reads every weight once. Linux gives pages of 2 MB to a copy and pages of 4 kB
to a mapped file, whose addresses take longer to translate; see native/memory. A copy takes longer
to load, and processes that run the same model do not share it. Weights of most types have eight
rows interleaved for this CPU when they are loaded, see native/kernels, which is a copy in any case.

Weights that are indices of tables (IQ1 to IQ3) are multiplied two to four times as fast when they
are unpacked to four bits each; see native/kernels/columns_nibbles.cpp.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import ArgumentError
from ..gguf.file import TOKEN_EMBEDDING, GgufFile
from ..gguf.header import TensorInfo, tensor_types
from ..util import memory
from .ffi.load import native

AUTO, COPY, MAP = "auto", "copy", "map"
LOADS = (AUTO, COPY, MAP)
N_FREE = 2  # sizes of the weights that must be free before they are copied, or grow
MODES = {COPY: 0, MAP: 1, AUTO: -1}  # numbers of enum llama_load_mode
KEPT_MIN = 0.1  # least share of what a pass reads that is as in the file, for which a copy pays
UNIT, ROWS = 256, 8  # values that sizes are for, and rows that are interleaved


def require(load: str) -> None:
    """Raise ArgumentError for a value that is none of LOADS."""
    if load not in LOADS:
        raise ArgumentError(f"load is one of {', '.join(LOADS)}, got {load!r}")


def chosen(n_bytes: int, n_free: int | None, kept_share: float) -> str:
    """Return COPY or MAP for a file of n_bytes bytes that the CPU computes with.

    n_free: bytes of free memory, None where unknown. kept_share: see ``kept_share``.
    """
    gains = kept_share >= KEPT_MIN and memory.has_huge_pages()
    return COPY if gains and _has_room(n_bytes, n_free) else MAP


def kept_share(file: GgufFile) -> float:
    """Return the share of the bytes read by a pass over one token whose layout is that of the
    file."""
    n_other = sum(file.bytes_read(tensor) for tensor, _ in _interleaved(file))
    return 1 - n_other / max(1, file.weight_bytes())


def growth(file: GgufFile) -> int:
    """Return how many bytes more than in the file the weights take when all types are unpacked that
    this CPU then multiplies faster."""
    return sum(n_bytes - tensor.n_bytes for tensor, n_bytes in _interleaved(file))


def _interleaved(file: GgufFile) -> Iterator[tuple[TensorInfo, int]]:
    """Yield the tensors whose rows are interleaved, with the bytes that they take then."""
    sizes = {name: native.selfspec_interleaved_bytes(i) for i, (name, *_) in tensor_types().items()}
    for tensor in file.tensors:
        has_groups = len(tensor.shape) > 1 and tensor.shape[1] % ROWS == 0
        if sizes[tensor.type] and has_groups and tensor.name != TOKEN_EMBEDDING:
            yield tensor, tensor.n_elements * sizes[tensor.type] // UNIT


@contextmanager
def may_grow(file: GgufFile, load: str, n_free: int | None) -> Iterator[int]:
    """Let the weights of a file that this thread loads meanwhile be unpacked if there is room for
    them and they are not to be mapped. Yields how many bytes more they take."""
    more = growth(file)
    may = more > 0 and load != MAP and _has_room(file.n_bytes + more, n_free)
    native.selfspec_let_weights_grow(may)
    try:
        yield more if may else 0
    finally:
        native.selfspec_let_weights_grow(False)


def _has_room(n_bytes: int, n_free: int | None) -> bool:
    return n_free is not None and n_free >= N_FREE * n_bytes
