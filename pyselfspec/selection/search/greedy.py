"""Walk uphill: from the best mask so far, change one unit at a time, and stay where it is better.

Units that a scan found harmless are tried first: the trials of single units come first, which a
scan on the same text has measured already.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...masks.layer_mask import LayerMask
from . import Setting, Trial


class Search:
    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._seen: dict[frozenset[int], float] = {}
        self._asked: frozenset[int] | None = None
        self._sets = self._walk()

    def ask(self) -> LayerMask | None:
        self._asked = next(self._sets, None)
        return None if self._asked is None else self._setting.space.mask(self._asked)

    def tell(self, trial: Trial) -> None:
        assert self._asked is not None
        self._seen[self._asked] = trial.value

    def _walk(self) -> Iterator[frozenset[int]]:
        space = self._setting.space
        for mask in self._setting.start:
            yield space.inside(mask)
        for i in range(len(space.units)):
            yield frozenset({i})
        order = sorted(range(len(space.units)), key=lambda i: -self._seen[frozenset({i})])
        while True:
            here = max(self._seen, key=self._seen.__getitem__)
            for there in self._neighbours(here, order):
                if there not in self._seen:
                    yield there
                    if self._seen[there] > self._seen[here]:
                        break
            else:
                return

    def _neighbours(self, here: frozenset[int], order: list[int]) -> Iterator[frozenset[int]]:
        """One more, one less, one exchanged."""
        outside = [i for i in order if i not in here]
        worst_first = [i for i in reversed(order) if i in here]
        if len(here) < self._setting.n_max:
            yield from (here | {i} for i in outside)
        if len(here) > 1:
            yield from (here - {i} for i in worst_first)
        yield from (here - {i} | {j} for i in worst_first for j in outside)
