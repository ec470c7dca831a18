"""The context that goes with the scripted model. Numpy only.

It counts K/V cells, knows for every block which pass wrote its K/V, and asserts what the
native one needs: consecutive positions, no K/V of a foreign mask, states that belong to their
tokens, room for every cell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ..costs.table import N_WIDTH
from ..errors import ArgumentError, ContextFullError, UnsupportedError
from ..masks.layer_mask import LayerMask
from ..masks.space import MaskSupport
from ..runtime.abilities import Abilities
from ..runtime.checkpoints import Checkpoint, Checkpoints
from ..runtime.context_options import ContextOptions
from ..runtime.lora import Adapters
from ..runtime.pass_result import PassResult
from ..runtime.passes import FULL as FULL_PASS
from ..runtime.passes import Head, Hidden, Pass, Rows
from ..runtime.sequence_table import SequenceTable
from ..util.closable import Closing
from .fake_model import N_EMBD, Broken, FakeModel

FULL, NOTHING = "full", "nothing"  # besides masks: what K/V of a block can hold


@dataclass(eq=False)
class Cell:
    """A token, and for each block what its K/V holds: values of the full model, those of a pass
    with a mask, or whatever was in the cell before."""

    token: int
    blocks: list[LayerMask | str]

    @property
    def is_full(self) -> bool:
        return set(self.blocks) == {FULL}


def state(prefix: Sequence[int], block: int) -> list[float]:
    """Stands for the true state of the last token of prefix as it enters a block."""
    return [float(block), *np.random.default_rng([block, *prefix]).random(N_EMBD - 1)]


class FakeSequence:
    """The part of KVSequence that loops and drafters use."""

    def __init__(self, context: FakeContext, seq_id: int) -> None:
        if not 0 <= seq_id < context.n_seq_max:
            raise ArgumentError(f"sequence id {seq_id} is not allowed")
        self.context = context
        self.seq_id = seq_id

    adapters: Adapters = ()

    @property
    def cells(self) -> list[Cell]:
        return self.context.cells[self.seq_id]

    @property
    def held(self) -> list[int]:
        """All tokens that cells of the sequence hold, whatever their K/V is."""
        return [cell.token for cell in self.cells]

    @property
    def tokens(self) -> tuple[int, ...]:
        n = next((i for i, cell in enumerate(self.cells) if not cell.is_full), self.n_past)
        return tuple(self.held[:n])

    @property
    def n_past(self) -> int:
        return len(self.cells)

    def set_tokens(self, tokens: Sequence[int]) -> None:
        assert list(self.tokens[: len(tokens)]) == list(tokens), "says what is not so"

    def keep(self, tokens: Sequence[int]) -> int:
        n = self.n_common(tokens)
        n = n if n == self.n_past else self.can_keep(n)
        self.rollback(n)
        return n

    def can_keep(self, n: int) -> int:
        if self._can_cut(n):
            return min(n, self.n_past)
        found = self.context.checkpoints.longest(self.seq_id, n)
        return 0 if found is None else found.n_tokens

    def _can_cut(self, n: int) -> bool:
        """Return whether the memory can keep n tokens without a checkpoint."""
        context = self.context
        n_removed = self.n_past - n
        if n == 0 or n_removed <= 0 or context.abilities.can_rollback:
            return True
        return n_removed <= min(
            context.abilities.max_rollback, context.n_rows_last[self.seq_id] - 1
        )

    def save_checkpoint(self) -> Checkpoint | None:
        kept = self.context.checkpoints
        if (
            not self.context.abilities.has_states
            or not self.n_past
            or kept.has(self.seq_id, self.n_past)
        ):
            return None
        made = Checkpoint(self.n_past, np.zeros(1, np.uint8))
        self.context.checkpoints.add(self.seq_id, made)
        return made

    def forget_checkpoint(self, checkpoint: Checkpoint) -> None:
        self.context.checkpoints.remove(self.seq_id, checkpoint)

    def n_common(self, tokens: Sequence[int]) -> int:
        same = [a == b for a, b in zip(self.tokens, tokens, strict=False)]
        return same.index(False) if False in same else len(same)

    def occupy(self) -> None:
        self.context.sequence_table.occupy(self.seq_id)

    def reserve(self, n_tokens: int | None) -> None:
        """Do nothing: a fake has no cache in which cells have places."""

    def fork(self, seq_id: int) -> FakeSequence:
        """Return a copy with all cells: the distributions depend on the whole text."""
        assert seq_id != self.seq_id
        if not self.context.abilities.can_fork:
            self.context.abilities.require_rollback()
        other = FakeSequence(self.context, seq_id)
        other.cells[:] = self.cells
        self.context.n_rows_last[seq_id] = 0
        self.context.checkpoints.copy(self.seq_id, seq_id)
        return other

    def take_over(self, fork: FakeSequence, n_keep: int) -> None:
        self.rollback(n_keep)
        self.cells[:] = fork.cells

    def rollback(self, n_keep: int) -> None:
        assert n_keep >= 0
        if n_keep == 0:
            self.context.sequence_table.clear(self.seq_id)
        self.context.checkpoints.truncate(self.seq_id, n_keep)
        if n_keep == 0 or n_keep < self.n_past:
            if not self._can_cut(n_keep):
                found = self.context.checkpoints.longest(self.seq_id, n_keep)
                if found is None or found.n_tokens != n_keep:
                    raise UnsupportedError("this memory cannot take tokens back")
            self.context.n_rows_last[self.seq_id] = 0  # one removal after each pass
            del self.cells[n_keep:]

    def rollback_if_open(self, n_keep: int) -> None:
        self.rollback(n_keep)

    def drop(self) -> None:
        self.rollback(0)
        self.context.sequence_table.vacate(self.seq_id)


class FakeContext:
    """The part of Context that loops and drafters use.

    can_rollback: whether any tail can be removed; else at most max_rollback tokens of the last
        pass, and with has_states all tokens after a checkpoint.
    enters: whether states can be read and given back, see Context.can_enter.
    fail_at_decode: the n-th decode (from 1) raises Broken.
    pass_width: most rows of a verification pass.
    """

    best_head: Head = "best"
    can_shorten = False
    n_preparing = 1
    adapters: Adapters = ()
    n_threads = 1
    options = ContextOptions()

    def __init__(
        self,
        model: FakeModel,
        *,
        n_ctx: int = 256,
        n_batch: int = 64,
        n_seq_max: int = 4,
        can_rollback: bool = True,
        max_rollback: int = 0,
        has_states: bool = False,
        enters: bool = True,
        fail_at_decode: int | None = None,
        pass_width: int = N_WIDTH,
    ) -> None:
        self.model = model
        self.n_ctx = n_ctx
        self.n_batch = n_batch
        self.n_seq_max = n_seq_max
        self.abilities = Abilities(
            architecture="fake",
            is_causal=True,
            has_memory=True,
            can_rollback=can_rollback,
            max_rollback=n_ctx if can_rollback else max_rollback,
            has_states=has_states,
            has_flash_attn=True,
            exact_width=pass_width,
            exact_prompts=True,
            pass_width=pass_width,
        )
        self.checkpoints = Checkpoints()
        self.n_rows_last = [0] * n_seq_max  # of the last pass, by sequence
        self.enters = enters
        self.fail_at_decode = fail_at_decode
        self.n_decodes = 0
        self.cells: list[list[Cell]] = [[] for _ in range(n_seq_max)]
        self.passes: list[tuple[int, int, LayerMask | None]] = []  # sequence id, rows, mask
        self.widths: list[int] = []  # rows of each pass, of all sequences
        self.probs: dict[
            int, NDArray[np.float64]
        ] = {}  # of the next token, by row of the last pass
        self.sequence_table = SequenceTable(n_seq_max)
        self.extension: Closing | None = None

    @property
    def mask_support(self) -> MaskSupport:
        every = frozenset(range(self.model.n_layer))
        return MaskSupport(self.model.n_layer, every, every)

    @property
    def n_cells(self) -> int:
        return len({id(cell) for cells in self.cells for cell in cells})

    def closes(self, other: Closing) -> None:
        """Ignore the call: a fake is never closed."""

    def sequence(self, seq_id: int = 0) -> FakeSequence:
        return FakeSequence(self, seq_id)

    def require_spare(self) -> None:
        if self.n_seq_max < 2:
            raise ArgumentError("drafting needs a context with n_seq_max of at least 2")

    @contextmanager
    def spare_sequence(self) -> Iterator[FakeSequence]:
        free = self._free()
        if not free:
            raise ArgumentError("all sequences of the context are in use")
        self.sequence_table.borrow(free[0])
        seq = self.sequence(free[0])
        try:
            yield seq
        finally:
            self.sequence_table.release(seq.seq_id)
            seq.drop()

    @property
    def has_spare(self) -> bool:
        return bool(self._free())

    @property
    def n_branches(self) -> int:
        return min(self.n_seq_max, 1 + len(self._free())) if self.abilities.can_rollback else 1

    def _free(self) -> list[int]:
        ids = reversed(range(self.n_seq_max))
        return [i for i in ids if self.sequence_table.is_free(i) and not self.cells[i]]

    def can_enter(self, block: int) -> bool:
        return self.enters and self.abilities.can_rollback and 1 <= block < self.model.n_layer

    def run(self, rows: Rows, what: Pass = FULL_PASS) -> PassResult:
        """See Context.run. Rows of one sequence lie together."""
        assert 1 <= len(rows) <= self.n_batch
        assert all(0 <= token < self.model.n_vocab for token in rows.tokens)
        self.n_decodes += 1
        self.widths.append(len(rows))
        n_rows = Counter(rows.seq_ids)
        together = len(set(n_rows.values())) == 1
        self.n_rows_last = [n_rows[i] if together else 0 for i in range(self.n_seq_max)]
        self.probs = {}
        states = []
        first = 0
        n_new = 0 if what.in_place else len(rows)
        if self.n_decodes != self.fail_at_decode and self.n_cells + n_new > self.n_ctx:
            raise ContextFullError("no room")
        if rows.shared:
            return self._run_shared(rows, what)
        for seq_id, group in groupby(rows.seq_ids):
            n = len(list(group))
            part = slice(first, first + n)
            found = self._run_one(seq_id, rows, part, what.on(part))
            states += found
            first += n
        hidden = Hidden(np.array(states, np.float32)) if what.leave is not None else None
        return PassResult(cast(Any, self), rows.outputs, hidden)

    def _run_shared(self, rows: Rows, what: Pass) -> PassResult:
        """Rows of which some belong to several sequences, one cell for all of them."""
        assert what.is_whole
        states = []
        for i, (token, pos) in enumerate(zip(rows.tokens, rows.pos, strict=True)):
            seqs = [self.sequence(each) for each in (rows.seq_ids[i], *rows.shared[i])]
            cells = seqs[0].cells
            assert all(seq.cells == cells for seq in seqs), "a row in sequences that differ"
            assert pos == len(cells), f"position {pos} after {len(cells)} tokens"
            assert all(cell.is_full for cell in cells), "reads K/V of a mask"
            if self.n_decodes == self.fail_at_decode:
                raise Broken
            cell = Cell(token, [FULL] * self.model.n_layer)
            for seq in seqs:
                seq.cells.append(cell)
            if rows.outputs[i]:
                self.probs[i] = self.model.target(seqs[0].held)
            states.append([x for block in what.blocks_left for x in state(seqs[0].held, block)])
        self.passes.append((rows.seq_ids[0], len(rows), None))
        hidden = Hidden(np.array(states, np.float32)) if what.leave is not None else None
        return PassResult(cast(Any, self), rows.outputs, hidden)

    def _run_one(self, seq_id: int, rows: Rows, part: slice, what: Pass) -> list[list[float]]:
        """The rows of one sequence; returns the states that are asked for."""
        seq, tokens, start = self.sequence(seq_id), rows.tokens[part], rows.pos[part.start]
        text = [*seq.held[:start], *tokens]
        assert rows.pos[part] == tuple(range(start, start + len(tokens)))
        if what.in_place:
            assert seq.held[: len(text)] == text, f"rewrites {seq.held} as {text}"
        else:
            assert start == seq.n_past, f"position {start} after {seq.n_past} tokens"
        if self.n_decodes == self.fail_at_decode:
            if what.in_place:
                seq.rollback(start)  # as the native one does
            raise Broken
        if not what.in_place:
            nothing = [NOTHING] * self.model.n_layer
            seq.cells.extend(Cell(token, [*nothing]) for token in tokens)

        ends = range(start + 1, len(text) + 1)
        mask = what.mask or LayerMask.full(self.model.n_layer)
        entry = 0
        if what.enter is not None:
            entry = mask.first_active
            want = np.array([state(text[:end], entry) for end in ends], np.float32)
            given = what.enter.numpy()
            assert np.array_equal(given, want), "states of other tokens, or of another block"
        true_until = LayerMask(
            mask.n_layer, mask.skip_attn - set(range(entry)), mask.skip_ffn - set(range(entry))
        ).first_skipped  # all states up to the one that enters this block are the full model's
        self._attend(seq.cells[: len(text)], start, mask, true_until)
        self.passes.append(
            (seq_id, len(tokens), None if mask.first_skipped == mask.n_layer else mask)
        )
        is_full = true_until == mask.n_layer
        next_token = self.model.target if is_full else partial(self.model.masked, mask=mask)
        for i, end in zip(range(part.start, part.stop), ends, strict=True):
            if rows.outputs[i]:
                self.probs[i] = next_token(text[:end])
        blocks = what.blocks_left
        if not blocks:
            return []
        touched = "asks for states that a mask has touched"
        assert all(entry < block <= true_until for block in blocks), touched
        return [[x for block in blocks for x in state(text[:end], block)] for end in ends]

    def _attend(self, cells: Sequence[Cell], start: int, mask: LayerMask, true_until: int) -> None:
        """Write K/V of the cells from start on, and read that of all, block by block."""
        for il in set(range(mask.n_layer)) - mask.skip_attn:
            value = FULL if il <= true_until else mask
            for cell in cells[start:]:
                cell.blocks[il] = value
            allowed = {FULL, value}
            assert {cell.blocks[il] for cell in cells} <= allowed, "reads K/V of another mask"

    def prefill(self, tokens: Sequence[int], seq: FakeSequence | None = None) -> None:
        seq = seq or self.sequence()
        for i in range(0, len(tokens), self.n_batch):
            part = tokens[i : i + self.n_batch]
            self.run(Rows.of(seq.seq_id, seq.n_past, part, "none"))

    def wait(self) -> None:
        """Return at once, since passes are computed when they return."""

    def argmax(self, row: int) -> tuple[int, float]:
        p = self.probs[row]
        return int(p.argmax()), float(p.max())

    def logits(self, row: int) -> NDArray[np.float32]:
        with np.errstate(divide="ignore"):
            return np.log(self.probs[row]).astype(np.float32)

    def best(self, row: int) -> int:
        return self.argmax(row)[0]
