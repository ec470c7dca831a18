"""Every unit once, skipped alone; then the least harmful units together, in growing numbers.

This takes little longer than ``single``. Units that are harmless alone may be harmful together,
which only ``greedy`` notices.
"""

from __future__ import annotations

from ..rounds import Round
from . import Rounds, Setting, from_rounds, in_order

N_POINTS = 8


@from_rounds
def make(setting: Setting) -> Rounds:
    space, n = setting.space, setting.n_max
    counts = sorted({max(1, round(n * i / N_POINTS)) for i in range(1, N_POINTS + 1)})
    scored = yield Round(space.full, space.units, best_only=False, n_later=len(counts))
    order = in_order(range(len(space.units)), scored)
    together = tuple(space.mask(order[:count]) for count in counts)
    yield Round(space.full, together, best_only=False)
