"""SWIFT's search: sets of one size, mostly random, now and then from a Gaussian process.

Xia et al., "SWIFT: On-the-Fly Self-Speculative Decoding", section 4.1,
https://arxiv.org/abs/2410.06916, with the constants of its code. The first and the last block are
never skipped; the size is 45 % of the rest. Masks are ranked by agreement, as SWIFT does, whatever
else the search is asked to look for.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...errors import ArgumentError
from ...masks.layer_mask import LayerMask
from . import Setting, Trial

RATIO = 0.45
BAYES_INTERVAL = 25
KAPPA = 2.5  # weight of the standard deviation in the upper confidence bound
NOISE = 1e-2
GOOD_ENOUGH = 0.95
N_MAX = 1000
N_WITHOUT_GAIN = 300
N_POOL = 512  # sets among which the process picks

Set = frozenset[int]


class Search:
    def __init__(self, setting: Setting) -> None:
        space = setting.space
        ends = {0, space.n_layer - 1}
        self._inner = [i for i, u in enumerate(space.units) if u.first_skipped not in ends]
        self._n_skip = min(int(RATIO * len(self._inner)), setting.n_max)
        if self._n_skip < 1:
            raise ArgumentError("the search swift needs 3 units or more between the end blocks")
        self._space = space
        self._rng = np.random.default_rng(setting.seed)
        alternate = space.inside(LayerMask.alternate(space.n_layer)) & set(self._inner)
        self._start = [frozenset(sorted(alternate)[: self._n_skip])] if alternate else []
        self._start += [space.inside(mask) for mask in setting.start]
        self._asked: Set = frozenset()
        self._told: dict[Set, float] = {}
        self._n_asked = self._n_since_gain = 0
        self._best = -np.inf

    def ask(self) -> LayerMask | None:
        if (
            self._best > GOOD_ENOUGH
            or self._n_asked >= N_MAX
            or self._n_since_gain >= N_WITHOUT_GAIN
        ):
            return None
        self._n_asked += 1
        if self._start:
            self._asked = self._start.pop(0)
        elif self._n_asked % BAYES_INTERVAL == 0 and self._told:
            self._asked = self._from_process()
        else:
            self._asked = self._random()
        return self._space.mask(self._asked)

    def tell(self, trial: Trial) -> None:
        value = trial.value if trial.score is None else trial.score.agreement
        self._told[self._asked] = value
        self._n_since_gain = 0 if value > self._best else self._n_since_gain + 1
        self._best = max(self._best, value)

    def _random(self) -> Set:
        drawn = self._rng.choice(self._inner, self._n_skip, replace=False)
        return frozenset(int(i) for i in drawn)

    def _from_process(self) -> Set:
        pool = sorted({self._random() for _ in range(N_POOL)} - set(self._told), key=sorted)
        if not pool:
            return self._random()
        seen = list(self._told)
        values = np.array([self._told[s] for s in seen])
        mean, deviation = regress(self._points(seen), values, self._points(pool))
        return pool[int(np.argmax(mean + KAPPA * deviation))]

    def _points(self, sets: list[Set]) -> NDArray[np.float64]:
        return np.array([[i in s for i in self._inner] for s in sets], np.float64)


def regress(
    x: NDArray[np.float64], y: NDArray[np.float64], new: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation of a Gaussian process with a Matern 5/2 kernel at new points,
    float64 [n_new]; its length is the typical distance of two points."""
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
