"""Calls of the library with Python types: passes, sequences, facts of a session.

Statuses become errors here. Handles are addresses; the caller keeps them valid.
"""

from __future__ import annotations

import ctypes
import signal
import threading
from _signal import getsignal  # type: ignore[import-not-found]  # signal's own takes 5 us
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import (
    ArgumentError,
    ContextFullError,
    DecodeError,
    SelfSpecError,
    UnsupportedError,
    device_lost,
)
from .load import is_of_lost_device, known_cause, llama, native, require_not_forked
from .prototypes import DecodeArgs, PictureRowsArgs

MEMORY_ROLLBACK = 1
MEMORY_IN_PLACE = 2  # for tools/arch_rows.py
MEMORY_SCATTER = 4
MEMORY_STATES = 8
MEMORY_CAUSAL = 16
HEADS = {"logits": 0, "best": 1}

_BYTES = ctypes.POINTER(ctypes.c_uint8)
BAD_ARGUMENT = -1
NO_TOKEN = -4
_STATUS_ERRORS: dict[int, type[SelfSpecError]] = {
    1: ContextFullError,
    BAD_ARGUMENT: ArgumentError,
    NO_TOKEN: ArgumentError,
    -10: UnsupportedError,
}


def _check(session: int, status: int) -> int:
    if status == 0:
        return 0
    text = _error(session)
    raise known_cause(text) or _STATUS_ERRORS.get(status, DecodeError)(text)


def _error(session: int) -> str:
    return str(native.selfspec_error(session).decode(errors="replace"))


def _int32s(values: Sequence[int]) -> Any:
    return (ctypes.c_int32 * len(values))(*values)


def decode(
    session: int,
    *,
    tokens: Sequence[int] | None,
    seq_ids: Sequence[int],
    pos: Sequence[int],
    outputs: bytes,
    hidden: NDArray[np.float32] | None,
    hidden_out: NDArray[np.float32] | None,
    head: str,
    mask: bytes | None = None,
    hidden_at: Sequence[int] = (),
    among: array[int] | None = None,
    n_best: int = 0,
    in_place: bool = False,
    shared: Sequence[Sequence[int]] = (),
    weights: int | None = None,
    nextn: int | None = None,
) -> None:
    """Call ``selfspec_decode`` with C-contiguous arrays. Raises the error of the status.

    among: token ids in ascending order, of type code "i"; None for all tokens.
    n_best: how many of the most likely tokens' logits are wanted; 0: all.
    shared: the further sequences of each row; empty when every row has one sequence.
    nextn: the block of a draft head, for ``selfspec_draft_decode`` instead.
    """
    _begin_pass(session)
    n_seq_ids = None
    if shared:
        n_seq_ids = _int32s([1 + len(others) for others in shared])
        seq_ids = [i for one, more in zip(seq_ids, shared, strict=True) for i in (one, *more)]
    address, n_among = (None, 0) if among is None else among.buffer_info()
    args = DecodeArgs(  # keeps its arrays alive, but not those of numpy
        n_tokens=len(pos),
        tokens=None if tokens is None else _int32s(tokens),
        seq_ids=_int32s(seq_ids),
        n_seq_ids=n_seq_ids,
        pos=_int32s(pos),
        outputs=outputs,
        hidden=None if hidden is None else hidden.ctypes.data,
        mask=mask,
        n_layer=len(mask or ()),
        hidden_at=_int32s(hidden_at) if hidden_at else None,
        n_hidden_at=len(hidden_at),
        hidden_out=None if hidden_out is None else hidden_out.ctypes.data,
        head=_head(head),
        among=address,
        n_among=n_among,
        n_best=n_best,
        in_place=in_place,
        weights=weights,
        nextn=nextn or 0,
    )
    run = native.selfspec_decode if nextn is None else native.selfspec_draft_decode
    _check(session, run(session, args))


def _head(head: str) -> int:
    if head not in HEADS:
        raise ArgumentError(f"head is one of {', '.join(HEADS)}, got {head!r}")
    return HEADS[head]


