"""Chooses how a model's weights are loaded: copied into RAM or mapped from the file (mmap), and
whether they may take more memory than in the file.

A pass over one token reads every weight once. Linux gives pages of 2 MB to a copy and pages of 4 kB
to a mapped file, whose addresses take longer to translate; see native/memory. A copy takes longer
to load, and processes that run the same model do not share it.

Weights that are indices of tables (IQ2, IQ3) are multiplied two to four times as fast when they are
unpacked to four bits each; see native/kernels/columns_nibbles.cpp.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import ArgumentError
from ..gguf.file import GgufFile
from ..gguf.header import tensor_types
from ..util import memory
from .ffi.load import native

AUTO, COPY, MAP = "auto", "copy", "map"
LOADS = (AUTO, COPY, MAP)
N_FREE = 2  # sizes of the weights that must be free before they are copied, or grow
MODES = {COPY: 0, MAP: 1, AUTO: -1}  # numbers of enum llama_load_mode
UNIT, ROWS = 256, 8  # values of a row, and rows, that are unpacked together


def require(load: str) -> None:
    """Raise ArgumentError for a value that is none of LOADS."""
    if load not in LOADS:
        raise ArgumentError(f"load is one of {', '.join(LOADS)}, got {load!r}")


def chosen(n_bytes: int, n_free: int | None) -> str:
    """Return COPY or MAP for a file of n_bytes bytes that the CPU computes with.

    n_free: bytes of free memory, None where unknown.
    """
    return COPY if _has_room(n_bytes, n_free) and memory.has_huge_pages() else MAP


def growth(file: GgufFile) -> int:
    """Return how many bytes more than in the file the weights take when all types are unpacked that
    this CPU then multiplies faster."""
    grown = {name: native.selfspec_grown_bytes(i) for i, (name, *_) in tensor_types().items()}
    return sum(
        tensor.n_elements // UNIT * grown[tensor.type] - tensor.n_bytes
        for tensor in file.tensors
        if grown[tensor.type] and len(tensor.shape) > 1 and tensor.shape[1] % ROWS == 0
    )


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
