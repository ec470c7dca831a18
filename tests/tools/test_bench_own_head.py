"""The bench of heads in models' files: what it counts, and that it ends where a text differs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny_nextn
from click.testing import CliRunner, Result

from tools.bench import own_head
from tools.bench._main import main


@pytest.fixture
def model(tmp_path: Path) -> Path:
    kind = replace(tiny_nextn.HY_V3, is_dense=True, n_nextn=2)
    return tiny_nextn.write(tmp_path / "two.gguf", tiny_nextn.weights(kind), kind)


def bench(model: Path, *options: str) -> Result:
    few = ["--prompts", "2", "--rounds", "3", "--tokens", "16", "--shortlist", "40"]
    return CliRunner().invoke(main, ["own-head", str(model), "-t", "1", *few, *options])


def test_a_run(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    outcome = bench(model, "--length", "2", "--temp", "0.5", "--out", str(out))
    assert outcome.exit_code == 0, outcome.output
    record = json.loads(out.read_text())
    assert record["n_blocks"] == 2 and record["length"] == 2
    for name, mode in record["modes"].items():
        assert len(mode["us_per_token"]) == 3
        assert mode["n_generated"] == 3 * 2 * 16
        if name == own_head.PLAIN:
            assert not mode["n_drafted_at"] and mode["n_steps"] >= mode["n_generated"] - 6
        elif name != own_head.AUTO:
            assert len(mode["n_drafted_at"]) == 2
    assert "| two.gguf | 2 | 0.5 | head, 40 of 317 |" in outcome.stdout


def test_figures_are_shares_and_medians() -> None:
    mode = {"n_generated": 30, "n_steps": 12, "n_drafted_at": [10, 8], "n_accepted_at": [5, 2]}
    drafted = mode | {"us_per_token": [10, 5, 4]}
    plain = mode | {"us_per_token": [10, 10, 10]}
    record = {"model": "m", "n_blocks": 1, "temp": 0.0, "shortlist": 7, "n_vocab": 9}
    record["modes"] = {"plain": plain, "head, short list": drafted}
    [cells] = own_head.cells(record)
    assert cells[3:] == ["head, 7 of 9", "0.50, 0.25", "2.50", "2.000", "1.000 to 2.500"]


def test_another_text_ends_it(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generate = own_head.generate

    def other(context: Any, prompt: Any, mode: own_head.Mode, n: int, temp: float) -> Any:
        return generate(context, prompt, mode, n - (mode.draft is not None), temp)

    monkeypatch.setattr(own_head, "generate", other)
    outcome = bench(model)
    assert outcome.exit_code == 1
    assert outcome.stderr.endswith("Error: head: another text than plain decoding\n")


def test_a_model_without_a_head_is_one_line(demo_path: Path) -> None:
    outcome = bench(demo_path)
    assert outcome.exit_code == 1 and "has no draft head" in outcome.stderr
