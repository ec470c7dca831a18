"""Strategies that go to their end: every one conforms; greedy and anti against enumeration; planted
units are found."""

import itertools

import numpy as np
import pytest

from pyselfspec import LayerMask
from pyselfspec.errors import ArgumentError
from pyselfspec.masks.layer_mask import entry
from pyselfspec.masks.score import Score
from pyselfspec.masks.space import MaskSupport, Space, Unit
from pyselfspec.selection import objectives, strategies
from pyselfspec.selection.chunks import cut
from pyselfspec.selection.results import ResultFile
from pyselfspec.selection.rounds import Confident, Scored
from pyselfspec.selection.runner import run as run_strategy
from pyselfspec.selection.scorer import Scorer
from pyselfspec.selection.strategies import Prune, Setting

UNPRUNED = Prune(share=0)
N_LAYER = 4


def space_of(n_layer=N_LAYER, unit=Unit.BOTH):
    every = frozenset(range(n_layer))
    return Space.of(MaskSupport(n_layer, every, every), unit)


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


def strategy(name, space, share=0.5, prune=None):
    """prune: for those that prune."""
    prunes = prune is not None and "prune" in strategies.options_of(name)
    make = strategies.load(name, **({"prune": prune} if prunes else {}))
    return make(Setting(space, share))


def run(
    name, space, share=0.5, prune=None, objective=None, results=None, give_up=None, n_chunks=2,
    follow=lambda progress: None,
):  # fmt: skip
    scorer = Scorer(objective or Toy(), results, n_chunks, give_up)
    outcomes = run_strategy(strategy(name, space, share, prune), scorer, follow=follow)
    return [scored for outcome in outcomes for scored in outcome.chosen]


# --- conformance -----------------------------------------------------------------------------

# clasp needs a model, see test_search.py
ENDING = [n for n in strategies.names() if n != "clasp" and not strategies.load(n).endless]
EACH_SCAN = pytest.mark.parametrize("name", ENDING)


def test_the_strategies_are_the_files():
    assert {"single", "rank", "greedy", "anti"} <= set(ENDING)
    with pytest.raises(ArgumentError, match="no strategy 'nonesuch'; there are: anti"):
        strategies.load("nonesuch")


def test_options_that_a_strategy_does_not_have():
    with pytest.raises(ArgumentError, match="storage is no option of the strategy rank; it has no"):
        strategies.load("rank", storage="x")
    with pytest.raises(ArgumentError, match="no option of the strategy greedy; it has prune"):
        strategies.load("greedy", storage="x")


@EACH_SCAN
@pytest.mark.parametrize("unit", list(Unit))
@pytest.mark.parametrize("share", [0.01, 0.45, 1.0])
@pytest.mark.parametrize("prune", [Prune(), UNPRUNED, Prune(count=2)])
@pytest.mark.parametrize("n_layer", [3, 6])
def test_scans_end_and_skip_only_units(name, unit, share, prune, n_layer):
    space = space_of(n_layer, unit)
    n_inner = sum(0 < unit.first_skipped < n_layer - 1 for unit in space.units)
    whole = unit in (Unit.BOTH, Unit.BLOCK)
    if (name == "swift" and 0.45 * n_inner < 1) or (name == "exit" and not whole):
        with pytest.raises(ArgumentError, match=f"the strategy {name} needs"):
            run(name, space, share, prune)
        return
    found = run(name, space, share, prune)
    assert found and all(isinstance(s, Scored) for s in found)
    for scored in found:
        assert scored.mask.n_layer == n_layer and scored.mask.n_active >= 1
        assert scored.mask == space.mask(space.inside(scored.mask))


@EACH_SCAN
def test_scans_repeat(name):
    assert run(name, space_of()) == run(name, space_of())


@EACH_SCAN
def test_resumed_equals_uninterrupted(name, tmp_path):
    """Cut off after every fifth score, over and over, as Ctrl-C would."""
    header = dict.fromkeys(["build", "fingerprint"], "x")
    space = space_of(6)
    want = run(name, space, give_up=Confident(), n_chunks=4)
    path, n_runs, n_scored = tmp_path / "scan.jsonl", 0, 0
    got = None
    while got is None:
        n_runs += 1
        toy = Toy()

        def cut_off(_progress, toy=toy):
            if toy.n_scored >= 5:
                raise KeyboardInterrupt

        with ResultFile(path, header) as results:
            try:
                got = run(name, space, objective=toy, results=results, give_up=Confident(),
                          n_chunks=4, follow=cut_off)  # fmt: skip
            except KeyboardInterrupt:
                pass
        n_scored += toy.n_scored
    whole = Toy()
    run(name, space, give_up=Confident(), objective=whole, n_chunks=4)
    assert got == want and n_runs > 3
    assert n_scored == whole.n_scored  # nothing is measured twice


@EACH_SCAN
def test_time_left_is_never_forgotten(name):
    """The estimate counts what is to come: it covers at least half of the truth at the start."""
    progress = []
    run(name, space_of(8), follow=progress.append)
    n = progress[-1].n_done
    assert all(p.n_done <= p.n_total for p in progress)
    if name in ("single", "rank", "greedy"):  # others cannot know at the start
        assert 0.5 * n <= progress[0].n_total <= 2 * n
    assert progress[-1].n_total == n


# --- greedy and anti by enumeration ----------------------------------------------------------


