"""Check a saved copy of a sequence before llama.cpp reads it: its cells have to be those of its
tokens. Pure.

llama.cpp takes any position, even twice or below 0, and ends the process for a recurrent state in
two cells. Copies from files are made by whoever can write there.

A copy begins with a number and a sequence id. Then comes a section for each part of the memory: a
K/V cache has rows of cells, then K and V of all layers; a recurrent state has one cell.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

_N_START = 8  # bytes of the number and the sequence id
_N_WORDS = (3, 6)  # of a cell's row: position, number of ids, [two positions and a token,] id
_DSV4 = struct.pack("<II", 0x34565344, 1)  # how copies of DeepSeek V4 begin
_N_DSV4 = 12
_N_LAYERS_MAX = 1024
_N_STREAMS_MAX = 256
_TOO_LONG = 1 << 62

Bytes = NDArray[np.uint8]


def is_sound(state: Bytes, n: int, *, has_states: bool, has_window: bool) -> bool:
    """Return whether a copy, uint8 [n_bytes], holds positions 0 to n - 1, each once; of a sliding
    window the last ones; and a recurrent state after position n - 1 in one cell, if the model has
    states."""
    data = np.ascontiguousarray(state).data
    at = _N_START
    if bytes(data[at : at + len(_DSV4)]) == _DSV4:
        return _is_first_sound(data, at + _N_DSV4, n)
    return _follow(data, at, n, has_states=has_states, has_window=has_window)


def _is_first_sound(data: memoryview, at: int, n: int) -> bool:
    """Return whether the first section is sound. llama.cpp checks the others of this memory, which
    has a stream of cells for each sequence; all but one are empty."""
    n_streams = _word(data, at)
    starts = (at + 4 * i for i in range(1, min(n_streams, _N_STREAMS_MAX) + 1))
    first = next((start for start in starts if _word(data, start)), len(data))
    return any(_are_last(positions, n, True) for positions, _ in _cells(data, first))


def _follow(data: memoryview, at: int, n: int, *, has_states: bool, has_window: bool) -> bool:
    """Return whether sound sections begin here and end with the copy."""
    if has_states:
        if _is_state(data, at, n):
            return True  # llama.cpp compares the rest with the sizes of its own
    elif at == len(data):
        return True
    if _word(data, at) != 1:  # streams
        return False
    for positions, start in _cells(data, at + 4):
        if not _are_last(positions, n, has_window):
            continue
        for end in _ends(data, start, len(positions)):
            if _follow(data, end, n, has_states=has_states, has_window=has_window):
                return True
    return False


def _word(data: memoryview, at: int) -> int:
    return int.from_bytes(data[at : at + 4], "little") if at + 4 <= len(data) else -1


def _is_state(data: memoryview, at: int, n: int) -> bool:
    """Return whether a recurrent state begins here: one cell at position n - 1, without ids."""
    n_layers = _word(data, at + 16)
    return [_word(data, at + i) for i in (0, 4, 8, 12)] == [
        1,
        n - 1,
        0,
        0,
    ] and 1 <= n_layers <= _N_LAYERS_MAX


def _cells(data: memoryview, at: int) -> Iterator[tuple[NDArray[np.int32], int]]:
    """Yield the positions of the cells whose number may be here, and where their layers begin."""
    n_cells = _word(data, at)
    for n_words in _N_WORDS:
        start, end = at + 4, at + 4 + 4 * n_words * n_cells
        if n_cells < 1 or end > len(data):
            continue
        rows = np.frombuffer(data[start:end], "<i4").reshape(n_cells, n_words)
        if (rows[:, 1] == 1).all():
            yield rows[:, 0], end


def _are_last(positions: NDArray[np.int32], n: int, has_window: bool) -> bool:
    """Return whether these are the last of n positions, in any order; all without a window."""
    k = len(positions)
    if k > n or (k < n and not has_window):
        return False
    return bool(np.array_equal(np.sort(positions), np.arange(n - k, n)))


def _ends(data: memoryview, at: int, n_cells: int) -> Iterator[int]:
    """Yield where the layers of a K/V cache may end: those of some have no V."""
    is_transposed, n_layers = _word(data, at), _word(data, at + 4)
    if is_transposed not in (0, 1) or not n_layers <= _N_LAYERS_MAX:
        return
    at += 8
    for _ in range(n_layers):
        at = _after_rows(data, at, n_cells)
    if at <= len(data):
        yield at
        for _ in range(n_layers):
            at = (_after_columns if is_transposed else _after_rows)(data, at, n_cells)
        if at <= len(data):
            yield at


def _after_rows(data: memoryview, at: int, n_cells: int) -> int:
    """Return where the rows of a layer end: a type, the bytes of a row, the rows."""
    if at + 12 > len(data):
        return _TOO_LONG
    return at + 12 + n_cells * int.from_bytes(data[at + 4 : at + 12], "little")


def _after_columns(data: memoryview, at: int, n_cells: int) -> int:
    """Return where the columns of a layer end: a type, the bytes of a value, columns, values."""
    if at + 12 > len(data):
        return _TOO_LONG
    return at + 12 + n_cells * _word(data, at + 4) * _word(data, at + 8)
