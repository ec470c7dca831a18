"""Several drafters as one: look-ups first, then draft passes after the looked-up tokens.

The limit decides how much of each to take, see ``DraftLimit.split``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from ...costs.table import CostTable
from ...errors import ArgumentError
from ...masks.layer_mask import LayerMask
from ...runtime.kv import KVSequence
from ...runtime.passes import Hidden
from ..draft_names import SIGN
from ..limits import DraftLimit
from ..pass_requests import Work
from ..types import Draft, Verdict
from . import Drafter, LookupDrafter


def combine(drafters: Sequence[Drafter]) -> Drafter:
    """Return one drafter for several. Raises ArgumentError if more than one of them runs passes."""
    if len(drafters) == 1:
        return drafters[0]
    lookups = [each for each in drafters if isinstance(each, LookupDrafter)]
    others = [each for each in drafters if not isinstance(each, LookupDrafter)]
    if len(others) > 1:
        raise ArgumentError(
            f"at most one of several drafters may run passes, got {len(others)}: "
            + ", ".join(each.name for each in others)
        )
    return CombinedDrafter(lookups, others[0] if others else None)


class CombinedDrafter(Drafter):
    """Starts a draft with the look-up that expects most accepted tokens.

    other: the drafter that runs passes, or None.
    """

    def __init__(self, lookups: Sequence[LookupDrafter], other: Drafter | None) -> None:
        self._lookups = lookups
        self._other = other
        self._all: list[Drafter] = [*lookups, *([other] if other else [])]
        self.name = SIGN.join(each.name for each in self._all)

    @property
    def last(self) -> Drafter:
        """The drafter that runs passes, or a look-up if none does."""
        return self._all[-1]

    @property
    def mask(self) -> LayerMask | None:
        return self.last.mask

    def costs(self) -> CostTable:
        return self.last.costs()

    @property
    def hidden_layers(self) -> tuple[int, ...]:
        return self.last.hidden_layers

    def draft(self, history: Sequence[int], limit: DraftLimit) -> Draft | Work[Draft]:
        looked_up = [
            each.look_up(history, limit.max_lookup, limit.chance_min).with_source(each.name)
            for each in self._lookups
        ]
        found = max(looked_up, key=lambda draft: draft.n_expected)
        if self._other is None:
            return limit.truncate(found)
        start, rest = limit.split(found)
        return start if rest.n_max == 0 else self._extended(self._other, start, history, rest)

    def _extended(
        self, other: Drafter, start: Draft, history: Sequence[int], limit: DraftLimit
    ) -> Work[Draft]:
        draft = other.extend(start, history, limit)
        if not isinstance(draft, Draft):
            draft = yield from draft
        return draft.with_source(other.name)

    def begin(self, seq: KVSequence, history: Sequence[int]) -> None:
        for each in self._all:
            each.begin(seq, history)

    def n_seen(self, seq: KVSequence, history: Sequence[int]) -> int:
        return min(each.n_seen(seq, history) for each in self._all)

    def on_hidden(self, seq: KVSequence, pos: int, tokens: Sequence[int], states: Hidden) -> None:
        for each in self._all:
            each.on_hidden(seq, pos, tokens, states)

    def on_verified(self, draft: Draft, verdict: Verdict, best: Callable[[int], int]) -> None:
        for each in self._all:
            each.on_verified(draft, verdict, best)

    def accept(self, verdict: Verdict) -> None:
        for each in self._all:
            each.accept(verdict)

    def close(self) -> None:
        with ExitStack() as stack:
            for each in self._all:
                stack.callback(each.close)
