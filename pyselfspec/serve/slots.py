"""Sequences of a context for several texts: which of them a new text gets, what of earlier texts it
can go on from, and whether there is room for it.

A text has all the room that it may need before it begins, so none ends early because of others, and
the cells of each stay in the order that gives it the bits that it has alone. What texts have left
behind is kept as long as nobody needs its room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..runtime.context import Context
from ..runtime.kv import KVSequence


@dataclass(eq=False, slots=True)
class Slot:
    """seq: claimed for texts. n_reserved: tokens of room for its text; 0: it has none.
    used_at: when it was taken last, counted in texts."""

    seq: KVSequence
    n_reserved: int = 0
    used_at: int = 0

    @property
    def is_idle(self) -> bool:
        return not self.n_reserved


class Slots:
    """n_cells: tokens of room for all texts together. Belongs to the context's thread."""

    def __init__(self, context: Context, n_slots: int, n_cells: int) -> None:
        self._context = context
        self._n_cells = n_cells
        self._n_texts = 0
        self.n_disordered = 0  # texts whose cells were not in order at their end
        self.slots = [Slot(context.sequence(i)) for i in range(n_slots)]
        for slot in self.slots:
            slot.seq.claim()

    def take(self, prompt: Sequence[int], n_tokens: int) -> Slot | None:
        """A slot for a text of at most so many tokens, prompt included, which holds as much of the
        prompt as any other does; None where it has to wait for room."""
        n_running = sum(slot.n_reserved for slot in self.slots)
        idle = [slot for slot in self.slots if slot.is_idle]
        if not idle or n_running + n_tokens > self._n_cells:
            return None
        best = max(self.slots, key=lambda slot: (self._n_usable(slot, prompt), slot.is_idle))
        slot = self._place(best, idle, self._n_usable(best, prompt))
        if slot is not best and self._n_usable(best, prompt) > self._n_usable(slot, prompt):
            best.seq.fork(slot.seq.seq_id)
            slot.seq.claim()
            best.used_at = self._n_texts
        self._n_texts += 1
        slot.n_reserved, slot.used_at = n_tokens, self._n_texts
        self._make_room()
        return slot

    def n_held(self, prompt: Sequence[int]) -> int:
        """Tokens of this prompt that a text could go on from."""
        return max(self._n_usable(slot, prompt) for slot in self.slots)

    def free(self, slot: Slot) -> None:
        """The slot's text has ended. Keep its tokens for prefix reuse, unless its cells are out of
        order where that counts: then a later text would not have the bits that it has alone."""
        slot.n_reserved = 0
        slot.seq.reserve(slot.seq.n_past)
        if self._context.is_exact_beside_others and not slot.seq.in_order:
            self.n_disordered += 1
            self._forget(slot)

    def _place(self, best: Slot, idle: Sequence[Slot], n_usable: int) -> Slot:
        """The best one, where a text goes on with most of it; else the one unused for longest, so
        that what the best one holds is kept as well."""
        oldest = min(idle, key=lambda slot: slot.used_at)
        can_fork = self._context.can_rollback
        if best.is_idle and (2 * n_usable >= best.seq.n_past > 0 or not can_fork):
            return best
        return oldest

    def _n_usable(self, slot: Slot, prompt: Sequence[int]) -> int:
        """Tokens that it has in common with a prompt; the last one is evaluated in any case."""
        n = min(slot.seq.n_common(prompt), len(prompt) - 1)
        if self._context.can_rollback:
            return n
        return n if slot.is_idle and n == slot.seq.n_past else 0

    def _make_room(self) -> None:
        """Forget what was unused for longest, until the rest fits. Cells that several sequences
        share count for each of them."""
        n_left = self._n_cells - sum(slot.n_reserved for slot in self.slots)
        idle = [slot for slot in self.slots if slot.is_idle]
        for slot in sorted(idle, key=lambda slot: -slot.used_at):
            n_left -= slot.seq.n_past
            if n_left < 0:
                self._forget(slot)

    def _forget(self, slot: Slot) -> None:
        slot.seq.drop()
        slot.seq.claim()
