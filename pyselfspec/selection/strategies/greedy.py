"""Skip the least harmful unit, then the least harmful one in addition to it, and so on.

From llama.cpp's pull request 3565, https://github.com/ggml-org/llama.cpp/pull/3565. ``climb`` also
removes units.
"""

from __future__ import annotations

from ..rounds import Round
from . import Rounds, Setting, from_rounds, in_order
from ._prune import Pruning as Options


@from_rounds
def make(setting: Setting, options: Options) -> Rounds:
    space, n_target = setting.space, setting.n_max
    chosen: list[int] = []
    left = list(range(len(space.units)))
    while left and len(chosen) < n_target:
        base = space.mask(chosen)
        n_rounds = n_target - len(chosen) - 1
        scored = yield Round(
            base,
            tuple(base | space.units[i] for i in left),
            best_only=True,
            n_later=n_rounds * len(left) - n_rounds * (n_rounds + 1) // 2,
        )
        best, *others = in_order(left, scored)
        chosen.append(best)
        left = sorted(options.prune.keep(others, n_target - len(chosen)))
