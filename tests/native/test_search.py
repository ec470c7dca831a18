"""Strategies within a budget: one conformance suite for all, and each one's own promise."""

import itertools
import json
import sys

import pytest
from command_line import run as run_command
from planted_units import N_LAYER, SPACE, Planted, settings, trials_of

from pyselfspec import LayerMask
from pyselfspec.cli.layers import _measuring
from pyselfspec.costs.by_bytes import ByteCosts
from pyselfspec.errors import ArgumentError
from pyselfspec.masks.space import Space, Unit
from pyselfspec.selection import objectives, strategies, tables
from pyselfspec.selection.chunks import cut
from pyselfspec.selection.objectives import expected_speed
from pyselfspec.selection.rounds import best_of
from pyselfspec.selection.runner import Budget
from pyselfspec.selection.runner import run as run_strategy
from pyselfspec.selection.scorer import Scorer
from pyselfspec.selection.strategies import Setting

EACH = pytest.mark.parametrize("name", strategies.all_names())


def load(name):
    if name == "optuna":
        pytest.importorskip("optuna")
    return strategies.load(name)


@pytest.fixture
def setting(tiny, new_context, token_ids):
    """With a context for those that look at hidden states."""
    return settings(tiny, new_context, token_ids)


# --- conformance -----------------------------------------------------------------------------


@EACH
def test_strategies_suggest_units_within_the_share(name, setting):
    made = setting(share=0.6)
    trials = trials_of(load(name)(made), Planted(), Budget(40))
    assert trials
    for trial in trials:
        inside = SPACE.inside(trial.mask)
        assert trial.mask == SPACE.mask(inside) and inside
        if name not in ("exit", "anti"):  # all exits are of interest; anti starts with the most
            assert len(inside) <= made.n_max


@EACH
def test_strategies_repeat_with_their_seed(name, setting):
    def masks(seed):
        made = setting(seed=seed)
        return [t.mask for t in trials_of(load(name)(made), Planted(), Budget(30))]

    assert masks(1) == masks(1)
    if name in ("random", "optuna", "swift"):
        assert masks(1) != masks(2)


@EACH
def test_strategies_respect_their_budget(name, setting):
    """A round that has begun is finished."""
    for budget, most in ((Budget(3), 3), (Budget(minutes=1e-9), 1)):
        asked = []
        made = load(name)(setting())
        rounds = run_strategy(made, Scorer(Planted()), budget)
        asked = [len(each.scored) for each in rounds]
        assert sum(asked[:-1]) < most
        if budget.trials and name not in ("single", "rank", "greedy", "anti"):
            assert sum(asked) == 3


@EACH
def test_a_mask_asked_for_again_is_not_scored_again(name, setting):
    objective = Planted()
    trials = trials_of(load(name)(setting()), objective, Budget(60))
    assert objective.n == len({t.mask for t in trials})


@EACH
def test_known_masks_come_early(name, setting):
    start = SPACE.mask([2, 5, 9])
    trials = trials_of(load(name)(setting(start=(start,))), Planted(), Budget(5))
    if name not in ("climb", "optuna", "random", "swift"):
        pytest.skip("has a fixed list")
    assert start in [t.mask for t in trials[:2]]


@pytest.mark.parametrize("options", [{}, {"trials": 0}, {"minutes": 0}, {"minutes": float("nan")}])
def test_budgets_of_nothing(options):
    with pytest.raises(ArgumentError):
        Budget(**options)


# --- each one's own --------------------------------------------------------------------------


def best(name, seed, budget, setting):
    return best_of(trials_of(load(name)(setting(seed=seed)), Planted(), Budget(budget)))


def test_optuna_finds_planted_units_and_beats_random(setting):
    """At equal budget, for every seed."""
    for seed in range(3):
        print("seed", seed)
        found, drawn = (best(name, seed, 150, setting) for name in ("optuna", "random"))
        assert found.value > drawn.value
        assert len(SPACE.inside(found.mask) & Planted.planted) >= 5


def test_climb_finds_to_the_planted_units(setting):
    found = best("climb", 0, 60, setting)
    assert SPACE.inside(found.mask) == Planted.planted


def test_climb_ends_on_a_summit(setting):
    trials = trials_of(load("climb")(setting()), Planted(), Budget(10**6))
    assert len(trials) < 500 and best_of(trials).value == len(Planted.planted)


def test_exits_are_all_there(setting):
    masks = [t.mask for t in trials_of(load("exit")(setting()), Planted(), Budget(99))]
    assert masks == [LayerMask.early_exit(N_LAYER, keep) for keep in range(1, N_LAYER)]


def test_every_strategy_runs_on_a_model(tiny, new_context, token_ids):
    model = tiny(n_layer=5, zero_attn=(1, 3), zero_ffn=(3,), late_scale=0.4)
    texts = cut(token_ids(64), 64, 1)
    context = new_context(model)
    space = Space.of(context.mask_support, Unit.BOTH)
    values = {}
    for name in strategies.all_names():
        if name == "optuna" and "optuna" not in sys.modules:
            continue
        objective = expected_speed.Objective(
            objectives.Setting(context, texts, ByteCosts(model.file), window=8)
        )
        made = Setting(space, context=context, chunk=texts[0])
        values[name] = best_of(trials_of(strategies.load(name)(made), objective, Budget(30))).value
    assert values["climb"] >= max(values.values()) - 0.05
    assert values["climb"] > 1.0 > min(values.values()) > 0.5


