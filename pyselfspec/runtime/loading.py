"""Chooses between loading a model's weights into RAM and mapping its file (mmap).

A pass over one token reads every weight once. Linux gives pages of 2 MB to a copy and pages of 4 kB
to a mapped file, whose addresses take longer to translate; see native/memory. A copy takes longer
to load, and processes that run the same model do not share it.
"""

from __future__ import annotations

from ..errors import ArgumentError
from ..util import memory

AUTO, COPY, MAP = "auto", "copy", "map"
LOADS = (AUTO, COPY, MAP)
N_FREE = 2  # sizes of the file that must be free before it is copied
MODES = {COPY: 0, MAP: 1, AUTO: -1}  # numbers of enum llama_load_mode


def require(load: str) -> None:
    """Raise ArgumentError for a value that is none of LOADS."""
    if load not in LOADS:
        raise ArgumentError(f"load is one of {', '.join(LOADS)}, got {load!r}")


def chosen(n_bytes: int, n_free: int | None) -> str:
    """Return COPY or MAP for a file of n_bytes bytes that the CPU computes with.

    n_free: bytes of free memory, None where unknown.
    """
    has_room = n_free is not None and n_free >= N_FREE * n_bytes
    return COPY if has_room and memory.has_huge_pages() else MAP
