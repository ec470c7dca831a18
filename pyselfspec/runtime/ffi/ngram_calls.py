"""Calls of the library's indexes of n-grams with Python types.

Statuses become errors here. Handles are addresses; the caller keeps them valid. Tokens are arrays
of type code "i", counts of type code "d".
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence

from ...errors import ArgumentError, out_of_memory
from .calls import BAD_ARGUMENT
from .load import native


def _checked(status: int) -> int:
    if status == BAD_ARGUMENT:
        raise ArgumentError("an index of n-grams does not take these arguments")
    if status < 0:
        raise out_of_memory()
    return status


def init(lengths: Sequence[int], first: int, n_most: int) -> int:
    """Call ``selfspec_ngrams_init``, with arguments that are valid. Raises DecodeError without
    memory."""
    values = (ctypes.c_int32 * len(lengths))(*lengths)
    handle: int | None = native.selfspec_ngrams_init(values, len(values), first, n_most)
    if not handle:
        raise out_of_memory()
    return handle


def free(ngrams: int) -> None:
    """Free an index."""
    native.selfspec_ngrams_free(ngrams)


def extend(ngrams: int, tokens: array[int]) -> None:
    """Append tokens to the text of an index. Raises DecodeError without memory."""
    _checked(native.selfspec_ngrams_extend(ngrams, *tokens.buffer_info()))


def chain(
    indexes: tuple[int, int | None, int | None],
    end: array[int],
    n_new: int,
    counts: array[float],
    other_counts: array[float],
    forget: float,
    chance_min: float,
    n_max: int,
) -> tuple[list[int], list[float]]:
    """Call ``selfspec_ngrams_chain``. Returns its tokens and their chances."""
    tokens, chances = (ctypes.c_int32 * n_max)(), (ctypes.c_double * n_max)()
    text = (*end.buffer_info(), n_new)
    learned = counts.buffer_info()[0], other_counts.buffer_info()[0], forget
    results = chance_min, n_max, tokens, chances
    n = _checked(native.selfspec_ngrams_chain(*indexes, *text, *learned, *results))
    return tokens[:n], chances[:n]


def others(ngrams: int, end: array[int], token: int, n_max: int) -> list[int]:
    """Call ``selfspec_ngrams_others``. Returns its array, flat."""
    found = (ctypes.c_int32 * (3 * n_max))()
    n = _checked(native.selfspec_ngrams_others(ngrams, *end.buffer_info(), token, n_max, found))
    return found[: 3 * n]
