"""Measured costs: what is measured, what it belongs to, and a file that may hold anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from simulation import table

from pyselfspec import Context, LayerMask, Model
from pyselfspec.costs import store
from pyselfspec.costs.by_bytes import costs_by_bytes
from pyselfspec.costs.chances import Chances
from pyselfspec.costs.lookup import mask_costs, width_costs
from pyselfspec.costs.store import (
    Calibration,
    Observations,
    StoredCosts,
    StoreKey,
    StoreWarning,
    key_of,
)
from pyselfspec.costs.table import N_WIDTH, CostTable
from pyselfspec.errors import UnsupportedError
from pyselfspec.runtime.pass_result import PassResult
from pyselfspec.runtime.passes import FULL, Pass, Rows
from pyselfspec.speculate import calibrate
from pyselfspec.speculate.drafters.layer_skip import Drafter
from pyselfspec.speculate.pass_requests import PassRequest, run_requests
from pyselfspec.testing.fakes import FakeDrafter, FakeModel
from pyselfspec.util import records

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


KEY = StoreKey("00", "b", "d", 1, "a")


def calibration(**changes: Any) -> Calibration:
    return replace(Calibration(512, identity(MASK), two_levels(), 3), **changes)


def stored(key: StoreKey = KEY) -> StoredCosts:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return store.load(key)


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
        assert (costs.last_us > 0) == made.drafter["shares"] == (mask == MASK)
        assert (costs.verify_us == costs.full_us) == (mask != MASK)
    assert shares == sorted(shares) and shares[-1] == 1.0
    assert made.n_rounds == 2
    assert [context.sequence(i).n_past for i in range(4)] == [0, 0, 0, 0]


@pytest.mark.usefixtures("quick")
def test_a_drafter_that_needs_no_pass_is_timed_as_well(tiny: Any, new_context: Any) -> None:
    context = new_context(tiny())
    made = calibrate.measure(context, FakeDrafter(FakeModel()), lambda _: None)
    assert made.drafter == {"drafter": "fake"} and made.n_ctx >= context.n_ctx
    for costs in made.table.levels:
        assert costs.verify_us == costs.full_us and len(costs.full_us) == N_WIDTH
        assert costs.token_us > 0 and costs.last_us == 0
    store.save_calibration(KEY, made)
    assert stored().calibration(context.n_ctx, {"drafter": "fake"}) == made


class AsynchronousDevice:
    """Lets a context compute as a GPU does: a pass returns at once, and takes its time when a
    result is read or waited for. The first pass of each width takes FIRST_S longer."""

    PASS_S, FIRST_S = 0.004, 0.06

    def __init__(self, context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
        self._owed_s = 0.0
        self._widths: set[int] = set()
        run, argmax = context.run, context.argmax

        def run_later(rows: Rows, what: Pass = FULL) -> PassResult:
            self._owed_s += self.PASS_S + self.FIRST_S * (len(rows) not in self._widths)
            self._widths.add(len(rows))
            return run(rows, what)

        def argmax_then(row: int) -> tuple[int, float]:
            self.wait()
            return argmax(row)

        monkeypatch.setattr(context, "run", run_later)
        monkeypatch.setattr(context, "argmax", argmax_then)
        monkeypatch.setattr(context, "wait", self.wait)
        monkeypatch.setattr(context.model, "n_gpu_layers", 1)

    def wait(self) -> None:
        time.sleep(self._owed_s)
        self._owed_s = 0.0


def test_devices_are_waited_for_at_the_end_of_each_timing(
    tiny: Any, new_context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass whose result is not read takes its own time, and programs that a device compiles for
    its first passes take none."""
    context = new_context(tiny(late_scale=0.25))
    device = AsynchronousDevice(context, monkeypatch)
    made = calibrate.measure(context, Drafter(context, MASK), _ignore, n_rounds=1)
    level = made.table.levels[0]
    pass_us = 1e6 * device.PASS_S
    for us in (*level.full_us, *level.verify_us, level.token_us, level.last_us):
        assert pass_us <= us < pass_us + 0.5e6 * device.FIRST_S


