"""Skip everything except the first and the last block, then add back the units that matter most.

The "anti mode" of llama.cpp's pull request 3565, https://github.com/ggml-org/llama.cpp/pull/3565,
which also adds back the runners-up of a round, as many as it prunes.
"""

from __future__ import annotations

from ...errors import ArgumentError
from ..rounds import Round
from . import Rounds, Setting, from_rounds, in_order
from ._prune import Pruning as Options


@from_rounds
def make(setting: Setting, options: Options) -> Rounds:
    space, prune = setting.space, options.prune
    ends = {0, space.n_layer - 1}
    left = [i for i, unit in enumerate(space.units) if unit.first_skipped not in ends]
    if not left:
        raise ArgumentError("the strategy anti needs a unit between the first and the last block")
    skipped = set(left)
    n_target = min(setting.n_max, len(skipped))
    n_back = 1 + (prune.count or 0)
    yield Round(space.full, (space.mask(skipped),), best_only=False)
    while left and len(skipped) > n_target:
        n_rounds = -(-(len(skipped) - n_target) // n_back) - 1
        scored = yield Round(
            space.mask(skipped),
            tuple(space.mask(skipped - {i}) for i in left),
            best_only=True,
            n_later=max(0, n_rounds * len(left) - n_back * n_rounds * (n_rounds + 1) // 2),
        )
        order = in_order(left, scored)
        n_taken = min(n_back, len(skipped) - n_target)
        skipped.difference_update(order[:n_taken])
        rest = order[n_taken:]
        if prune.count is None:
            rest = prune.keep(rest, len(skipped) - n_target)
        left = sorted(rest)
