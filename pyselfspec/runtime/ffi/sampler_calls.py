"""Calls of the library's samplers with Python types.

Statuses become errors here. Handles are addresses; the caller keeps them valid.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ArgumentError, DecodeError
from .calls import BAD_ARGUMENT, NO_TOKEN, result_of
from .load import llama, native

_LIMIT = -5  # the grammar follows too many parses at once

# struct llama_token_data
CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


def sample(session: int, sampler: int, row: int, n_kept: int = 0) -> int:
    """Draw a token id with a sampler chain from a row, and let the chain accept it.

    n_kept: the chain begins by leaving out all but so many of the most likely tokens; 0: it may
        need all of them.
    """
    token = int(native.selfspec_sample(session, sampler, row, n_kept))
    if token == _LIMIT:
        raise _too_ambiguous()
    return result_of(session, token)


def sample_logits(sampler: int, logits: NDArray[np.float32], n_kept: int = 0) -> int:
    """Draw a token id with a sampler chain from logits, float32 [n_vocab], and let the chain accept
    it. n_kept: see `sample`."""
    logits = np.ascontiguousarray(logits, np.float32)
    token = int(native.selfspec_sample_logits(sampler, logits.ctypes.data, len(logits), n_kept))
    if token == NO_TOKEN:
        raise no_token_left()
    if token == _LIMIT:
        raise _too_ambiguous()
    if token < 0:
        raise not_numbers()
    return token


def accept(chain: int, token: int) -> None:
    """Let a sampler chain accept a token. Raises ArgumentError, and changes nothing, where its
    grammar does not allow the token."""
    status = native.selfspec_accept(chain, token)
    if status == BAD_ARGUMENT:
        raise ArgumentError(f"the grammar does not let token {token} follow")
    _require_sampled(status)


def apply(samplers: Sequence[int], candidates: NDArray[np.void]) -> NDArray[np.void]:
    """Apply samplers to candidates of dtype CANDIDATE, which they may reorder and change in place.
    Returns the candidates that are left, a view."""
    data = candidates.ctypes.data_as(ctypes.POINTER(llama.llama_token_data))
    array = llama.llama_token_data_array(data=data, size=len(candidates), selected=-1, sorted=False)
    for sampler in samplers:
        _require_sampled(native.selfspec_apply(sampler, ctypes.addressof(array)))
    return candidates[: array.size]


def _require_sampled(status: int) -> None:
    if status == _LIMIT:
        raise _too_ambiguous()
    if status:
        raise DecodeError("the sampler failed; there may not be enough memory")


def _too_ambiguous() -> ArgumentError:
    return ArgumentError(
        "the grammar is too ambiguous to follow: it allows too many parses of the text; write it "
        "with fewer repetitions inside repetitions"
    )


def no_token_left() -> ArgumentError:
    """Return the error for candidates that are all ruled out."""
    return ArgumentError("no token is left to draw: the grammar and filters rule out all")


def not_numbers() -> DecodeError:
    """Return the error for logits without any number."""
    return DecodeError("these logits are not numbers, no token can be drawn from them")


def init_dry(
    vocab: int | None,
    *,
    multiplier: float,
    base: float,
    allowed_length: int,
    last_n: int,
    breakers: Sequence[str],
) -> Any:
    """Return a new DRY sampler. vocab: None without breakers."""
    texts = (ctypes.c_char_p * len(breakers))(*(each.encode() for each in breakers))
    numbers = (multiplier, base, allowed_length, last_n)
    return llama.llama_sampler_init_dry(vocab, *numbers, texts, len(breakers))


def init_grammar(vocab: int, text: str, n_candidates: int, gap: float) -> Any:
    """Return a sampler that rules out tokens that a grammar does not allow, and keeps the
    n_candidates most likely of the others (0: all) whose logits are at most ``gap`` below the best.

    None for an invalid grammar; the log has the reason.
    """
    sampler = native.selfspec_sampler_init_grammar(vocab, text.encode(), n_candidates, gap)
    return sampler and ctypes.cast(sampler, llama.llama_sampler_p_ctypes)  # as stock bindings do


def sampler_name(sampler: int) -> str:
    """Return llama.cpp's name for a kind of sampler."""
    return str(llama.llama_sampler_name(sampler).decode())
