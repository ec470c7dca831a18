"""Measured costs: what is measured, what a table belongs to, and a cache that may hold anything."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from simulation import table

from pyselfspec import LayerMask, Model
from pyselfspec.costs import calibration
from pyselfspec.costs.by_bytes import costs_by_bytes
from pyselfspec.costs.calibration import Calibration, CalibrationWarning, Key, key_of, load, save
from pyselfspec.costs.table import N_WIDTH, CostTable
from pyselfspec.errors import UnsupportedError
from pyselfspec.speculate import calibrate
from pyselfspec.speculate.drafters.layer_skip import Drafter
from pyselfspec.testing.fakes import FakeDrafter, FakeModel

MASK = LayerMask.early_exit(4, 2)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "N_ROUND", 2)


def identity(mask: LayerMask, shares: bool = True) -> dict[str, Any]:
    return {"drafter": "layer-skip", "mask": mask.to_dict(), "shares": shares}


def key(**changes: Any) -> Key:
    return replace(Key("00", "b", "d", 1, "a", 512, identity(MASK)), **changes)


def two_levels() -> CostTable:
    low = table().levels[0]
    return CostTable((low, replace(low, n_past=128)))


# measuring


def _ignore(_share: float) -> None:
    pass


def test_as_many_rounds_as_asked_for(tiny: Any, new_context: Any) -> None:
    context = new_context(tiny())
    for n_rounds in (1, 2):
        made = calibrate.measure(context, Drafter(context, MASK), lambda _: None, n_rounds)
        assert made.n_rounds == n_rounds


@pytest.mark.parametrize("mask", [MASK, LayerMask.skipping(4, ffn=[0])], ids=["shared", "forked"])
@pytest.mark.usefixtures("quick")
def test_every_kind_of_pass_is_timed(mask: LayerMask, tiny: Any, new_context: Any) -> None:
    context = new_context(tiny())
    context.decode([5, 6, 7])
    shares: list[float] = []
    made = calibrate.measure(context, Drafter(context, mask), shares.append)
    assert [costs.n_past for costs in made.table.levels] == [calibrate.N_EMPTY, context.n_ctx // 2]
    for costs in made.table.levels:
        assert len(costs.full_us) == len(costs.verify_us) == N_WIDTH
        assert all(us > 0 for us in (*costs.full_us, *costs.verify_us, costs.token_us))
        assert (costs.last_us > 0) == made.key.drafter["shares"] == (mask == MASK)
        assert (costs.verify_us == costs.full_us) == (mask != MASK)
    assert shares == sorted(shares) and shares[-1] == 1.0
    assert made.n_rounds == 2
    assert [context.sequence(i).n_past for i in range(4)] == [0, 0, 0, 0]


@pytest.mark.usefixtures("quick")
def test_a_drafter_that_needs_no_pass_is_timed_as_well(tiny: Any, new_context: Any) -> None:
    context = new_context(tiny())
    made = calibrate.measure(context, FakeDrafter(FakeModel()), lambda _: None)
    assert made.key == key_of(context, {"drafter": "fake"})
    for costs in made.table.levels:
        assert costs.verify_us == costs.full_us and len(costs.full_us) == N_WIDTH
        assert costs.token_us > 0 and costs.last_us == 0
    save(made)
    assert load(made.key) == made


def test_costs_never_fall_with_width(tiny: Any, new_context: Any, monkeypatch: Any) -> None:
    """Where they seem to, another program ran meanwhile."""
    monkeypatch.setattr(calibrate, "_warm", lambda run: run() and next(times))
    times = iter([float(us) for us in (9, 5, 7, 3, 20, 10, 30)] * 100)
    made = calibrate.measure(new_context(tiny()), Drafter(new_context(tiny()), MASK), _ignore, 1)
    for costs in made.table.levels:
        assert list(costs.full_us) == sorted(costs.full_us)
        assert list(costs.verify_us) == sorted(costs.verify_us)


@pytest.mark.parametrize("quiet_again", [True, False])
def test_a_busy_machine_is_noticed(
    tiny: Any, new_context: Any, monkeypatch: Any, quiet_again: bool
) -> None:
    n_timed = 0

    def timed(run: Any) -> float:
        nonlocal n_timed
        n_timed += 1
        n_rounds = n_timed // (N_WIDTH * 2)
        noisy = not quiet_again or n_rounds < 3
        return run() and 100.0 * (1.3**n_rounds if noisy else 1.0)

    monkeypatch.setattr(calibrate, "_warm", timed)
    context = new_context(tiny())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = calibrate.measure(context, Drafter(context, MASK), _ignore, 3)
    assert made.n_rounds == 3
    assert [w.category for w in caught] == ([] if quiet_again else [calibrate.BusyWarning])


def test_half_a_measurement_is_a_table(tiny: Any, new_context: Any) -> None:
    context = new_context(tiny())
    first = next(calibrate.measured(context, Drafter(context, MASK), _ignore, 1))
    assert len(first.table.levels) == 1
    save(first)
    assert load(first.key) == first


@pytest.mark.parametrize("mask", [MASK, LayerMask.skipping(4, ffn=[0])], ids=["shared", "forked"])
@pytest.mark.usefixtures("quick")
def test_drafts_are_as_long_as_asked_for_whatever_the_model_says(
    mask: LayerMask, tiny: Any, new_context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here its likeliest token always ends the text."""
    context, end, lengths = new_context(tiny()), 2, []
    monkeypatch.setattr(context, "argmax", lambda row: (end, 1.0))
    monkeypatch.setattr(context.model, "is_eog", lambda token: token == end)

    class Counted(Drafter):
        def _chain(self, *args: Any) -> Any:
            draft = yield from super()._chain(*args)
            lengths.append(len(draft.tokens))
            return draft

    calibrate.measure(context, Counted(context, mask), lambda _: None, 1)
    assert lengths == [N_WIDTH - 1, calibrate.N_DRAFT] * 2


