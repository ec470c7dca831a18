"""Assistants for Gemma 4, as llama.cpp's converter writes them: a few blocks that attend to K and V
of the model.

A row of an assistant is a token and the state that led to it, and leaves the next state. Its blocks
with a sliding window read K and V of the last block of the model that has one, the others those of
its last block.
"""

from __future__ import annotations

from ...errors import ArgumentError, ModelFileError
from ..file import GgufFile
from ..header import BROKEN, Header, read_header
from .head_file import (
    HeadFile,
    HeadFormat,
    require_states,
    require_types,
    require_vocabulary,
    value,
)

ARCHITECTURE = "gemma4-assistant"
TARGETS = frozenset({"gemma4"})
KIND = HeadFormat(shares_cells=True)

WINDOWS = "attention.sliding_window_pattern"
# llama.cpp reads these where the file has them, but does nothing with them.
UNUSED = ("masked_embd_centroids.weight", "masked_embd_ordering")


def read(header: Header, file: GgufFile, target: GgufFile) -> HeadFile:
    """Return the checked head. Raises what ``heads.check`` does."""
    windows = _windows(header, file.n_layer)
    if not any(windows):
        raise ModelFileError(f"{ARCHITECTURE}.{WINDOWS} names no block; {BROKEN}")
    require_types(file, *UNUSED)
    if target.architecture not in TARGETS:
        raise ArgumentError(
            f"is an assistant for {' or '.join(TARGETS)}, but {target.path.name} is "
            f"{target.architecture}"
        )
    require_states(value(header, "embedding_length_out"), target)
    require_vocabulary(header, file, target)
    _require_same_cells(header, windows, target, read_header(target.path))
    return HeadFile(
        file,
        KIND,
        (target.n_layer + 1,),
        n_features=target.n_embd,
        n_state=target.n_embd,
        n_bytes_read=sum(t.n_bytes for t in file.tensors if t.name not in UNUSED),
    )


def _windows(header: Header, n_layer: int) -> tuple[bool, ...]:
    """Return for each block whether it has a sliding window."""
    listed = value(header, WINDOWS)
    if not isinstance(listed, tuple):
        raise ModelFileError(f"has no {WINDOWS}, a list of blocks; {BROKEN}")
    given = [bool(each) for each in listed[:n_layer]]
    return (*given, *[False] * (n_layer - len(given)))


def _require_same_cells(
    header: Header, windows: tuple[bool, ...], target: GgufFile, of_target: Header
) -> None:
    """Require that each block expects K and V as its block of the model has them."""
    name = target.path.name
    if target.n_kv_layer < 2 or _windows(of_target, target.n_layer)[-2:] != (True, False):
        raise ArgumentError(
            f"needs a model whose last block but one has a sliding window, and the last one has "
            f"none, unlike {name}"
        )
    for block, has_window in enumerate(windows):
        other = target.n_kv_layer - 1 - has_window  # blocks after these use their K and V
        own, cells = _cells(header, block, has_window), _cells(of_target, other, has_window)
        if own != cells:
            raise ArgumentError(
                f"its block {block} reads K and V with {own[0]} heads of {own[1]} values, but in "
                f"{name} they are {cells[0]} of {cells[1]}"
            )


def _cells(header: Header, block: int, has_window: bool) -> tuple[int, int]:
    """Return the number of K/V heads of a block, and of values of each."""
    counts = value(header, "attention.head_count_kv")
    listed = counts if isinstance(counts, tuple) else (counts,) * (block + 1)
    heads = listed[block] if block < len(listed) else None
    size = value(header, f"attention.key_length{'_swa' if has_window else ''}")
    if not (isinstance(heads, int) and isinstance(size, int)):
        raise ModelFileError(f"does not say how large K and V of block {block} are; {BROKEN}")
    return heads, size