def _begin_pass(session: int) -> None:
    """Raise LibraryError in a forked process, and let Ctrl-C stop the pass when Python's handler
    would raise KeyboardInterrupt."""
    require_not_forked()
    is_main = threading.get_ident() == threading.main_thread().ident
    raises = is_main and getsignal(signal.SIGINT) is signal.default_int_handler
    native.selfspec_heed_interrupts(session, raises)


def draft_fuse(session: int, features: NDArray[np.float32], states: NDArray[np.float32]) -> None:
    """Call ``selfspec_draft_fuse`` with C-contiguous arrays; the result is written to ``states``.
    Raises the error of the status."""
    _begin_pass(session)
    n = len(features)
    _check(
        session, native.selfspec_draft_fuse(session, n, features.ctypes.data, states.ctypes.data)
    )


def draft_score(session: int, row: int, previous: int) -> None:
    """Call ``selfspec_draft_score``. Raises the error of the status."""
    _check(session, native.selfspec_draft_score(session, row, previous))


def logits(session: int, row: int, n_vocab: int) -> NDArray[np.float32]:
    """Return a copy of the logits after a row with an output, float32 [n_vocab]; -inf for tokens
    outside the list of the pass."""
    found = np.empty(n_vocab, np.float32)
    _check(session, native.selfspec_logits(session, row, found.ctypes.data))
    return found


def argmax(session: int, row: int) -> tuple[int, float]:
    """Return the most likely token after a row with an output, and its probability, 0 to 1."""
    p = ctypes.c_float()
    return result_of(session, native.selfspec_argmax(session, row, p)), p.value


def best(session: int, row: int) -> int:
    """Return the most likely token after a row with an output; without its probability the logits
    are read only once."""
    return result_of(session, native.selfspec_argmax(session, row, None))


def wait(session: int) -> bool:
    """Wait until all devices of the context have computed what was asked of them. Reading a result,
    even one that is not there, does so. Return whether there was one."""
    return bool(native.selfspec_argmax(session, -1, None) >= 0)


def is_lost(session: int) -> bool:
    """Return whether a device of the context is lost."""
    return not wait(session) and is_of_lost_device(_error(session))


def require_devices(session: int) -> None:
    """Raise DecodeError where a device of the context is lost, before a call that would end the
    process then."""
    if is_lost(session):
        raise device_lost(_error(session))


def decode_picture(
    session: int,
    states: NDArray[np.float32],
    seq_id: int,
    pos: int,
    *,
    grid: NDArray[np.int32] | None,
    n_before: int,
    is_causal: bool,
) -> None:
    """Run a pass of the whole model over rows of a picture, without outputs.

    states: entering the first block, [n_rows, n_values]. grid: [n_rows, 2] or None. n_before: rows
    of the picture that the sequence holds. Raises ContextFullError without free cells, DecodeError
    where llama.cpp fails or is stopped.
    """
    _begin_pass(session)
    values = np.ascontiguousarray(states, np.float32)
    places = None if grid is None else np.ascontiguousarray(grid, np.int32)
    rows = PictureRowsArgs(
        n=len(values),
        states=values.ctypes.data,
        grid=None if places is None else places.ctypes.data,
        n_before=n_before,
        seq_id=seq_id,
        pos=pos,
        is_causal=is_causal,
    )
    _check(session, native.selfspec_decode_states(session, rows))


def embed(session: int, tokens: Sequence[int]) -> None:
    """Compute a text in a context for embeddings.

    Raises DecodeError where llama.cpp fails or is stopped.
    """
    _begin_pass(session)
    ids = _int32s(tokens)
    _check(session, native.selfspec_embed(session, len(ids), ctypes.addressof(ids)))


def mask_support(session: int, n_layer: int) -> bytes:
    """Return for each block the parts that a mask may skip, as bits: 1 attention, 2
    feed-forward."""
    out = ctypes.create_string_buffer(n_layer)
    _check(session, native.selfspec_mask_support(session, out, n_layer))
    return out.raw


def result_of(session: int, result: int) -> int:
    """Return a result of which negative values are statuses. Raises the error of such a status."""
    if result < 0:
        _check(session, result)
    return result


