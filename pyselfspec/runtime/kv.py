"""Sequences in the K/V cache: fork, rollback, drop. All sequence work of the package is here.

A context keeps one unified cache. A cell belongs to every sequence that shares its token, so a fork
copies no K/V, only metadata, and cells are freed when the last sequence lets go of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import ArgumentError, UnsupportedError
from . import _lib
from ._lib import llama
from .ledger import Part, n_common

if TYPE_CHECKING:
    from .context import Context


class KVSequence:
    """The tokens that a context holds under one sequence id, at positions 0..n_past-1."""

    def __init__(self, context: Context, seq_id: int) -> None:
        if not 0 <= seq_id < context.n_seq_max:
            raise ArgumentError(
                f"sequence id {seq_id} is not allowed, the context has 0 to {context.n_seq_max - 1}"
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
        """Tokens held, which is also the position of the next one."""
        with self.context.alone:
            return int(llama.llama_memory_seq_pos_max(self._memory, self.seq_id)) + 1

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens at the beginning of the sequence that are known to be evaluated by the full
        model. Passes forget what they touch; who knows better says so with ``holds``."""
        return tuple(self._held)

    def holds(self, tokens: Sequence[int]) -> None:
        """Say that the sequence holds these tokens, evaluated by the full model.

        Raises ArgumentError where it holds fewer, or is known to hold another one.
        """
        if len(tokens) > self.n_past:
            raise ArgumentError(
                f"sequence {self.seq_id} holds {self.n_past} tokens, not {len(tokens)}"
            )
        self.context.ledger.extend(self.seq_id, tokens)

    def refilled(self, tokens: Sequence[int]) -> None:
        """The same where others than this package have evaluated them: what was known before is
        forgotten."""
        self.context.ledger.cut(self.seq_id, 0)
        self.holds(tokens)

    def reserve(self, n_tokens: int | None) -> None:
        """Promise the sequence room for this many tokens in all, so that its cells follow one
        another; None takes the promise back. Other sequences stay out of that room while there is
        other room for them."""
        with self.context.alone:
            n = -1 if n_tokens is None else min(n_tokens, self.context.n_ctx)
            _lib.reserve(self.context.session, self.seq_id, n)

    @property
    def in_order(self) -> bool:
        """Whether the cells of the sequence ascend with its positions. Its logits are then the ones
        that it has alone, bit for bit, as far as the context's exact width promises. False only
        where the cache was too full and cells cannot be moved: on a GPU, or without flash
        attention."""
        with self.context.alone:
            return _lib.in_order(self.context.session, self.seq_id)

    def keep(self, tokens: Sequence[int]) -> int:
        """Keep as much of the beginning of these tokens as the sequence holds, forget the rest, and
        return how many were kept, see can_keep()."""
        with self.context.alone:
            n = self.n_common(tokens)
            n = n if n == self.n_past else self.can_keep(n)
            self.rollback(n)
        return n

    def claim(self) -> None:
        """A text lives here, until the sequence is dropped: the context does not lend it to
        anybody."""
        self.context.ledger.claim(self.seq_id)

    def n_common(self, tokens: Sequence[int]) -> int:
        """How many tokens at their beginning the sequence and these have in common."""
        return n_common(self._held, tokens)

    @property
    def _held(self) -> list[int]:
        return self.context.ledger.held[self.seq_id]

    def fork(self, seq_id: int, part: Part | None = None) -> KVSequence:
        """Make sequence seq_id hold the same tokens, or a part of them, dropping what it held; no
        K/V is copied. Positions stay what they are."""
        other = KVSequence(self.context, seq_id)
        if seq_id == self.seq_id:
            raise ArgumentError(f"sequence {seq_id} cannot be forked into itself")
        self.context.require_rollback()
        with self.context.alone:
            other.drop()
            ranges = [(0, -1)] if part is None else part.of(self.n_past)
            for start, end in ranges:
                llama.llama_memory_seq_cp(self._memory, self.seq_id, seq_id, start, end)
            self.context.ledger.forked(self.seq_id, seq_id, part)
        return other

    def take_over(self, fork: KVSequence, n_keep: int) -> None:
        """From position n_keep on hold what a fork of this sequence holds; no K/V is copied."""
        with self.context.alone:
            self.rollback(n_keep)
            llama.llama_memory_seq_cp(self._memory, fork.seq_id, self.seq_id, n_keep, -1)
            self.context.ledger.taken_over(self.seq_id, fork.seq_id, n_keep)

    def can_keep(self, n: int) -> int:
        """How many tokens, at most n, rollback() can keep: n, or 0 where the memory takes no tail
        back (recurrent models), or a sliding window before position n is no longer whole."""
        with self.context.alone:
            return _lib.can_keep(self.context.session, self.seq_id, min(n, self.n_past))

    def rollback(self, n_keep: int) -> None:
        """Forget everything from position n_keep on.

        Raises UnsupportedError when the memory cannot forget a part (recurrent and hybrid models),
        or no longer holds what the next token sees through a sliding window; see can_keep().
        """
        with self.context.alone:
            n_past = self.n_past
            self.context.ledger.cut(self.seq_id, n_keep)
            if n_keep == 0:
                self.context.ledger.dropped(self.seq_id)
            if n_keep >= n_past:
                return
            if n_keep < 0:
                raise ArgumentError(f"a sequence keeps 0 tokens or more, got {n_keep}")
            if n_keep > 0:
                self.context.require_rollback()
                self._require_window(n_keep)
            if not llama.llama_memory_seq_rm(self._memory, self.seq_id, n_keep, -1):
                raise self.context.no_rollback()

    def undo(self, n_keep: int) -> None:
        """Roll back while cleaning up: in a closed context there is nothing to do."""
        if not self.context.closed:
            self.rollback(n_keep)

    def drop(self) -> None:
        """Forget the whole sequence; it may be lent to drafts again."""
        with self.context.alone:
            self.rollback(0)
            self.reserve(None)
            self.context.ledger.release(self.seq_id)

    def _require_window(self, n_keep: int) -> None:
        if self.can_keep(n_keep) < n_keep:
            raise UnsupportedError(
                f"sequence {self.seq_id} no longer holds all that position {n_keep} sees through "
                "its sliding window; drop it and decode its tokens anew"
            )