def test_texts_share_the_time_of_a_pass_on_a_device(
    tiny: Any, new_context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text that reads its results first does not take all of it."""
    context = new_context(tiny())
    device = AsynchronousDevice(context, monkeypatch)
    requests = [PassRequest(Rows.of(seq_id, 0, [5, 6]), FULL) for seq_id in range(2)]
    one, other = run_requests(context, requests)
    assert one.us == other.us >= 1e6 * device.PASS_S


def test_costs_never_fall_with_width(tiny: Any, new_context: Any, monkeypatch: Any) -> None:
    """Times that fall with the width mean that another program ran during the measurement."""
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
    store.save_calibration(KEY, first)
    assert stored().calibrations == (first,)


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


def test_a_model_that_cannot_draft_is_refused(tiny: Any, new_context: Any) -> None:
    context = new_context(tiny())
    context.abilities = replace(context.abilities, can_rollback=False, max_rollback=0)
    with pytest.raises(UnsupportedError, match="cannot take tokens back"):
        calibrate.measure(context, Drafter(context, MASK), lambda _: None)


# what a table belongs to


def test_a_key_tells_apart_what_changes_speed(tiny: Any, tiny_path: Any, new_context: Any) -> None:
    plain = key_of(new_context(tiny()))
    others = [
        key_of(new_context(tiny(seed=1))),
        key_of(new_context(tiny(), n_threads=2)),
        key_of(new_context(tiny(), flash_attn=False)),
        key_of(new_context(tiny(), type_k="q8_0")),
        key_of(new_context(tiny(), type_v="q8_0")),
    ]
    with Model(tiny_path(), split_mode="none") as model:
        others.append(key_of(new_context(model)))
    assert key_of(new_context(tiny())) == plain == key_of(new_context(tiny(), n_ctx=1024))
    assert len({k.path for k in [plain, *others]}) == 7


def test_layers_kept_on_gpus_are_counted(tiny: Any, tiny_path: Any, new_context: Any) -> None:
    """Naming all of them, which is the default, gives the same file."""
    n_all = tiny().n_gpu_layers
    with Model(tiny_path(), n_gpu_layers=99 if n_all else 0) as model:
        assert model.n_gpu_layers == n_all
        assert key_of(new_context(model)) == key_of(new_context(tiny()))


def test_calibrations_are_of_one_drafter_and_one_class_of_contexts() -> None:
    made = calibration(n_ctx=1024)
    all_of_them = StoredCosts(KEY, (made,))
    for n_ctx in (513, 768, 1024):
        assert all_of_them.calibration(n_ctx, identity(MASK)) == made
    for n_ctx, drafter in (
        (512, identity(MASK)),
        (1025, identity(MASK)),
        (1024, identity(LayerMask.early_exit(4, 3))),
        (1024, identity(MASK, shares=False)),
        (1024, {"drafter": "another"}),
    ):
        assert all_of_them.calibration(n_ctx, drafter) is None


# the file


def test_what_was_saved_is_loaded() -> None:
    made, other = calibration(), calibration(drafter={"drafter": "another"})
    path = store.save_calibration(KEY, made)
    store.save_calibration(KEY, other)
    assert stored() == StoredCosts(KEY, (made, other))
    again = calibration(n_rounds=7)
    store.save_calibration(KEY, again)
    assert stored().calibrations == (other, again)
    assert list(path.parent.iterdir()) == [path]  # nothing half-written beside it
    assert json.loads(path.read_text())["format"] == StoredCosts.FORMAT


def test_nothing_is_loaded_without_a_warning_if_there_is_nothing() -> None:
    assert stored() == StoredCosts(KEY)


def test_processes_that_write_at_once_lose_nothing(own_cache: Path) -> None:
    code = (
        "import sys; from test_calibration import *\n"
        "for i in range(10):\n"
        "    made = calibration(drafter={'drafter': sys.argv[1] + str(i)})\n"
        "    store.save_calibration(KEY, made)\n"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    both = [subprocess.Popen([sys.executable, "-c", code, name], env=env) for name in "ab"]
    assert [each.wait() for each in both] == [0, 0]
    assert len(stored().calibrations) == 20


def good() -> dict[str, Any]:
    return json.loads(json.dumps(records.to_dict(StoredCosts(KEY, (calibration(),)))))


def changed(**changes: Any) -> dict[str, Any]:
    return good() | changes


def with_table(**changes: Any) -> dict[str, Any]:
    data = good()
    data["calibrations"][0]["table"] |= changes
    return data


def with_level(**changes: Any) -> dict[str, Any]:
    data = good()
    data["calibrations"][0]["table"]["levels"][0] |= changes
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
        changed(key={}),
        changed(key=good()["key"] | {"n_threads": 64}),  # renamed by hand
        changed(observations={}),
        with_table(levels=[]),
        with_table(levels=good()["calibrations"][0]["table"]["levels"][::-1]),
        with_table(levels=5),
        with_level(full_us=[1.0]),
        with_level(full_us=["x"] * N_WIDTH),
        with_level(verify_us=[-1.0] * N_WIDTH),
        with_level(token_us=float("nan")),
        with_level(token_us=None),
        with_level(surprise=1),
    ],
    ids=lambda c: repr(c)[:24],
)
def test_corrupt_and_foreign_files_are_ignored_with_one_warning_and_replaced(content: Any) -> None:
    KEY.path.parent.mkdir(parents=True)
    KEY.path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    with pytest.warns(StoreWarning, match="is ignored") as caught:
        assert store.load(KEY) == StoredCosts(KEY)
    assert len(caught) == 1
    store.save_calibration(KEY, calibration())
    assert stored().calibrations == (calibration(),)


def test_a_folder_in_the_way_is_ignored() -> None:
    KEY.path.mkdir(parents=True)
    with pytest.warns(StoreWarning):
        assert store.load(KEY) == StoredCosts(KEY)


# which measurement counts


def test_a_drafters_costs_are_calibrated_or_estimated_from_bytes(
    tiny: Any, new_context: Any
) -> None:
    context = new_context(tiny())
    assert Drafter(context, MASK).costs() == costs_by_bytes(tiny().file, MASK, True)
    made = calibration(n_ctx=store.rounded_size(context.n_ctx))
    store.save_calibration(key_of(context), made)
    assert Drafter(context, MASK).costs() == two_levels()
    other = LayerMask.early_exit(4, 1)
    assert Drafter(context, other).costs() == costs_by_bytes(tiny().file, other, True)


def test_width_costs_come_from_any_calibration_then_from_observations(
    tiny: Any, new_context: Any
) -> None:
    context = new_context(tiny())
    assert width_costs(context) is None
    here = key_of(context)
    for other in (
        {"model": "00"}, {"build": "b"}, {"devices": "d"}, {"n_threads": 9}, {"attention": "a"},
    ):  # fmt: skip
        store.save_calibration(replace(here, **other), calibration())
        assert width_costs(context) is None
    counts = Chances().counts
    observed = Observations(tuple(1 + 0.5 * i for i in range(N_WIDTH)), counts, counts)
    store.update(here, lambda before: replace(before, observations=observed))
    assert width_costs(context) == observed.widths
    assert mask_costs(context).widths is None, "scans do not depend on earlier texts"
    made = calibration(n_ctx=4096, drafter={"drafter": "another"})
    store.save_calibration(here, made)
    costs = two_levels().levels[0]
    assert width_costs(context) == tuple(us / costs.plain_us for us in costs.full_us)
    assert mask_costs(context).widths == width_costs(context)
    assert stored(here) == StoredCosts(here, (made,), observed)