def greedy_by_enumeration(toy, space, n):
    """From the harm of every subset, without passes, prefixes or chunks."""
    harm = {
        frozenset(subset): toy.harm(space.mask(subset))
        for k in range(n + 1)
        for subset in itertools.combinations(range(len(space.units)), k)
    }
    chosen, path = frozenset(), []
    for k in range(1, n + 1):
        chosen = min((s for s in harm if len(s) == k and s > chosen), key=lambda s: harm[s])
        path.append(space.mask(chosen))
    return path


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("give_up", [None, Confident()])
@pytest.mark.parametrize("prune", [UNPRUNED, Prune()])
def test_greedy_against_enumeration(seed, give_up, prune):
    space, toy = space_of(), Toy(seed)
    found = run("greedy", space, 0.5, prune, toy, give_up=give_up, n_chunks=5)
    assert [s.mask for s in found] == greedy_by_enumeration(toy, space, 4)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("give_up", [None, Confident()])
@pytest.mark.parametrize("prune", [UNPRUNED, Prune()])
def test_anti_against_enumeration(seed, give_up, prune):
    space, toy = space_of(), Toy(seed)
    found = run("anti", space, 0.25, prune, toy, give_up=give_up, n_chunks=5)
    skipped = {i for i, u in enumerate(space.units) if u.first_skipped in (1, 2)}
    path = [space.mask(skipped)]
    while len(skipped) > 2:
        skipped = min((skipped - {i} for i in skipped), key=lambda s: toy.harm(space.mask(s)))
        path.append(space.mask(skipped))
    assert [s.mask for s in found] == path


@pytest.mark.parametrize("name", ["greedy", "anti", "rank"])
def test_planted_units_are_found(name):
    planted = [3, 4, 6, 9]
    toy = Toy(1, planted)
    space = space_of(6)
    found = run(name, space, 4 / 12, None, toy, give_up=Confident())
    assert space.mask(planted) in [s.mask for s in found]


def test_pruning_saves_work_and_reaches_the_end():
    space = space_of(16)
    work = {}
    for prune in (UNPRUNED, Prune(0.2)):
        toy = Toy(2)
        found = run("greedy", space, 0.45, prune, toy)
        work[prune] = toy.n_scored
        assert len(found) == 14
    assert work[Prune(0.2)] < 0.85 * work[UNPRUNED]


def test_the_pull_requests_pruning_ends_at_a_third():
    """Two of three candidates of each pass are gone for good: 22 of 64 parts."""
    found = run("greedy", space_of(32), 1.0, Prune(count=2), n_chunks=1)
    assert len(found) == 22


def test_giving_up_saves_work():
    work = {}
    for give_up in (None, Confident()):
        toy = Toy(3)
        run("greedy", space_of(8), objective=toy, give_up=give_up, n_chunks=5)
        work[give_up] = toy.n_scored
    assert work[Confident()] < 0.6 * work[None]


# --- on models -------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["perplexity", "agreement"])
@pytest.mark.parametrize("name", ["greedy", "anti"])
def test_nothing_given_up_or_reused_changes_the_result(
    objective, name, tiny, new_context, token_ids
):
    model = tiny(n_layer=5, zero_attn=(1,), zero_ffn=(3,), late_scale=0.3)
    texts = cut(token_ids(4 * 64), 64, 1)
    space = space_of(5)
    found = []
    for give_up, prune, cache in ((None, UNPRUNED, 0), (Confident(), Prune(), 2**20)):
        setting = objectives.Setting(new_context(model), texts, cache_bytes=cache)
        made = objectives.load(objective)(setting)
        chosen = run(name, space, 0.4, prune, made, give_up=give_up, n_chunks=4)
        found.append(([s.mask for s in chosen], made.n_sublayers))
    (plain, plain_work), (quick, quick_work) = found
    assert quick == plain
    assert quick_work < 0.8 * plain_work
    if (
        objective == "agreement"
    ):  # text that means nothing can be less of a surprise to half a model
        planted = plain[1 if name == "greedy" else -1]
        assert 1 in planted.skip_attn and 3 in planted.skip_ffn


# --- spaces and settings ------------------------------------------------------------------------


def test_units_are_what_the_model_can_skip():
    support = MaskSupport(3, frozenset({0, 2}), frozenset({0, 1}))
    attn, ffn = LayerMask.skipping(3, attn=[2]), LayerMask.skipping(3, ffn=[1])
    assert (
        attn in Space.of(support, Unit.ATTN).units and len(Space.of(support, Unit.ATTN).units) == 2
    )
    assert ffn in Space.of(support, Unit.FFN).units
    assert len(Space.of(support, Unit.BOTH).units) == 4
    assert Space.of(support, Unit.BLOCK).units == (LayerMask.skipping(3, attn=[0], ffn=[0]),)


def test_a_model_without_such_units_is_refused():
    with pytest.raises(ArgumentError, match="no attn unit"):
        Space.of(MaskSupport(3, frozenset(), frozenset({1})), Unit.ATTN)


def test_a_share_is_at_least_one_unit_and_never_everything():
    assert space_of().count(0.001) == 1
    assert space_of().count(1.0) == 2 * N_LAYER - 1
    assert space_of(unit=Unit.ATTN).count(1.0) == N_LAYER
    assert space_of(unit=Unit.BLOCK).count(1.0) == N_LAYER - 1


def test_settings_out_of_range():
    for share in (0, -1, 1.1, float("nan")):
        with pytest.raises(ArgumentError, match="share to skip"):
            Setting(space_of(), share)
    with pytest.raises(ArgumentError, match="share to prune"):
        Prune(share=1.0)
    with pytest.raises(ArgumentError, match="-1"):
        Prune(count=-1)


def test_anti_needs_an_inside():
    with pytest.raises(ArgumentError, match="between the first and the last"):
        run("anti", space_of(2))
