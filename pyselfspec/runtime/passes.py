"""The input of a pass and the parts of the model that it runs: rows, states, Pass. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..errors import ArgumentError
from ..masks.layer_mask import LayerMask
from .lora import Adapters
from .short_list import ShortList

# The rows that get an output: logits, or the most likely token.
Outputs = Literal["none", "last", "all"]
OUTPUTS: tuple[Outputs, ...] = ("none", "last", "all")
# The result for the rows with outputs: logits on the host; or only the most likely token, found on
# the head's device, so that a GPU's logits stay there.
Head = Literal["logits", "best"]


@dataclass(frozen=True, slots=True)
class Rows:
    """Tokens that go through one pass together, each with its sequence and its position there.

    outputs: which rows get an output. All fields have one entry per row.
    shared: further sequences that each row belongs to, one cell for all of them; their earlier
        tokens must be equal. Empty: none.
    """

    tokens: tuple[int, ...]
    seq_ids: tuple[int, ...]
    pos: tuple[int, ...]
    outputs: tuple[bool, ...]
    shared: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(cls, seq_id: int, pos: int, tokens: Sequence[int], outputs: Outputs = "all") -> Self:
        """Return rows of consecutive tokens of one sequence, the first of them at this position."""
        n = len(tokens)
        wanted = [outputs == "all"] * n
        if n and outputs == "last":
            wanted[-1] = True
        return cls(tuple(tokens), (seq_id,) * n, tuple(range(pos, pos + n)), tuple(wanted))

    @classmethod
    def joined(cls, parts: Iterable[Rows]) -> Self:
        """The rows of all parts, in order."""
        tokens: list[int] = []
        seq_ids: list[int] = []
        pos: list[int] = []
        outputs: list[bool] = []
        shared: list[tuple[int, ...]] = []
        for part in parts:
            tokens += part.tokens
            seq_ids += part.seq_ids
            pos += part.pos
            outputs += part.outputs
            shared += part.shared or ((),) * len(part)
        others = tuple(shared) if any(shared) else ()
        return cls(tuple(tokens), tuple(seq_ids), tuple(pos), tuple(outputs), others)

    def first(self, n: int) -> Self:
        """Return the first n rows."""
        return type(self)(
            self.tokens[:n], self.seq_ids[:n], self.pos[:n], self.outputs[:n], self.shared[:n]
        )

    def require_whole(self) -> None:
        """Raise ArgumentError where a field has more or fewer entries than there are tokens."""
        n = len(self.tokens)
        sizes = {"seq_ids": len(self.seq_ids), "pos": len(self.pos), "outputs": len(self.outputs)}
        if self.shared:
            sizes["shared"] = len(self.shared)
        for name, n_here in sizes.items():
            if n_here != n:
                raise ArgumentError(f"{n} tokens need as many {name}, got {n_here}")

    def places(self) -> Iterable[tuple[int, int, int]]:
        """Return the token, sequence and position of every row, once for each of its sequences."""
        rows = zip(self.tokens, self.seq_ids, self.pos, strict=True)
        if not self.shared:
            return rows
        return [
            (token, each, pos)
            for (token, seq_id, pos), others in zip(rows, self.shared, strict=True)
            for each in (seq_id, *others)
        ]

    def __len__(self) -> int:
        return len(self.tokens)


class Hidden:
    """Hidden states of some rows, wherever they are kept. Slices and joins; numpy() is a copy or a
    view on the host, float32 [n_rows, n_embd]."""

    __slots__ = ("_states",)

    def __init__(self, states: NDArray[np.float32]) -> None:
        if np.ndim(states) != 2:
            shape = list(np.shape(states))
            raise ArgumentError(f"hidden states have shape [n_rows, n_embd], got {shape}")
        self._states = np.ascontiguousarray(states, np.float32)  # as the library reads them

    @classmethod
    def joined(cls, parts: Sequence[Hidden]) -> Hidden:
        """The rows of all parts, in order."""
        return parts[0] if len(parts) == 1 else cls(np.concatenate([p._states for p in parts]))

    def __len__(self) -> int:
        return len(self._states)

    def __getitem__(self, rows: slice | list[int]) -> Hidden:
        return Hidden(self._states[rows])

    @property
    def shape(self) -> tuple[int, int]:
        """Rows, values."""
        n_rows, n_embd = self._states.shape
        return n_rows, n_embd

    def __array__(
        self, dtype: DTypeLike | None = None, copy: bool | None = None
    ) -> NDArray[np.float32]:
        return np.array(self._states, dtype, copy=copy)

    def numpy(self) -> NDArray[np.float32]:
        return self._states


@dataclass(frozen=True, eq=False, slots=True)
class PictureRows:
    """Adjacent rows of one picture.

    states: those entering the first block, one per row, of the width of the model's input.
    is_causal: whether a row sees the rows before it only; else all go through one pass.
    grid: where the model gives rows several positions (M-RoPE), the row and column of each in the
        picture, int32 [n_rows, 2].
    n_before: rows of the same picture before these.
    """

    states: Hidden = field(repr=False)
    is_causal: bool
    grid: NDArray[np.int32] | None = field(default=None, repr=False)
    n_before: int = 0

    def __len__(self) -> int:
        return len(self.states)

    def part(self, first: int, n: int) -> Self:
        """Return n of these rows."""
        rows = slice(first, first + n)
        grid = None if self.grid is None else self.grid[rows]
        return replace(self, states=self.states[rows], grid=grid, n_before=self.n_before + first)


@dataclass(frozen=True, slots=True)
class Pass:
    """The computation of a pass. By default it runs everything, from the tokens to the logits.

    mask: sublayers to skip; K/V of skipped attention is not written.
    enter: states entering ``mask.first_active``, one per row, instead of the tokens' embeddings.
    leave: also return the states entering this block, 1..n_layer (n_layer: those that leave the
        last; n_layer + 1: those that the model's own draft head reads, if it has one), or those of
        several blocks side by side.
    head: the result for the rows with outputs.
    among: with the head "best", the tokens among which the best one is searched; probabilities are
        relative to them, and their logits can be read. At most 32 rows with outputs, and only where
        Context.can_shorten. Ignored where an adapter changes the head.
    n_best: how many of the most likely tokens' logits are wanted; those of others may be -inf.
        0: all.
    embedded: rows of a picture instead of tokens, which continue one sequence. Such a pass is
        whole, has no outputs and is shared with no other rows.
    adapters: LoRA adapters with their scales; None: those of the context.
    weights: handle of a model of the same architecture and sizes whose weights are used instead,
        without adapters; it is open as long as the context.
    in_place: rewrite the K/V that the sequences hold at the rows' positions instead of taking new
        cells. Sequences that share the cells see the new K/V too.
    """

    mask: LayerMask | None = None
    enter: Hidden | None = field(default=None, compare=False)
    leave: int | tuple[int, ...] | None = None
    head: Head = "logits"
    in_place: bool = False
    among: ShortList | None = None
    n_best: int = 0
    adapters: Adapters | None = None
    weights: int | None = None
    embedded: PictureRows | None = field(default=None, compare=False)

    @property
    def is_draft(self) -> bool:
        """Whether it is asked for while drafting: it skips sublayers or has other weights, and
        writes over no K/V."""
        return not (self.mask is None and self.weights is None) and not self.in_place

    @property
    def is_whole(self) -> bool:
        """Whether it runs the full model from the tokens on, with any result."""
        parts = (self.mask, self.enter, self.weights)
        return parts == (None, None, None) and not self.in_place

    @property
    def blocks_left(self) -> tuple[int, ...]:
        """The blocks in ``leave``."""
        if self.leave is None:
            return ()
        return self.leave if isinstance(self.leave, tuple) else (self.leave,)

    def joins(self, other: Pass) -> bool:
        """Return whether rows of both can go through one pass, see ``joined``."""
        if self.embedded is not None or other.embedded is not None:
            return False
        if self.is_whole:
            other = replace(other, head=self.head, n_best=self.n_best)
        return self == other and (self.enter is None) == (other.enter is None)

    @staticmethod
    def joined(parts: Sequence[Pass]) -> Pass:
        """Return the pass for rows of all these, with the logits that one of them needs."""
        first = parts[0]
        entering = [each.enter for each in parts if each.enter is not None]
        if entering:
            return replace(first, enter=Hidden.joined(entering))
        n_best = max(each.n_best for each in parts) if all(each.n_best for each in parts) else 0
        with_most = next((each for each in parts if each.head == "logits"), first)
        return replace(with_most, n_best=n_best)

    def on(self, rows: slice) -> Pass:
        """Return this computation for some of the rows."""
        if self.enter is None:
            return self
        return replace(self, enter=self.enter[rows])


FULL = Pass()