@pytest.mark.usefixtures("quick")
def test_a_slow_model_gets_one_round(
    tiny: Any, new_context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate, "BUDGET_S", 0.0)
    monkeypatch.setattr(calibrate, "PREFILL_S", 0.0)
    context = new_context(tiny())
    made = calibrate.measure(context, Drafter(context, MASK), lambda _: None)
    assert made.n_rounds == 1
    # there was no time to fill the context
    want = [calibrate.N_EMPTY, calibrate.N_EMPTY + calibrate.N_PREFILL]
    assert [costs.n_past for costs in made.table.levels] == want


def test_a_model_that_cannot_draft_is_refused(
    tiny: Any, new_context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = new_context(tiny())
    monkeypatch.setattr(context, "can_rollback", False, raising=False)
    with pytest.raises(UnsupportedError, match="cannot take tokens back"):
        calibrate.measure(context, Drafter(context, MASK), lambda _: None)


# what a table belongs to


def test_a_key_tells_apart_what_changes_speed(tiny: Any, tiny_path: Any, new_context: Any) -> None:
    plain = key_of(new_context(tiny()), identity(MASK))
    others = [
        key_of(new_context(tiny(seed=1)), identity(MASK)),
        key_of(new_context(tiny(), n_threads=2), identity(MASK)),
        key_of(new_context(tiny(), n_ctx=1024), identity(MASK)),
        key_of(new_context(tiny()), identity(LayerMask.early_exit(4, 3))),
        key_of(new_context(tiny()), identity(MASK, shares=False)),
        key_of(new_context(tiny()), {"drafter": "another"}),
        key_of(new_context(tiny(), flash_attn=False), identity(MASK)),
        key_of(new_context(tiny(), type_k="q8_0"), identity(MASK)),
        key_of(new_context(tiny(), type_v="q8_0"), identity(MASK)),
    ]
    with Model(tiny_path(), split_mode="none") as model:
        others.append(key_of(new_context(model), identity(MASK)))
    assert key_of(new_context(tiny()), identity(MASK)) == plain
    assert len({k.path for k in [plain, *others]}) == 11
    # another drafter, or size of context, is no other machine: times of full passes are shared
    assert len({k.folder for k in [plain, *others]}) == 7


def test_layers_kept_on_gpus_are_counted(tiny: Any, tiny_path: Any, new_context: Any) -> None:
    """Naming all of them, which is the default, asks for the same table."""
    n_all = tiny().n_gpu_layers
    with Model(tiny_path(), n_gpu_layers=99 if n_all else 0) as model:
        assert model.n_gpu_layers == n_all
        assert key_of(new_context(model), identity(MASK)) == key_of(
            new_context(tiny()), identity(MASK)
        )


def test_contexts_of_one_class_share_a_table(tiny: Any, new_context: Any) -> None:
    assert key_of(new_context(tiny(), n_ctx=768), identity(MASK)) == key_of(
        new_context(tiny(), n_ctx=1024), identity(MASK)
    )


# the cache


def test_what_was_saved_is_loaded() -> None:
    made = Calibration(key(), two_levels(), n_rounds=3)
    path = save(made)
    assert load(key()) == made
    assert list(path.parent.iterdir()) == [path]  # nothing half-written beside it
    assert json.loads(path.read_text())["format"] == Calibration.FORMAT


def test_nothing_is_loaded_without_a_word_when_there_is_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(key()) is None


def good() -> dict[str, Any]:
    return json.loads(json.dumps(Calibration(key(), two_levels(), 3).to_dict()))


def changed(**changes: Any) -> dict[str, Any]:
    return good() | changes


def with_level(**changes: Any) -> dict[str, Any]:
    data = good()
    data["table"]["levels"][0] |= changes
    return data


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"7",
        b"[" * 100_000,
        {},
        changed(format=99),
        changed(format=1),
        changed(key={}),
        changed(key=good()["key"] | {"n_threads": 64}),  # renamed by hand
        changed(table={"levels": []}),
        changed(table={"levels": good()["table"]["levels"][::-1]}),
        changed(table={"levels": 5}),
        with_level(full_us=[1.0]),
        with_level(full_us=["x"] * N_WIDTH),
        with_level(verify_us=[-1.0] * N_WIDTH),
        with_level(token_us=float("nan")),
        with_level(token_us=None),
        with_level(surprise=1),
    ],
    ids=lambda c: repr(c)[:24],
)
def test_corrupt_and_foreign_files_are_ignored_with_one_warning(content: Any) -> None:
    path = key().path
    path.parent.mkdir(parents=True)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    with pytest.warns(CalibrationWarning, match="is ignored") as caught:
        assert load(key()) is None
    assert len(caught) == 1


