"""Several drafters as one: tokens that were looked up first, behind them what passes draft.

The limit chooses between the two, and how much of each, see ``DraftLimit.choose``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from ..costs.table import CostTable
from ..errors import ArgumentError
from ..masks.layer_mask import LayerMask
from ..runtime.kv import KVSequence
from ..runtime.passes import Hidden
from .draft_names import SIGN
from .drafters import Drafter, GoesOn, Hears, Lookup, follower, name_of
from .requests import Work
from .types import Draft, DraftLimit, Verdict, copied


def joined(drafters: Sequence[Drafter]) -> Drafter:
    """Raises ArgumentError for more than one that needs passes."""
    if len(drafters) == 1:
        return drafters[0]
    lookups = [each for each in drafters if isinstance(each, Lookup)]
    others = [each for each in drafters if not isinstance(each, Lookup)]
    if len(others) > 1:
        raise ArgumentError(
            f"of drafters that are joined one may need passes, not {len(others)}: "
            + ", ".join(map(name_of, others))
        )
    return Joined(lookups, others[0] if others else None)


class Joined:
    """lookups: the one that expects most is heard. other: drafts with passes, or None."""

    def __init__(self, lookups: Sequence[Lookup], other: Drafter | None) -> None:
        self._lookups = lookups
        self._other = other
        self._follower = follower(other)
        self._all: list[Drafter] = [*lookups, *([other] if other else [])]
        self._hearing = [each for each in self._all if isinstance(each, Hears)]

    @property
    def mask(self) -> LayerMask | None:
        return self._other.mask if self._other else None

    @property
    def identity(self) -> Mapping[str, Any]:
        """That of the drafter whose passes cost something, under the names of all."""
        names = SIGN.join(map(name_of, self._all))
        return {**(self._other.identity if self._other else {}), "drafter": names}

    def costs(self) -> CostTable:
        return self._all[-1].costs()

    def begin(self, seq: KVSequence, history: Sequence[int]) -> None:
        for each in self._all:
            each.begin(seq, history)

    @property
    def leave(self) -> tuple[int, ...]:
        return self._follower.leave if self._follower else ()

    def known(self, seq: KVSequence, history: Sequence[int]) -> int:
        return self._follower.known(seq, history) if self._follower else len(history)

    def saw(self, seq: KVSequence, pos: int, tokens: Sequence[int], states: Hidden) -> None:
        if self._follower:
            self._follower.saw(seq, pos, tokens, states)

    def draft(self, history: Sequence[int], limit: DraftLimit) -> Draft | Work[Draft]:
        found = [(each.guesses(history, limit.n_looked_up), each) for each in self._lookups]
        guesses, lookup = max(found, key=lambda pair: pair[0].n_expected)
        other = self._other
        if other is None:
            draft = limit.cut(*guesses)
            return replace(draft, sources=(name_of(lookup),) * len(draft.tokens))
        n, rest = limit.choose(guesses.chances)
        start = copied(guesses.tokens[:n], guesses.chances)
        start = replace(start, sources=(name_of(lookup),) * n)
        if rest.n_max == 0 or not (n == 0 or isinstance(other, GoesOn)):
            return start
        return self._behind(start, other, history, rest)

    def _behind(
        self, start: Draft, other: Drafter, history: Sequence[int], limit: DraftLimit
    ) -> Work[Draft]:
        if isinstance(other, GoesOn):
            draft = other.draft_behind(start, history, limit)
        else:
            draft = other.draft(history, limit)
        if not isinstance(draft, Draft):
            draft = yield from draft
        n = len(draft.tokens) - len(start.tokens)
        return replace(draft, sources=start.sources + (name_of(other),) * n)

    def hear(self, draft: Draft, verdict: Verdict, rows: range, best: Callable[[int], int]) -> None:
        for each in self._hearing:
            each.hear(draft, verdict, rows, best)

    def accept(self, verdict: Verdict) -> None:
        for each in self._all:
            each.accept(verdict)

    def close(self) -> None:
        with ExitStack() as stack:
            for each in self._all:
                stack.callback(each.close)
