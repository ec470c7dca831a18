"""Hill climbing: change one unit of the best mask at a time and keep what is better.

Single units are scored first, which a scan of the same text has done already; the least harmful
ones are added first. ``greedy`` only adds units.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..rounds import Round
from . import Rounds, Setting, from_rounds

Set = frozenset[int]


@from_rounds
def make(setting: Setting) -> Rounds:
    space = setting.space
    values: dict[Set, float] = {}
    units = [frozenset({i}) for i in range(len(space.units))]
    for chosen in (*map(space.inside, setting.start), *units):
        (scored,) = yield Round.of_one(space.mask(chosen))
        values[chosen] = scored.value
    order = sorted(range(len(units)), key=lambda i: -values[units[i]])
    while True:
        here = max(values, key=values.__getitem__)
        for there in neighbours(here, order, setting.n_max):
            if there in values:
                continue
            (scored,) = yield Round.of_one(space.mask(there))
            values[there] = scored.value
            if values[there] > values[here]:
                break
        else:
            return


def neighbours(here: Set, order: list[int], n_max: int) -> Iterator[Set]:
    """Yield the sets with one unit more, one less, one exchanged. order: units, best to skip first.

    >>> [sorted(there) for there in neighbours(frozenset({0}), [1, 0, 2], 2)]
    [[0, 1], [0, 2], [1], [2]]
    """
    outside = [i for i in order if i not in here]
    worst_first = [i for i in reversed(order) if i in here]
    if len(here) < n_max:
        yield from (here | {i} for i in outside)
    if len(here) > 1:
        yield from (here - {i} for i in worst_first)
    yield from (here - {i} | {j} for i in worst_first for j in outside)
