"""Calls of the library with Python types: facts of a model, its vocabulary, quantization.

Handles are addresses; the caller keeps them valid.
"""

from __future__ import annotations

import ctypes

from ...errors import ArgumentError
from .load import llama, native, require_not_forked


def state_bytes(model: int) -> int:
    """Return the bytes of a sequence's recurrent state; 0 for a model without one."""
    return int(native.selfspec_model_state_bytes(model))


def replays(model: int) -> bool:
    """Return whether recurrent states of the model can be computed again after a pass."""
    return bool(native.selfspec_model_replays(model))


def meta(model: int, key: str) -> str | None:
    """Return a metadata value of the model as text, None when it has no such key."""
    size = 4096
    while True:
        buffer = ctypes.create_string_buffer(size)
        n = llama.llama_model_meta_val_str(model, key.encode(), buffer, size)
        if n < size:
            return None if n < 0 else buffer.value.decode(errors="replace")
        size = n + 1


def tokenize(vocab: int, text: bytes, *, add_special: bool, parse_special: bool) -> list[int]:
    """Return the token ids of UTF-8 text."""
    n_max = len(text) + 8
    while True:
        ids = (ctypes.c_int32 * n_max)()
        n = llama.llama_tokenize(vocab, text, len(text), ids, n_max, add_special, parse_special)
        if n >= 0:
            return ids[:n]
        if -n <= n_max:
            raise ArgumentError("the model's vocabulary cannot tokenize this text")
        n_max = -n


def token_to_piece(vocab: int, token: int) -> bytes:
    """Return the bytes of one token, which may end or begin inside a UTF-8 character."""
    size = 64
    while True:
        buffer = ctypes.create_string_buffer(size)
        n = llama.llama_token_to_piece(vocab, token, buffer, size, 0, False)
        if n >= 0:
            return buffer.raw[:n]
        size = -n


def pieces(vocab: int, n: int) -> list[bytes]:
    """Return the bytes of the first n tokens, in a quarter of the time of n calls of
    token_to_piece()."""
    size = 64
    buffer = ctypes.create_string_buffer(size)
    piece, found = llama.llama_token_to_piece, []
    for token in range(n):
        n_bytes = piece(vocab, token, buffer, size, 0, False)
        found.append(token_to_piece(vocab, token) if n_bytes < 0 else buffer.raw[:n_bytes])
    return found


def quantize(
    source: bytes, target: bytes, file_type: int, n_threads: int, pure: bool = False
) -> int:
    """Call ``llama_model_quantize`` with these parameters and its defaults for the others. Returns
    its status, 0 for success; the log has the reason for any other."""
    require_not_forked()
    params = llama.llama_model_quantize_default_params()
    params.ftype = file_type
    params.nthread = n_threads
    params.pure = pure
    return int(llama.llama_model_quantize(source, target, ctypes.byref(params)))
