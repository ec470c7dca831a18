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

from ...errors import ArgumentError, DecodeError, LibraryError, UnsupportedError
from ...util import bindings, build, libraries
from .load import is_of_lost_device, known_cause, llama, loaded

_ERROR = 4  # GGML_LOG_LEVEL_ERROR
_last_error = ""


class Chunk(NamedTuple):
    """A part of a picture's prompt: ids of text, or states of rows, float32 [n_rows, n_values], and
    with M-RoPE the row and column of each, int32 [n_rows, 2]."""

    tokens: tuple[int, ...]
    states: NDArray[np.float32] | None
    is_causal: bool
    grid: NDArray[np.int32] | None = None


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


def free_projector(projector: Any) -> None:
    """Free a projector, but not on a lost device: that would end the process."""
    if not is_of_lost_device(_last_error):
        mtmd().mtmd_free(projector)


def read_picture(projector: Any, data: bytes, n_values: int) -> list[Chunk]:
    """Return the parts of a picture's prompt, with what the model has around pictures.

    data: a file. n_values: width of the model's input. Raises ArgumentError for a broken file,
    DecodeError where libmtmd fails, UnsupportedError for positions that Chunk cannot hold.
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
        return [_chunk(projector, chunk, n_values) for chunk in each]


def _chunk(projector: Any, chunk: Any, n_values: int) -> Chunk:
    library = mtmd()
    if library.mtmd_input_chunk_get_type(chunk) == library.MTMD_INPUT_CHUNK_TYPE_TEXT:
        n = ctypes.c_size_t()
        ids = library.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(n))
        return Chunk(tuple(ids[: n.value]), None, True)
    if library.mtmd_encode_chunk(projector, chunk):
        what = f"the picture cannot be encoded: {_last_error or 'no reason given'}"
        raise known_cause(_last_error) or DecodeError(what)
    n_rows = library.mtmd_input_chunk_get_n_tokens(chunk)
    values = np.ctypeslib.as_array(library.mtmd_get_output_embd(projector), (n_rows, n_values))
    is_causal = not library.mtmd_decode_use_non_causal(projector, chunk)
    grid = _grid(chunk, n_rows) if library.mtmd_decode_use_mrope(projector) else None
    return Chunk((), np.array(values, np.float32), is_causal, grid)


def _grid(chunk: Any, n_rows: int) -> NDArray[np.int32]:
    """The row and column of each row of a chunk in the picture."""
    library = mtmd()
    tokens = library.mtmd_input_chunk_get_tokens_image(chunk)
    each = [library.mtmd_image_tokens_get_decoder_pos(tokens, 0, i) for i in range(n_rows)]
    grid = np.array([(at.y, at.x) for at in each], np.int32)
    if any(at.t or at.z for at in each) or library.mtmd_input_chunk_get_n_pos(chunk) != 1 + max(
        grid[-1]
    ):
        raise UnsupportedError(
            "pictures with more positions than a row and a column (as HunyuanVL's) are not "
            "supported"
        )
    return grid
