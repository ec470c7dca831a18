"""Random sets, of random size: what every other search has to beat."""

from __future__ import annotations

import numpy as np

from ...masks.layer_mask import LayerMask
from . import Setting, Trial


class Search:
    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._start = list(setting.start)
        self._rng = np.random.default_rng(setting.seed)

    def ask(self) -> LayerMask:
        if self._start:
            return self._start.pop(0)
        space = self._setting.space
        n = int(self._rng.integers(1, self._setting.n_max + 1))
        return space.mask(int(i) for i in self._rng.choice(len(space.units), n, replace=False))

    def tell(self, trial: Trial) -> None:
        pass
