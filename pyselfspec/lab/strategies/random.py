"""Random sets, of random size: what every other strategy has to beat."""

from __future__ import annotations

import numpy as np

from ...selection.rounds import Round
from ...selection.strategies import Rounds, Setting, from_rounds

ENDLESS = True


@from_rounds
def make(setting: Setting) -> Rounds:
    for mask in setting.start:
        yield Round.of_one(mask)
    space = setting.space
    rng = np.random.default_rng(setting.seed)
    while True:
        n = int(rng.integers(1, setting.n_max + 1))
        chosen = rng.choice(len(space.units), n, replace=False)
        yield Round.of_one(space.mask(int(i) for i in chosen))
