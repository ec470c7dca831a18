"""Sequences in the K/V cache: fork, rollback, drop, and checkpoints of recurrent states.

A context keeps one unified cache. A cell belongs to every sequence that shares its token, so a fork
copies no K/V, only metadata, and a cell is free when no sequence holds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import ArgumentError, UnsupportedError
from .checkpoints import Checkpoint
from .ffi import calls
from .ffi.load import llama, require_not_forked
from .lora import Adapters
from .sequence_table import n_common

if TYPE_CHECKING:
    from .context import Context


class KVSequence:
    """The tokens that a context holds under one sequence id, at positions 0..n_past-1."""

    def __init__(self, context: Context, seq_id: int) -> None:
        if not 0 <= seq_id < context.n_seq_max:
            raise ArgumentError(
                f"sequence id {seq_id} is not allowed, the context has 0 to "
                f"{context.n_seq_max - 1}; give it a larger n_seq_max"
            )
        self.context = context
        self.seq_id = seq_id

    @property
    def _memory(self) -> int:
        memory = llama.llama_get_memory(self.context.handle)
        if not memory:
            raise UnsupportedError(
                f"architecture {self.context.model.file.architecture} keeps no K/V cache; "
                "pyselfspec needs one to generate"
            )
        return int(memory)

    @property
    def n_past(self) -> int:
        """The number of tokens held, which is also the position of the next one."""
        with self.context.lock():
            return int(llama.llama_memory_seq_pos_max(self._memory, self.seq_id)) + 1

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens at the beginning of the sequence whose K/V the full model computed. A pass
        with a mask or in place removes the tokens whose K/V it overwrites; see ``set_tokens``."""
        return tuple(self._tokens)

    @property
    def adapters(self) -> Adapters:
        """The LoRA adapters that the tokens were evaluated with; of an empty sequence, of the last
        tokens that it held."""
        return self.context.sequence_table.adapters[self.seq_id]

    def set_tokens(self, tokens: Sequence[int]) -> None:
        """Record that the sequence holds these tokens, with K/V of the full model.

        Raises ArgumentError where it holds fewer, or the last recorded token differs.
        """
        if len(tokens) > self.n_past:
            raise ArgumentError(
                f"sequence {self.seq_id} holds {self.n_past} tokens, not {len(tokens)}"
            )
        self.context.sequence_table.extend(self.seq_id, tokens)

    def replace_tokens(self, tokens: Sequence[int]) -> None:
        """Record that code outside this package filled the sequence with these tokens, evaluated by
        the full model; earlier records are discarded."""
        self.context.sequence_table.truncate(self.seq_id, 0)
        self.set_tokens(tokens)

    def reserve(self, n_tokens: int | None) -> None:
        """Reserve adjacent cells for this many tokens in all; None ends the reservation. Other
        sequences use reserved cells only when there are no others."""
        with self.context.lock():
            n = -1 if n_tokens is None else min(n_tokens, self.context.n_ctx)
            calls.reserve(self.context.session, self.seq_id, n)

    @property
    def in_order(self) -> bool:
        """Whether the cells of the sequence ascend with its positions. Then its logits do not
        depend on other sequences, bit for bit, within the context's exact width. False only where
        the cache was too full and cells cannot be moved: on a GPU, or without flash attention."""
        with self.context.lock():
            return calls.in_order(self.context.session, self.seq_id)

    def keep(self, tokens: Sequence[int]) -> int:
        """Keep as much of the beginning of these tokens as the sequence holds and can go back to,
        forget the rest, and return how many were kept, see can_keep()."""
        with self.context.lock():
            n = self.n_common(tokens)
            n = n if n == self.n_past else self.can_keep(n)
            self.rollback(n)
        return n

    def occupy(self) -> None:
        """Keep the sequence for a text until it is dropped; drafts do not borrow it meanwhile."""
        self.context.sequence_table.occupy(self.seq_id)

    def n_common(self, tokens: Sequence[int]) -> int:
        """Return the number of tokens that the sequence and these have in common at the
        beginning."""
        return n_common(self._tokens, tokens)

    @property
    def _tokens(self) -> list[int]:
        return self.context.sequence_table.tokens[self.seq_id]

    def fork(self, seq_id: int) -> KVSequence:
        """Replace the content of sequence seq_id by the tokens of this one, at the same positions,
        and return it. No K/V is copied.

        Raises UnsupportedError where the memory cannot fork: see Context.abilities.can_fork.
        """
        other = KVSequence(self.context, seq_id)
        if seq_id == self.seq_id:
            raise ArgumentError(f"sequence {seq_id} cannot be forked into itself")
        if not self.context.abilities.can_fork:
            self.context.abilities.require_rollback()
        with self.context.lock():
            other.drop()
            calls.fork(self.context.session, self.seq_id, seq_id)
            self.context.sequence_table.copy(self.seq_id, seq_id)
            self.context.checkpoints.copy(self.seq_id, seq_id)
        return other

    def take_over(self, fork: KVSequence, n_keep: int) -> None:
        """Replace the tokens from position n_keep on by those of a fork; no K/V is copied."""
        with self.context.lock():
            self.rollback(n_keep)
            llama.llama_memory_seq_cp(self._memory, fork.seq_id, self.seq_id, n_keep, -1)
            self.context.sequence_table.adopt_from(self.seq_id, fork.seq_id, n_keep)

    def can_keep(self, n: int) -> int:
        """Return how many tokens, at most n, rollback() can keep: n where the memory can remove the
        others, else those of the longest checkpoint with at most n tokens, else 0."""
        with self.context.lock():
            kept = calls.can_keep(self.context.session, self.seq_id, min(n, self.n_past))
            found = None if kept else self.context.checkpoints.longest(self.seq_id, n)
            return kept if found is None else found.n_tokens

    def rollback(self, n_keep: int) -> None:
        """Remove the tokens from position n_keep on.

        Raises UnsupportedError when the memory cannot remove these (recurrent and hybrid models)
        and has no checkpoint of n_keep tokens, or no longer holds the sliding window of the next
        token; see can_keep().
        """
        if n_keep < 0:
            raise ArgumentError(f"a sequence keeps 0 tokens or more, got {n_keep}")
        with self.context.lock():
            n_past = self.n_past
            self.context.sequence_table.truncate(self.seq_id, n_keep)
            self.context.checkpoints.truncate(self.seq_id, n_keep)
            if n_keep == 0:
                self.context.sequence_table.clear(self.seq_id)
            if n_keep >= n_past:
                return
            try:
                self._cut(n_keep)
            except BaseException:  # a replay that was stopped leaves the sequence empty
                self.context.forget_lost()
                raise

    def _cut(self, n_keep: int) -> None:
        session = self.context.session
        if n_keep:
            require_not_forked()  # removal may compute states again
        if n_keep == 0 or calls.can_keep(session, self.seq_id, n_keep) == n_keep:
            calls.keep(session, self.seq_id, n_keep)
            return
        found = self.context.checkpoints.longest(self.seq_id, n_keep)
        if found is not None and found.n_tokens == n_keep:
            calls.load_state(session, self.seq_id, found.state, n_keep)
            return
        self.context.abilities.require_rollback()
        raise UnsupportedError(
            f"sequence {self.seq_id} no longer holds all that position {n_keep} sees through "
            "its sliding window; drop it and decode its tokens anew"
        )

    def save_checkpoint(self) -> Checkpoint | None:
        """Keep a copy of the recurrent state, so that rollback() can return to the present tokens.
        Return it; None for a model without recurrent states, for an empty sequence, and where a
        checkpoint of as many tokens is kept already."""
        if not self.context.abilities.has_states:
            return None
        with self.context.lock():
            n, kept = self.n_past, self.context.checkpoints
            if n == 0 or kept.has(self.seq_id, n):
                return None
            made = Checkpoint(n, calls.save_state(self.context.session, self.seq_id))
            kept.add(self.seq_id, made)
            return made

    def forget_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Give up a checkpoint that save_checkpoint() has returned."""
        self.context.checkpoints.remove(self.seq_id, checkpoint)

    def rollback_if_open(self, n_keep: int) -> None:
        """Roll back while cleaning up; does nothing in a closed context."""
        if not self.context.closed:
            self.rollback(n_keep)

    def drop(self) -> None:
        """Remove all tokens, the reservation, and the mark of a text; drafts may borrow the
        sequence again."""
        with self.context.lock():
            self.rollback(0)
            self.reserve(None)
            self.context.sequence_table.vacate(self.seq_id)