def test_a_folder_in_the_way_is_ignored() -> None:
    key().path.mkdir(parents=True)
    with pytest.warns(CalibrationWarning):
        assert load(key()) is None


def test_costs_are_measured_ones_or_estimated_from_bytes(tiny: Any, new_context: Any) -> None:
    context = new_context(tiny())
    guessed = costs_by_bytes(tiny().file, MASK, True)
    assert Drafter(context, MASK).costs() == guessed
    save(Calibration(key_of(context, identity(MASK)), two_levels(), 3))
    assert Drafter(context, MASK).costs() == two_levels()
    other = LayerMask.early_exit(4, 1)
    assert Drafter(context, other).costs() == costs_by_bytes(tiny().file, other, True)


def test_width_costs_come_from_any_table_of_this_model_here(tiny: Any, new_context: Any) -> None:
    context = new_context(tiny())
    assert calibration.width_costs(context) is None
    here = key_of(context, identity(MASK))
    for i, other in enumerate(
        ({"model": "00"}, {"build": "b"}, {"devices": "d"}, {"n_threads": 9}, {"attention": "a"})
    ):
        path = save(Calibration(replace(here, **other), two_levels(), i))
        assert calibration.width_costs(context) is None
    path.write_text("{")  # no table at all
    save(Calibration(replace(here, n_ctx=4096, drafter={"drafter": "another"}), two_levels(), 1))
    costs = two_levels().levels[0]
    assert calibration.width_costs(context) == tuple(us / costs.plain_us for us in costs.full_us)
