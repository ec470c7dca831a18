"""Draft with the model's first blocks, and with more of them for uncertain tokens.

Schuster et al., "Confident Adaptive Language Modeling", https://arxiv.org/abs/2207.07061: a token
leaves at the first exit whose most likely token is likely enough. There, deeper blocks get the K/V
of tokens that left early from copied states. Here the states at the exit are kept, and the first
token that goes deeper takes all tokens before it along, in one pass: deeper exits see exact K/V.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from ...errors import ArgumentError, UnsupportedError
from ...masks.layer_mask import LayerMask
from ...runtime.context import Context
from ...runtime.kv import KVSequence
from ...runtime.passes import Hidden, Pass, Rows
from ...speculate.drafters.layer_skip.shared_blocks import SharedBlocks
from ...speculate.limits import DraftLimit, Pick
from ...speculate.pass_requests import PassRequest, Work
from ..early_exit import EarlyExitDrafter


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the drafter.

    exits: rising numbers of blocks to leave after, as in "2,4"; "": after a quarter of the blocks
        and after half.
    confidence: least probability of the most likely token to leave at an exit, 0 to 1.
    """

    exits: str = ""
    confidence: float = 0.6

    def __post_init__(self) -> None:
        if not 0 <= self.confidence <= 1:
            raise ArgumentError(f"confidence is 0 to 1, got {self.confidence:g}")
        self.numbers()

    def numbers(self) -> tuple[int, ...]:
        """Return the exits. Raises ArgumentError unless they are rising numbers."""
        try:
            found = tuple(int(each) for each in self.exits.split(",")) if self.exits else ()
        except ValueError:
            found = (0,)
        if any(a >= b for a, b in pairwise((0, *found))):
            raise ArgumentError(
                f'exits are rising numbers of blocks with commas, as "2,4", got {self.exits!r}'
            )
        return found


def make(context: Context, options: Options) -> DynamicExitDrafter:
    """Return a drafter. Raises ArgumentError for an exit after the model's last block."""
    n_layer = context.model.n_layer
    exits = options.numbers() or tuple(sorted({max(1, n_layer // 4), max(1, n_layer // 2)}))
    if exits[-1] > n_layer:
        raise ArgumentError(f"the model has {n_layer} blocks, got an exit after {exits[-1]}")
    return DynamicExitDrafter(context, exits, options.confidence)


@dataclass(slots=True)
class Deeper:
    """The blocks between two exits, for the rows of one draft.

    left: hidden states of the first rows after these blocks.
    """

    mask: LayerMask
    leave: int | None  # None: after the last block
    left: list[Hidden] = field(default_factory=list)
    n_run: int = 0

    @classmethod
    def between(cls, n_layer: int, first: int, last: int) -> Deeper:
        mask = LayerMask.early_exit(n_layer, last) | LayerMask.enter_at(n_layer, first)
        return cls(mask, last if last < n_layer else None)

    def rows(
        self, seq: KVSequence, pos: int, text: Sequence[int], states: Hidden, head: Pass
    ) -> PassRequest:
        """Return a request for all rows that have not run here yet. Their cells exist already.

        pos: of the first row. states: the hidden states that enter, of all rows. head: a pass with
            the output that this one needs.
        """
        rows = Rows.of(seq.seq_id, pos + self.n_run, text[self.n_run :], "last")
        entering = states[self.n_run :]
        what = replace(head, mask=self.mask, enter=entering, leave=self.leave, in_place=True)
        return PassRequest(rows, what)

    def keep(self, hidden: Hidden | None, n_rows: int) -> Hidden | None:
        """Add the states of the new rows; return those of all rows."""
        self.n_run = n_rows
        if hidden is None:
            return None
        self.left.append(hidden)
        return Hidden.joined(self.left)


class DynamicExitDrafter(EarlyExitDrafter):
    """Drafts with the first exit that is confident.

    exits: rising. Raises UnsupportedError where passes cannot enter at one of them.
    """

    name = "dynamic-exit"

    def __init__(self, context: Context, exits: Sequence[int], confidence: float) -> None:
        super().__init__(context, exits[0])
        if not all(map(context.can_enter, exits[:-1])):
            raise UnsupportedError(
                f"architecture {context.model.file.architecture}: passes cannot enter at all of "
                f"the exits {', '.join(map(str, exits))}; draft with layer-skip"
            )
        self._exits = tuple(exits)
        self._confidence = confidence
        self._deeper: list[Deeper] = []

    def start(self) -> None:
        n_layer = self._context.model.n_layer
        self._deeper = [Deeper.between(n_layer, *both) for both in pairwise(self._exits)]

    def pick(
        self, pos: int, text: Sequence[int], n_run: int, shared: SharedBlocks, limit: DraftLimit
    ) -> Work[Pick]:
        """Run exit after exit until one is confident."""
        head = Pass(self._exit, head=self._context.best_head if limit.draw is None else "logits")
        rows = Rows.of(self._seq.seq_id, pos + n_run, text[n_run:], "last")
        result = yield PassRequest(rows, shared.drafting(head))
        shared.keep(result.hidden)
        pick, states = limit.select(result, len(rows) - 1), shared.states
        for deeper in self._deeper:
            if pick.p >= self._confidence:
                break
            request = deeper.rows(self._seq, pos, text, states, head)
            result = yield request
            pick = limit.select(result, len(request.rows) - 1)
            left = deeper.keep(result.hidden, len(text))
            if left is None:
                break
            states = left
        return pick
