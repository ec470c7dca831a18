"""Calls of libmtmd, which turns pictures into states that enter a model's first block.

The functions come from llama-cpp-python's ``llama_cpp.mtmd_cpp``, made to load our library
by ``util.bindings``.
"""

from __future__ import annotations

import ctypes
import importlib
import os
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import ArgumentError, DecodeError, LibraryError
from ...util import bindings, build, libraries
from .load import is_of_lost_device, known_cause, llama, loaded

_ERROR = 4  # GGML_LOG_LEVEL_ERROR
_last_error = ""


class Chunk(NamedTuple):
    """A part of a picture's prompt: ids of text, or states of rows, float32 [n_rows, n_embd]."""

    tokens: tuple[int, ...]
    states: NDArray[np.float32] | None
    is_causal: bool


@cache
def mtmd() -> Any:
    """Return ``llama_cpp.mtmd_cpp`` on top of our library. Raises LibraryError where the library
    was built without it."""
    loaded()
    if libraries.find(build.LIB_DIR, "mtmd") is None:
        raise LibraryError(
            "this pyselfspec was built without pictures; build it with -DPYSELFSPEC_PICTURES=ON"
        )
    module = importlib.import_module(bindings.MTMD)
    module.mtmd_helper_log_set(_log(), None)
    return module


@cache
def _log() -> Any:
    """Return the function that takes libmtmd's log, of which it keeps the last error."""

    def take(level: int, text: bytes, _data: object) -> None:
        global _last_error
        if level == _ERROR:
            _last_error = " ".join(text.decode(errors="replace").split())

    return llama.llama_log_callback(take)


def last_error() -> str:
    """Return the last error that libmtmd logged, "" where it logged none."""
    return _last_error


def open_projector(
    path: Path, model: Any, n_threads: int, on_gpu: bool, *, prepares: bool = False
) -> Any:
    """Return the pointer to a projector for a model; None where it failed. prepares: build the
    graph of a picture, too, which takes its memory."""
    global _last_error
    _last_error = ""
    library = mtmd()
    params = library.mtmd_context_params_default()
    params.use_gpu = on_gpu
    params.print_timings = False
    params.n_threads = n_threads
    params.warmup = prepares
    return library.mtmd_init_from_file(os.fsencode(path), model, params)


def sees(projector: Any) -> bool:
    """Return whether a projector reads pictures (others read sounds only)."""
    return bool(mtmd().mtmd_support_vision(projector))


def has_several_positions(projector: Any) -> bool:
    """Return whether the model gives the rows of a picture two or three positions each."""
    return bool(mtmd().mtmd_decode_use_mrope(projector))


def free_projector(projector: Any) -> None:
    """Free a projector, but not on a lost device: that would end the process."""
    if not is_of_lost_device(_last_error):
        mtmd().mtmd_free(projector)


def read_picture(projector: Any, data: bytes, n_embd: int) -> list[Chunk]:
    """Return the parts of a picture's prompt, with what the model has around pictures.

    data: a file. Raises ArgumentError for a broken one, DecodeError where libmtmd fails.
    """
    library = mtmd()
    with ExitStack() as stack:
        buffer = (ctypes.c_uint8 * len(data)).from_buffer_copy(data)
        bitmap = library.mtmd_helper_bitmap_init_from_buf(projector, buffer, len(data), False)
        if not bitmap:
            raise ArgumentError("the picture cannot be decoded; send a whole file")
        stack.callback(library.mtmd_bitmap_free, bitmap)
        chunks = library.mtmd_input_chunks_init()
        stack.callback(library.mtmd_input_chunks_free, chunks)
        marker = library.mtmd_default_marker()
        text = library.mtmd_input_text(marker, len(marker), False, True)
        bitmaps = (library.mtmd_bitmap_p_ctypes * 1)(bitmap)
        if library.mtmd_tokenize(projector, chunks, ctypes.byref(text), bitmaps, 1):
            raise DecodeError(f"the picture cannot be prepared: {_last_error or 'no reason given'}")
        n_chunks = library.mtmd_input_chunks_size(chunks)
        each = [library.mtmd_input_chunks_get(chunks, i) for i in range(n_chunks)]
        return [_chunk(projector, chunk, n_embd) for chunk in each]


def _chunk(projector: Any, chunk: Any, n_embd: int) -> Chunk:
    library = mtmd()
    if library.mtmd_input_chunk_get_type(chunk) == library.MTMD_INPUT_CHUNK_TYPE_TEXT:
        n = ctypes.c_size_t()
        ids = library.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(n))
        return Chunk(tuple(ids[: n.value]), None, True)
    if library.mtmd_encode_chunk(projector, chunk):
        what = f"the picture cannot be encoded: {_last_error or 'no reason given'}"
        raise known_cause(_last_error) or DecodeError(what)
    n_rows = library.mtmd_input_chunk_get_n_tokens(chunk)
    values = np.ctypeslib.as_array(library.mtmd_get_output_embd(projector), (n_rows, n_embd))
    is_causal = not library.mtmd_decode_use_non_causal(projector, chunk)
    return Chunk((), np.array(values, np.float32), is_causal)