def session_memory(session: int) -> int:
    """Return what the context's memory supports, as the bits MEMORY_*."""
    return result_of(session, native.selfspec_memory(session))


def n_moves(session: int) -> int:
    """Return how often K/V cells have been moved."""
    return result_of(session, native.selfspec_n_moves(session))


def exact_width(session: int) -> int:
    """Return the most rows of a pass whose results do not depend on each other; 0 for no
    promise."""
    return result_of(session, native.selfspec_exact_width(session))


def exact_prompts(session: int) -> bool:
    """Return whether a prompt has the same bits however it is split."""
    return bool(result_of(session, native.selfspec_exact_prompts(session)))


def can_enter(session: int, block: int) -> bool:
    """Return whether the states entering a block can be copied out and put in again, with its K/V
    rewritten."""
    return bool(result_of(session, native.selfspec_can_enter(session, block)))


def can_shorten(session: int) -> bool:
    """Return whether the most likely token can be searched for among a part of the vocabulary."""
    return bool(result_of(session, native.selfspec_can_shorten(session)))


def can_keep(session: int, seq_id: int, n: int) -> int:
    """Return how many tokens, at most n, a sequence can be rolled back to."""
    return result_of(session, native.selfspec_can_keep(session, seq_id, n))


def keep(session: int, seq_id: int, n: int) -> None:
    """Remove the tokens of a sequence from position n on."""
    _check(session, native.selfspec_keep(session, seq_id, n))


def max_rollback(session: int) -> int:
    """Return the most tokens that can be removed directly after a pass; INT32_MAX where any tail
    can be."""
    return result_of(session, native.selfspec_max_rollback(session))


def replay_for(session: int, n_seq: int) -> None:
    """Let removals of n_seq sequences compute their recurrent states again, instead of reading
    snapshots. The context must have been made with twice as many sequences."""
    _check(session, native.selfspec_replay_for(session, n_seq))


def fork(session: int, seq_id: int, copy: int) -> None:
    """Let an empty sequence hold the tokens of another one."""
    _check(session, native.selfspec_fork(session, seq_id, copy))


def save_state(session: int, seq_id: int) -> NDArray[np.uint8]:
    """Return a copy of the recurrent state of a sequence, uint8 [n_bytes]."""
    state = np.empty(result_of(session, native.selfspec_state_size(session, seq_id)), np.uint8)
    _check(session, native.selfspec_save_state(session, seq_id, state.ctypes.data, state.nbytes))
    return state


def load_state(session: int, seq_id: int, state: NDArray[np.uint8], n: int) -> None:
    """Go back to the recurrent state that a sequence had with its first n tokens, and remove the
    others."""
    _check(session, native.selfspec_load_state(session, seq_id, state.ctypes.data, state.nbytes, n))


def save_sequence(context: int, seq_id: int) -> NDArray[np.uint8] | None:
    """Return a copy of a sequence with its K/V, uint8 [n_bytes]; None if it cannot be made."""
    state = np.empty(int(llama.llama_state_seq_get_size(context, seq_id)), np.uint8)
    address = state.ctypes.data_as(_BYTES)
    n_bytes = llama.llama_state_seq_get_data(context, address, state.nbytes, seq_id)
    return state if n_bytes == state.nbytes else None


def restore_sequence(context: int, seq_id: int, state: NDArray[np.uint8]) -> bool:
    """Fill an empty sequence with a copy. Return False if it does not fit."""
    state = np.ascontiguousarray(state)
    address = state.ctypes.data_as(_BYTES)
    n_bytes = llama.llama_state_seq_set_data(context, address, state.nbytes, seq_id)
    return bool(n_bytes == state.nbytes)


def reserve(session: int, seq_id: int, n: int) -> None:
    """Reserve room for n tokens of a sequence; n < 0 for an unknown number."""
    _check(session, native.selfspec_reserve(session, seq_id, n))


def in_order(session: int, seq_id: int) -> bool:
    """Return whether the cells of a sequence ascend with its positions."""
    return bool(result_of(session, native.selfspec_in_order(session, seq_id)))
