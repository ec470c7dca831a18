"""A search for planted units, which needs no model, and settings with a tiny one."""

from pyselfspec.masks.score import Score
from pyselfspec.masks.space import MaskSupport, Space, Unit
from pyselfspec.selection.chunks import cut
from pyselfspec.selection.runner import run as run_strategy
from pyselfspec.selection.scorer import Scorer
from pyselfspec.selection.strategies import Setting

N_LAYER = 8
EVERY = frozenset(range(N_LAYER))
SPACE = Space.of(MaskSupport(N_LAYER, EVERY, EVERY), Unit.BOTH)


def settings(tiny, new_context, token_ids):
    """Return a function that makes a setting; from the fixtures of these names."""

    def make(**options):
        context = new_context(tiny(n_layer=N_LAYER))
        chunk = cut(token_ids(64), 64, 1)[0]
        return Setting(**{"space": SPACE, "context": context, "chunk": chunk} | options)

    return make


class Planted:
    """Skipping a planted unit gains 1, any other costs 2. The best set is the planted one."""

    planted = frozenset({3, 4, 7, 8, 10, 13})
    n_chunks = 1

    def __init__(self):
        self.n = 0

    def scores(self, chunk, base, masks):
        for _mask in masks:
            self.n += 1
            yield Score()

    def value(self, mask, score):
        inside = SPACE.inside(mask)
        hit = len(inside & self.planted)
        return float(hit - 2 * (len(inside) - hit))


def trials_of(strategy, objective, budget):
    rounds = run_strategy(strategy, Scorer(objective), budget)
    return [scored for each in rounds for scored in each.scored]
