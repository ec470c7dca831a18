"""SWIFT's search: sets of one size, mostly random, now and then from a Gaussian process.

Xia et al., "SWIFT: On-the-Fly Self-Speculative Decoding", section 4.1,
https://arxiv.org/abs/2410.06916, with the constants of its code. The first and the last block are
never skipped; the size is 45 % of the rest. Masks are ranked by agreement, as SWIFT does, where the
objective counts it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...errors import ArgumentError
from ...masks.layer_mask import LayerMask
from ...selection.rounds import Round
from ...selection.strategies import Rounds, Setting, from_rounds

RATIO = 0.45
BAYES_INTERVAL = 25
KAPPA = 2.5  # weight of the standard deviation in the upper confidence bound
NOISE = 1e-2
GOOD_ENOUGH = 0.95
N_MAX = 1000
N_WITHOUT_GAIN = 300
N_POOL = 512  # sets among which the process picks

Set = frozenset[int]


@from_rounds
def make(setting: Setting) -> Rounds:
    space, sets = setting.space, Sets(setting)
    start = sets.alternate(setting) + [space.inside(mask) for mask in setting.start]
    values: dict[Set, float] = {}
    n_asked = n_since_gain = 0
    best = -np.inf
    while best <= GOOD_ENOUGH and n_asked < N_MAX and n_since_gain < N_WITHOUT_GAIN:
        n_asked += 1
        if start:
            chosen = start.pop(0)
        elif n_asked % BAYES_INTERVAL == 0 and values:
            chosen = sets.from_process(values)
        else:
            chosen = sets.random()
        (scored,) = yield Round.of_one(space.mask(chosen))
        value = values[chosen] = scored.score.agreement if scored.score.n_runs else scored.value
        n_since_gain = 0 if value > best else n_since_gain + 1
        best = max(best, value)


class Sets:
    """Sets of one size of the units between the end blocks."""

    def __init__(self, setting: Setting) -> None:
        space = setting.space
        ends = {0, space.n_layer - 1}
        self._inner = [i for i, u in enumerate(space.units) if u.first_skipped not in ends]
        self._n_skip = min(int(RATIO * len(self._inner)), setting.n_max)
        if self._n_skip < 1:
            raise ArgumentError("the strategy swift needs 3 units or more between the end blocks")
        self._rng = np.random.default_rng(setting.seed)

    def alternate(self, setting: Setting) -> list[Set]:
        """Return the starting mask of SWIFT, see LayerMask.alternate; an empty list when none of
        its blocks can be skipped."""
        space = setting.space
        inside = space.inside(LayerMask.alternate(space.n_layer)) & set(self._inner)
        return [frozenset(sorted(inside)[: self._n_skip])] if inside else []

    def random(self) -> Set:
        drawn = self._rng.choice(self._inner, self._n_skip, replace=False)
        return frozenset(int(i) for i in drawn)

    def from_process(self, values: dict[Set, float]) -> Set:
        """The one with the highest upper confidence bound, of many at random."""
        pool = sorted({self.random() for _ in range(N_POOL)} - set(values), key=sorted)
        if not pool:
            return self.random()
        known = list(values)
        y = np.array([values[s] for s in known])
        mean, deviation = regress(self._points(known), y, self._points(pool))
        return pool[int(np.argmax(mean + KAPPA * deviation))]

    def _points(self, sets: list[Set]) -> NDArray[np.float64]:
        """Float64 [n_sets, n_inner_units], 1 for units in the set."""
        return np.array([[i in s for i in self._inner] for s in sets], np.float64)


def regress(
    x: NDArray[np.float64], y: NDArray[np.float64], new: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation of a Gaussian process with a Matern 5/2 kernel at new points,
    float64 [n_new]; its length is the typical distance of two points.

    x: float64 [n_known, n_units]; y: float64 [n_known]; new: float64 [n_new, n_units].
    """
    length = np.sqrt(x.shape[1] / 2)
    spread = y.std() or 1.0

    def kernel(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
        squares = (a**2).sum(1)[:, None] + (b**2).sum(1) - 2 * a @ b.T
        r = np.sqrt(5 * np.maximum(squares, 0)) / length
        result: NDArray[np.float64] = (1 + r + r**2 / 3) * np.exp(-r)
        return result

    gain = np.linalg.solve(kernel(x, x) + NOISE * np.eye(len(x)), kernel(x, new))
    mean = y.mean() + gain.T @ (y - y.mean())
    variance = 1 - (gain * kernel(x, new)).sum(0)
    return mean, spread * np.sqrt(np.maximum(variance, 0))
