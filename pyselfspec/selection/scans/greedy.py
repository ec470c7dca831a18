"""Skip the least harmful unit, then the least harmful one besides it, again and again.

As in llama.cpp's pull request 3565, https://github.com/ggml-org/llama.cpp/pull/3565.
"""

from __future__ import annotations

from ...masks.space import Space
from ..measuring import Pass
from . import Passes, Plan, in_order


def scan(space: Space, plan: Plan) -> Passes:
    n_wanted = space.count(plan.share)
    chosen: list[int] = []
    left = list(range(len(space.units)))
    while left and len(chosen) < n_wanted:
        base = space.mask(chosen)
        n_passes = n_wanted - len(chosen) - 1
        scored = yield Pass(
            base,
            tuple(base | space.units[i] for i in left),
            best_only=True,
            n_later=n_passes * len(left) - n_passes * (n_passes + 1) // 2,
        )
        best, *others = in_order(left, scored)
        chosen.append(best)
        left = sorted(plan.prune.keep(others, n_wanted - len(chosen)))
