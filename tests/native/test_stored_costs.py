"""Observed costs: where they are kept, in a file that may hold anything, and what drafters make of
them."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyselfspec import LayerMask, Model
from pyselfspec.costs import store
from pyselfspec.costs.by_bytes import costs_by_bytes
from pyselfspec.costs.chances import Chances
from pyselfspec.costs.lookup import width_costs
from pyselfspec.costs.store import Observations, StoreKey, StoreWarning, key_of
from pyselfspec.costs.table import N_WIDTH
from pyselfspec.speculate.drafters.layer_skip import LayerSkipDrafter
from pyselfspec.util import records

KEY = StoreKey("00", "b", "d", 1, "a")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def observed(key: StoreKey = KEY, growth: float = 0.5) -> Observations:
    counts = Chances().counts
    return Observations(key, tuple(1 + growth * i for i in range(N_WIDTH)), counts, counts)


def loaded(key: StoreKey = KEY) -> Observations | None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return store.load(key)


# the file


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


def test_what_was_saved_last_is_loaded() -> None:
    assert loaded() is None
    store.save(observed())
    store.save(observed(growth=0.25))
    assert loaded() == observed(growth=0.25)
    assert list(KEY.path.parent.iterdir()) == [KEY.path]  # nothing half-written beside it


def changed(**changes: Any) -> dict[str, Any]:
    return json.loads(json.dumps(records.to_dict(observed()))) | {"format": 2} | changes


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
        changed(key=changed()["key"] | {"n_threads": 64}),  # renamed by hand
    ],
    ids=lambda c: repr(c)[:24],
)
def test_corrupt_and_foreign_files_are_ignored_with_one_warning_and_replaced(content: Any) -> None:
    KEY.path.parent.mkdir(parents=True)
    KEY.path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    with pytest.warns(StoreWarning, match="is ignored") as caught:
        assert store.load(KEY) is None
    assert len(caught) == 1
    store.save(observed())
    assert loaded() == observed()


def test_a_folder_in_the_way_is_ignored() -> None:
    KEY.path.mkdir(parents=True)
    with pytest.warns(StoreWarning):
        assert store.load(KEY) is None


# what drafters make of them


def test_costs_are_estimated_from_bytes_and_from_widths_observed_here(
    tiny: Any, new_context: Any
) -> None:
    context, mask = new_context(tiny()), LayerMask.early_exit(4, 2)
    here, file = key_of(context), tiny().file
    for other in (
        {"model": "00"}, {"build": "b"}, {"devices": "d"}, {"n_threads": 9}, {"attention": "a"},
    ):  # fmt: skip
        store.save(observed(replace(here, **other)))
    assert width_costs(context) is None
    assert LayerSkipDrafter(context, mask).costs() == costs_by_bytes(file, mask, shares=True)
    store.save(observed(here))
    assert width_costs(context) == observed().widths
    costs = LayerSkipDrafter(context, mask).costs()
    assert costs == costs_by_bytes(file, mask, shares=True, widths=observed().widths)
    assert costs.levels[0].full_us[3] == pytest.approx(2.5 * costs.levels[0].plain_us)
