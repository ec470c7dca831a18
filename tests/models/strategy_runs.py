"""Runs of search strategies, and an objective that needs no model."""

import itertools

import numpy as np

from pyselfspec.masks.layer_mask import entry
from pyselfspec.masks.score import Score
from pyselfspec.masks.space import MaskSupport, Space, Unit
from pyselfspec.selection import strategies
from pyselfspec.selection.runner import run as run_strategy
from pyselfspec.selection.scorer import Scorer
from pyselfspec.selection.strategies import Prune, Setting

N_LAYER = 4


class Toy:
    """A harm for every set of parts: the sum of the parts' own and of pairs', by a seed.

    planted: parts that do no harm, also in pairs.
    """

    n_chunks = 5

    def __init__(self, seed=0, planted=()):
        rng = np.random.default_rng(seed)
        self.alone = rng.gamma(1.0, size=64)
        self.pairs = rng.gamma(0.2, size=(64, 64))
        for i in planted:
            self.alone[i] = self.pairs[i] = self.pairs[:, i] = 0.0
        self.seed = seed
        self.n_scored = 0

    def harm(self, mask):
        parts = [*(2 * il for il in mask.skip_attn), *(2 * il + 1 for il in mask.skip_ffn)]
        pairs = itertools.combinations(sorted(parts), 2)
        return sum(self.alone[parts]) + sum(self.pairs[a, b] for a, b in pairs)

    def scores(self, chunk, base, masks):
        order = [entry(base, mask) for mask in masks]
        assert order == sorted(order)
        for mask in masks:
            self.n_scored += 1
            full = np.full(40, 2.0)
            noise = np.random.default_rng([self.seed, chunk]).normal(0, 0.02, 40)  # common to all
            yield Score.of(full + self.harm(mask) * (1 + noise), full)

    def value(self, mask, score):
        return -score.mean_excess


UNPRUNED = Prune(share=0)


def space_of(n_layer=N_LAYER, unit=Unit.BOTH):
    every = frozenset(range(n_layer))
    return Space.of(MaskSupport(n_layer, every, every), unit)


def strategy(name, space, share=0.5, prune=None):
    """Make a strategy. prune: for strategies that prune."""
    prunes = prune is not None and "prune" in strategies.options_of(name)
    make = strategies.load(name, **({"prune": prune} if prunes else {}))
    return make(Setting(space, share))


def run(
    name, space, share=0.5, prune=None, objective=None, results=None, give_up=None, n_chunks=2,
    progress=lambda _progress: None,
):  # fmt: skip
    scorer = Scorer(objective or Toy(), results, n_chunks, give_up)
    rounds = run_strategy(strategy(name, space, share, prune), scorer, progress=progress)
    return [scored for each in rounds for scored in each.chosen]
