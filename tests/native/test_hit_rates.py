"""Observations that one run stores for the next."""

import json

import pytest
from command_line import ONE_THREAD, run
from simulation import table

from pyselfspec import Completion, SamplingParams
from pyselfspec.costs import store
from pyselfspec.costs.account import Account
from pyselfspec.costs.chances import LENGTHS, N_KEPT, N_SURENESS, Chances
from pyselfspec.costs.store import StoreWarning
from pyselfspec.costs.table import N_WIDTH
from pyselfspec.costs.timed import TimedCosts
from pyselfspec.speculate import hit_rates
from pyselfspec.speculate.hit_rates import hit_rates_of

LOOP = [5, 6, 7, 8] * 8


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def timings(n_copied=1, us=1100, times=5):
    costs = TimedCosts(table(0.0, 0.25, shared=0.0, plain_us=1000))
    for _ in range(times):
        costs.observe(0, 0, 0, 0, 1000)
        if n_copied:
            costs.observe(0, 0, 0, 0, us, n_copied)
    return costs


def path_of(context):
    return store.key_of(context).path


def observations(context):
    return store.load(store.key_of(context))


def saved(context):
    """Store what a first run observes here, in a context of its own."""
    for _ in range(30):
        hit_rates_of(context).copies.observe((2, 3), True)
    hit_rates.save(context, timings())
    return path_of(context)


def test_the_next_run_starts_with_it(tiny, new_context):
    model = tiny()
    path = saved(new_context(model))
    assert path.is_file()
    context = new_context(model)
    kept = observations(context)
    assert kept.widths[:2] == pytest.approx((1.0, 1.1))
    assert list(kept.widths) == sorted(kept.widths) and len(kept.widths) == N_WIDTH
    assert hit_rates_of(context).copies.of((2, 3)) > 0.9
    assert hit_rates_of(context).copies.of((1, 3)) == Chances().of((1, 3))


def test_it_is_where_drafts_begin(tiny, new_context):
    model = tiny()
    saved(new_context(model))
    completion = Completion(new_context(model), LOOP)
    costs = completion.controller.decision.costs
    assert costs.full_us[1] / costs.plain_us == pytest.approx(1.1)


def test_nothing_is_kept_of_a_run_that_timed_nothing(tiny, new_context):
    context = new_context(tiny())
    hit_rates.save(context, timings(n_copied=0))
    assert not path_of(context).exists()
    Completion(context, [5]).remember()
    assert not path_of(context).exists()


def test_a_completion_is_told_to_remember(tiny, new_context, monkeypatch):
    # a pass takes less time than a look-up here
    monkeypatch.setattr(Account, "n_rests", lambda *_us: 0)
    model = tiny()
    context = new_context(model, n_ctx=512)
    greedy = SamplingParams(temperature=0, seed=1)
    completion = Completion(context, LOOP, n_predict=300, sampling=greedy)
    for _piece in completion:
        pass
    assert not path_of(context).exists()
    completion.remember()
    assert path_of(context).exists() and completion.stats.n_copied > 8


def test_what_was_always_right_can_be_kept_again_and_again():
    """A share that is exactly one must not become more by rounding."""
    chances = Chances()
    for _ in range(300):
        for _ in range(37):
            chances.observe((0, 3), True)
        chances = Chances(counts=chances.counts)
        assert all(0 <= right <= n for row in chances.counts for right, n in row)


def changed(path, **changes):
    data = json.loads(path.read_text())
    path.write_text(json.dumps(data | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"widths": [1.0]},
        {"widths": [1.0] * (N_WIDTH - 1) + [-1.0]},
        {"widths": [1.0] * (N_WIDTH - 1) + [1e300]},
        {"copies": []},
        {"copies": [[[1, 2]] * N_SURENESS] * (len(LENGTHS) - 1)},
        {"copies": [[[3, 2]] * N_SURENESS] * len(LENGTHS)},
        {"earlier": [[[0, 0]] * N_SURENESS] * len(LENGTHS)},
        {"surprise": 1},
    ],
)
def test_a_file_of_no_use_is_passed_over_and_replaced(changes, tiny, new_context):
    model = tiny()
    path = saved(new_context(model))
    changed(path, **changes)
    context = new_context(model)
    with pytest.warns(StoreWarning, match="is ignored"):
        assert observations(context) is None
        saved(context)
    assert observations(new_context(model)) is not None


def test_what_is_kept_does_not_outweigh_what_comes():
    chances = Chances()
    for _ in range(1000):
        chances.observe((0, 0), True)
    again = Chances(counts=chances.counts)
    assert again.of((0, 0)) == pytest.approx(chances.of((0, 0)))
    assert all(n <= N_KEPT for row in again.counts for _, n in row)
    for _ in range(100):
        again.observe((0, 0), False)
    assert again.of((0, 0)) < 0.5


def test_generate_keeps_what_it_learned(cache, monkeypatch):
    # whether copies of this text pay, and so are timed, is a matter of the machine
    monkeypatch.setattr(TimedCosts, "knows_widths", True)
    prompt = ("-p", "One king, two kings,", "-n", "8", "--temp", "0")
    outcome = run("generate", "demo", *prompt, *ONE_THREAD)
    assert outcome.status == 0
    (kept,) = (cache / "pyselfspec" / "costs").glob("*.json")
    assert len(json.loads(kept.read_text())["widths"]) == N_WIDTH
