"""The bench of speed: what its table derives, and that a run measures what it says."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from fixture_types import TinyPath
from simulation import Q8_0, table

from pyselfspec.bench import pass_times
from pyselfspec.costs.speedup import best_length
from tools.bench import _modes, speed
from tools.bench._main import main
from tools.bench._modes import Mode

COSTS = table(c=0.3, growth=Q8_0, shared=0.25, plain_us=10_000).levels[0]


def run(**changes: Any) -> dict[str, Any]:
    """Ten steps of three drafted tokens, 20 of 30 accepted, six drafts cut by a wrong token."""
    us = COSTS.step_us(3, 3) * 10 / 30
    fields = {
        "us": [us, us, us],
        "steps": {"3,3": 10},
        "n_tokens": 30,
        "n_accepted": 20,
        "n_rejected": 6,
        "n_texts": 3,
        "n_same": 2,
        "peak_kb": 1010,
    }
    return fields | changes


PLAIN = run(us=[10_000, 11_000, 9_000], steps={"0,0": 30}, n_accepted=0, n_rejected=0, peak_kb=1000)


@pytest.mark.parametrize(
    "name", ["", "0", "unshared-", "unshared-0", "unshared-auto", "nope", "100"]
)
def test_what_is_no_mode(name: str) -> None:
    with pytest.raises(click.BadParameter):
        Mode.parse(name)


def test_predictions_add_up_the_steps_that_were_made() -> None:
    mixed = run(steps={"3,3": 5, "2,1": 4, "0,0": 2})
    us = 5 * COSTS.step_us(3, 3) + 4 * COSTS.step_us(2, 1) + 2 * COSTS.plain_us
    assert speed.predicted(mixed, COSTS, "auto") == pytest.approx(30 * 10_000 / us)
    # where nothing is shared, verification passes are full ones
    us = 10 * (3 * 3000 + 10_000 * Q8_0[3])
    assert speed.predicted(run(), COSTS, "unshared-3") == pytest.approx(30 * 10_000 / us)


def test_typical_costs_are_medians_one_by_one() -> None:
    slow_memory = replace(COSTS, token_us=9000.0)
    slow_cores = replace(COSTS, verify_us=tuple(2 * us for us in COSTS.verify_us), last_us=0.0)
    assert _modes.typical([slow_memory, slow_cores, COSTS]) == COSTS


def test_a_row() -> None:
    record = {
        "model": "m",
        "command": "python tools/bench.py",
        "costs": json.loads(json.dumps(asdict(COSTS))),
        "runs": {"plain": PLAIN, "3": run()},
    }
    (cells,) = speed.cells(record)
    fast = COSTS.step_us(3, 3) / 3
    assert cells[:4] == ["m", "3", f"{20 / 26:.2f}", f"{10_000 / fast:.3f}"]
    assert cells[4] == f"{9_000 / fast:.3f} to {11_000 / fast:.3f}"
    assert cells[5] == cells[3]  # these steps cost what they should
    assert cells[6] == f"{best_length(COSTS, 20 / 26)[0]:.2f}"
    assert cells[7:] == ["3.00", "2 of 3", "+1.0%"]
    (cells,) = speed.cells(record | {"command": "PYSELFSPEC_KERNELS=off python tools/bench.py"})
    assert cells[0] == "m (upstream's kernels)"


def test_a_run(tiny_path: TinyPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(pass_times, "N_ROUND", 1)
    path, out = tiny_path(qtype="Q8_0", late_scale=0.05), tmp_path / "results.jsonl"
    args = ["speed", str(path), "-t", "1", "--out", str(out), "--tokens", "16", "--pairs", "5"]
    modes = ("auto", "3", "unshared-3")
    args += [part for name in modes for part in ("--mode", name)]
    outcome = CliRunner().invoke(main, args)
    assert outcome.exception is None, outcome.output
    record = json.loads(out.read_text())
    assert record["runs"].keys() == {"plain", *modes}
    for name, made in record["runs"].items():
        assert len(made["us"]) == 6  # three prompts, two seeds each
        # the first step is left out, with as many tokens as it has
        assert 6 * (16 - 4) <= made["n_tokens"] <= 6 * 15
        assert made["peak_kb"] > 0
        if name != "plain":
            assert (made["n_texts"], made["n_same"]) == (6, 6)
    assert record["runs"]["3"]["steps"].keys() <= {"3,3", "2,2", "1,1", "0,0"}
    assert len(speed.cells(record)) == 3
