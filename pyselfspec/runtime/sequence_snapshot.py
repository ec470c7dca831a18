"""Sequences saved outside the context: tokens with their K/V and recurrent states, as bytes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from . import state_bytes
from .checkpoints import Checkpoint
from .context import Context
from .ffi import calls
from .ffi.load import llama
from .kv import KVSequence
from .pictures import is_text


@dataclass(frozen=True, eq=False, slots=True)
class SavedSequence:
    """A copy of a sequence. tokens: int32 [n_tokens]. state: uint8 [n_bytes], as llama.cpp writes
    it. can_cut: whether any number of its last tokens can be removed. checkpoints: of shorter
    beginnings, for memories that cannot remove tokens."""

    tokens: NDArray[np.int32]
    state: NDArray[np.uint8]
    can_cut: bool
    checkpoints: tuple[Checkpoint, ...] = ()

    @property
    def n_bytes(self) -> int:
        """The bytes of all arrays."""
        kept = sum(each.state.nbytes for each in self.checkpoints)
        return self.tokens.nbytes + self.state.nbytes + kept

    def n_usable(self, prompt: NDArray[np.int32]) -> int:
        """Return how many tokens of a prompt, int32 [n_prompt], a text could take from here. The
        last one of the prompt is always evaluated."""
        n = min(len(self.tokens), len(prompt) - 1)
        differ = np.flatnonzero(self.tokens[:n] != prompt[:n])
        n = int(differ[0]) if len(differ) else n
        if self.can_cut or n == len(self.tokens):
            return n
        return max((each.n_tokens for each in self.checkpoints if each.n_tokens <= n), default=0)


def can_save(seq: KVSequence) -> bool:
    """Return whether a sequence has tokens, and the full model computed their K/V alone: without
    LoRA adapters, and not from pictures."""
    tokens = seq.tokens
    is_whole = 0 < len(tokens) == seq.n_past
    return is_whole and not seq.adapters and all(map(is_text, tokens))


def save_sequence(seq: KVSequence) -> SavedSequence | None:
    """Return a copy of a sequence; None for one that cannot be saved.

    Raises DecodeError where a device is lost.
    """
    context, tokens = seq.context, seq.tokens
    if not can_save(seq):
        return None
    with context.lock():
        calls.require_devices(context.session)
        state = calls.save_sequence(context.handle, seq.seq_id)
        if state is None:
            return None
        kept = context.checkpoints.of(seq.seq_id)
    can_cut = context.abilities.can_rollback and not _has_window(context)
    return SavedSequence(np.array(tokens, np.int32), state, can_cut, kept)


def _has_window(context: Context) -> bool:
    """Return whether attention slides over a window, of which llama.cpp saves the last one only.
    Some architectures have one that their files do not name."""
    return bool(llama.llama_model_n_swa(context.model.handle) > 0)


def restore_sequence(seq: KVSequence, saved: SavedSequence) -> bool:
    """Replace the content of a sequence by a copy that was saved from a context of the same kind.
    Return False, with the sequence empty, where that fails, the copy's cells are not those of its
    tokens, or they are out of order.

    Raises DecodeError where a device is lost.
    """
    context = seq.context
    with context.lock():
        seq.drop()
        seq.occupy()
        calls.require_devices(context.session)
        if not _is_sound(context, saved):
            return False
        seq.reserve(len(saved.tokens))
        done = calls.restore_sequence(context.handle, seq.seq_id, saved.state)
        done = done and seq.n_past == len(saved.tokens)
        if done and (seq.in_order or not context.abilities.is_exact_beside_others):
            seq.set_tokens(saved.tokens.tolist())
            context.sequence_table.adapters[seq.seq_id] = ()
            for each in saved.checkpoints:
                context.checkpoints.add(seq.seq_id, each)
            return True
        seq.drop()
        seq.occupy()
    return False


def _is_sound(context: Context, saved: SavedSequence) -> bool:
    """Return whether a copy and its checkpoints hold what they say, see state_bytes."""
    has_states, has_window = context.model.state_bytes > 0, _has_window(context)
    copies = [(saved.state, len(saved.tokens))]
    copies += [(each.state, each.n_tokens) for each in saved.checkpoints]
    return all(
        state_bytes.is_sound(state, n, has_states=has_states, has_window=has_window)
        for state, n in copies
    )
