"""Strategies that go to their end: every one conforms; greedy and anti against enumeration; planted
units are found."""

import itertools

import needs
import pytest
from strategy_runs import N_LAYER, UNPRUNED, Toy, run, space_of

from pyselfspec import LayerMask
from pyselfspec.errors import ArgumentError
from pyselfspec.masks.space import MaskSupport, Space, Unit
from pyselfspec.selection import strategies
from pyselfspec.selection.results import ResultFile
from pyselfspec.selection.rounds import Confident, Scored
from pyselfspec.selection.strategies import Prune, Setting

# --- conformance -----------------------------------------------------------------------------

# clasp needs a model, see test_search.py
ENDING = [n for n in strategies.all_names() if n != "clasp" and not strategies.load(n).endless]
EACH_SCAN = pytest.mark.parametrize("name", ENDING)


def test_the_strategies_are_the_files():
    assert {"single", "rank", "greedy", "anti"} <= set(ENDING)
    with pytest.raises(ArgumentError, match="no strategy 'nonesuch'; there are: anti"):
        strategies.load("nonesuch")


def test_options_that_a_strategy_does_not_have():
    with pytest.raises(ArgumentError, match="the strategy rank has no option storage; it has no"):
        strategies.load("rank", storage="x")
    with pytest.raises(ArgumentError, match="strategy greedy has no option storage; it has prune"):
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


@needs.filelock
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
                          n_chunks=4, progress=cut_off)  # fmt: skip
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
    run(name, space_of(8), progress=progress.append)
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
        with pytest.raises(ArgumentError, match="share is above 0"):
            Setting(space_of(), share)
    with pytest.raises(ArgumentError, match="share to prune"):
        Prune(share=1.0)
    with pytest.raises(ArgumentError, match="-1"):
        Prune(count=-1)


def test_anti_needs_an_inside():
    with pytest.raises(ArgumentError, match="between the first and the last"):
        run("anti", space_of(2))
