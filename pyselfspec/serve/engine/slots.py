"""Slots: the sequences of a context for several completions, with prefix reuse and reserved cells.

A completion reserves all the cells that it may need before it begins, so that none ends early
because of others and the cells of each stay in the order in which logits have the same bits as
alone. The tokens of ended completions are kept until their cells are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...runtime.context import Context
from ...runtime.kv import KVSequence
from ...runtime.lora import Adapters
from ...runtime.pictures import is_text
from ...runtime.sequence_snapshot import can_save, restore_sequence, save_sequence
from ..store.prefixes import Prefixes

N_LOST = 64  # tokens; to read fewer again takes little time
# Of a sequence; to copy all of it takes as long as to read fewer tokens again.
LOST_SHARE = 1 / 8


@dataclass(eq=False, slots=True)
class Slot:
    """A place for one completion. n_reserved: cells reserved for it, 0 when idle. used_at: number
    of the completion that used it last. owner: whose it is, see protocol.auth.owner_of."""

    seq: KVSequence
    n_reserved: int = 0
    used_at: int = 0
    owner: str = ""

    @property
    def is_idle(self) -> bool:
        return not self.n_reserved


class Slots:
    """The slots of a context, for its thread only. n_cells: cells for the tokens of all
    completions. prefixes: keeps snapshots of sequences that lose their cells; None: none are kept.
    """

    def __init__(
        self, context: Context, n_slots: int, n_cells: int, prefixes: Prefixes | None = None
    ) -> None:
        self._context = context
        self._prefixes = prefixes
        self._n_cells = n_cells
        self._n_texts = 0
        self.n_disordered = 0  # completions whose cells were not in order at their end
        self.slots = [Slot(context.sequence(i)) for i in range(n_slots)]
        for slot in self.slots:
            slot.seq.occupy()

    def take(self, prompt: Sequence[int], n_tokens: int, adapters: Adapters = ()) -> Slot | None:
        """Reserve a slot that holds as much of the prompt as possible; return None without room.

        n_tokens: most tokens of the completion, prompt included. adapters: of the completion, which
            reuses the tokens of completions with these LoRA adapters only.
        """
        idle = [slot for slot in self.slots if slot.is_idle]
        if not idle or n_tokens > self._n_free():
            return None
        usable = {each: self._n_usable(each, prompt, adapters) for each in self.slots}
        best = max(self.slots, key=lambda slot: (usable[slot], slot.is_idle))
        slot, is_continued = best, 2 * usable[best] >= best.seq.n_past > 0
        if not best.is_idle or (self._context.abilities.can_fork and not is_continued):
            slot = min(idle, key=lambda each: each.used_at)  # so that the best one is kept too
        n_held = slot.seq.n_past
        if n_held - usable[slot] >= max(N_LOST, LOST_SHARE * n_held):
            self._save(slot)
        can_restore = not adapters and all(map(is_text, prompt))
        is_restored = can_restore and self._restored(slot, prompt, usable[best])
        if not is_restored and slot is not best and usable[best] > usable[slot]:
            best.seq.fork(slot.seq.seq_id)
            slot.seq.occupy()
            best.used_at = self._n_texts
        slot.seq.keep(prompt[:-1])  # nothing of the former completion's owner is left
        self._n_texts += 1
        slot.n_reserved, slot.used_at = n_tokens, self._n_texts
        # cells that several sequences share count for each of them
        self._drop_oldest([each for each in self.slots if each.is_idle], self._n_free())
        return slot

    def n_held(self, prompt: Sequence[int], adapters: Adapters = ()) -> int:
        """Return how many tokens of this prompt a new completion could reuse."""
        return max(self._n_usable(slot, prompt, adapters) for slot in self.slots)

    def free(self, slot: Slot) -> None:
        """Make the slot idle. Keep its tokens for prefix reuse, unless its cells are out of order
        and their order changes the bits of logits."""
        slot.n_reserved = 0
        slot.seq.reserve(slot.seq.n_past)
        if self._context.abilities.is_exact_beside_others and not slot.seq.in_order:
            self.n_disordered += 1
            self._forget(slot)

    def erase(self, slot: Slot) -> int:
        """Remove the contents of an idle slot without a snapshot; return the number of tokens."""
        n = slot.seq.n_past
        slot.seq.drop()
        slot.seq.occupy()
        slot.owner = ""
        return n

    def can_hold(self, slot: Slot, n_tokens: int) -> bool:
        """Make room for n tokens in an idle slot by dropping the contents of other idle slots;
        return whether there is enough."""
        n_left = self._n_free() - n_tokens
        if n_left < 0:
            return False
        others = [each for each in self.slots if each.is_idle and each is not slot]
        self._drop_oldest(others, n_left)
        return True

    def save_all(self) -> None:
        """Save snapshots of all slots, for a later run."""
        if self._prefixes is not None and self._prefixes.has_files:
            for slot in self.slots:
                self._save(slot, waits=True)

    def _save(self, slot: Slot, *, waits: bool = False) -> None:
        kept, tokens = self._prefixes, slot.seq.tokens
        if kept is None or not kept.is_worth(len(tokens)) or not can_save(slot.seq):
            return
        if kept.holds(tokens):
            return
        if (saved := save_sequence(slot.seq)) is not None:
            kept.add(saved, waits=waits)

    def _restored(self, slot: Slot, prompt: Sequence[int], n_held: int) -> bool:
        """Restore a snapshot into a slot if the prompt has more in common with it than with the
        slots. Return whether it has been done."""
        kept = self._prefixes
        saved = None if kept is None else kept.longest(prompt, n_held)
        if kept is None or saved is None or not self.can_hold(slot, len(saved.tokens)):
            return False
        done = restore_sequence(slot.seq, saved)
        kept.n_restored += done
        return done

    def _n_free(self) -> int:
        """Return the number of cells that no running completion has reserved."""
        return self._n_cells - sum(slot.n_reserved for slot in self.slots)

    def _drop_oldest(self, idle: Sequence[Slot], n_left: int) -> None:
        """Drop the least recently used of these slots until the others fit into n cells."""
        for slot in sorted(idle, key=lambda slot: -slot.used_at):
            n_left -= slot.seq.n_past
            if n_left < 0:
                self._forget(slot)

    def _n_usable(self, slot: Slot, prompt: Sequence[int], adapters: Adapters) -> int:
        """Return how many tokens of a prompt it can reuse; the last one is always evaluated."""
        if slot.seq.adapters != adapters:
            return 0
        n = min(slot.seq.n_common(prompt), len(prompt) - 1)
        if self._context.abilities.can_fork:
            return n if self._context.abilities.can_rollback else slot.seq.can_keep(n)
        return n if slot.is_idle and n == slot.seq.n_past else 0

    def _forget(self, slot: Slot) -> None:
        if slot.seq.in_order or not self._context.abilities.is_exact_beside_others:
            self._save(slot)
        slot.seq.drop()
        slot.seq.occupy()