# --- the command -----------------------------------------------------------------------------

SMALL = ("-t", "1", "--chunk-size", "64", "--window", "8", "--chunks", "2", "--trials", "12")


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("the king and the hen had one red tin and ten eggs on a tree. " * 40)
    return path


@pytest.mark.parametrize("objective", objectives.names())
def test_the_command_finds_and_keeps_a_mask(objective, tiny_path, text, monkeypatch):
    """The gain is made up, as a toy's passes take no time."""
    monkeypatch.setattr(_measuring, "measured_gain", lambda *_args, **_options: 1.2)
    path = tiny_path(zero_attn=(1, 2), zero_ffn=(1, 2), late_scale=0.3)
    options = ("--text", text, "--objective", objective, "--json")
    got = run_command("layers", "search", path, *SMALL, *options).json
    assert got["best"]["value"] == max(t["value"] for t in got["trials"])
    assert got["objective"] == objective
    counts = objectives.load(objective).about.counts_drafts
    assert (got["profile"] is None) == (not counts)
    if counts:
        shown = run_command("layers", "profile", "show", path, "--json").json
        assert shown["mask"] == got["best"]["mask"]


def test_what_a_search_did_not_find_is_said(tiny_path, text):
    options = ("--text", text, "--strategy", "random", "--trials", "2", "--objective", "agreement")
    outcome = run_command(
        "layers", "search", tiny_path(), *SMALL[:-2], *options, "--max-cost", "0.001"
    )
    assert outcome.status == 0
    assert "no mask that was tried costs at most --max-cost 0.001" in outcome.stderr
    best, *rest = outcome.stdout.splitlines()
    expected = float(best.partition("expected ")[2].partition("x")[0])
    assert bool(rest) == (expected <= 1)
    assert not rest or rest == [tables.NOTHING_PAYS]


def test_a_sweep_over_exits(tiny_path, text, tmp_path):
    path, table = tiny_path(late_scale=0.3), tmp_path / "exits.csv"
    options = ["--text", text, "--strategy", "exit", "--csv", table]
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        pass
    else:
        options += ["--plot", tmp_path / "exits.png"]
    assert run_command("layers", "search", path, *SMALL, *options).status == 0
    rows = [line.split(",") for line in table.read_text().splitlines()]
    assert rows[0] == ["exit", "draft_max", "expected_speed"]
    assert [(r[0], r[1]) for r in rows[1:]] == [
        (str(e), str(n)) for e, n in itertools.product((1, 2, 3), range(1, 9))
    ]
    if len(options) > 6:
        assert (tmp_path / "exits.png").stat().st_size > 5000


def test_optuna_keeps_its_study_and_takes_it_up(tiny_path, text, tmp_path):
    optuna = pytest.importorskip("optuna")
    storage = f"sqlite:///{tmp_path}/study.db"
    options = ("--text", text, "--strategy", "optuna", "--storage", storage, "--json")
    for n in (12, 24):
        assert (
            len(run_command("layers", "search", tiny_path(), *SMALL, *options).json["trials"]) == 12
        )
        study = optuna.load_study(study_name="pyselfspec", storage=storage)
        assert len(study.trials) == n
        assert json.dumps(study.best_trial.user_attrs["mask"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--trials", "0"), "not an integer of at least 1"),
        (("--csv", "exits.csv"), "--strategy exit"),
        (("--max-cost", "2"), "above 0 and at most 1"),
        (
            ("--storage", "sqlite:///s.db", "--strategy", "climb"),
            "--storage goes with --strategy optuna",
        ),
    ],
)
def test_options_that_cannot_be(options, message, tiny_path):
    outcome = run_command("layers", "search", tiny_path(), *options)
    assert outcome.status == 2 and message in outcome.stderr


@pytest.mark.parametrize("storage", ["nonsense", "sqlite:////nowhere/study.db"])
def test_studies_that_cannot_be_kept(storage, tiny_path, text):
    pytest.importorskip("optuna")
    options = ("--text", text, "--strategy", "optuna", "--storage", storage)
    outcome = run_command("layers", "search", tiny_path(), *SMALL, *options)
    assert outcome.status == 1 and f"cannot keep a study in {storage}" in outcome.stderr
    assert outcome.stderr.count("\n") == 1


def test_a_table_that_could_not_be_written_ends_it_before_the_search(tiny_path, text, tmp_path):
    out = tmp_path / "r.jsonl"
    options = ("--text", text, "--results", out, "--strategy", "exit", "--csv", "nowhere/exits.csv")
    outcome = run_command("layers", "search", tiny_path(), *SMALL, *options)
    assert outcome.status == 1 and "no folder" in outcome.stderr and not out.exists()


def test_without_optuna_the_error_says_which_extra(tiny_path, text, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    outcome = run_command(
        "layers", "search", tiny_path(), *SMALL, "--text", text, "--strategy", "optuna"
    )
    assert outcome.status == 1 and "pip install 'pyselfspec[search]'" in outcome.stderr
