"""The folder of benches: what every file there keeps to, and what records and tables are."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from pyselfspec import Model
from tools import bench, records
from tools.bench import _main, neighbour
from tools.bench._table import Table

ROOT = Path(__file__).resolve().parents[2]
RECORDS = [json.loads(line) for line in _main.RESULTS.read_text().splitlines()]


@pytest.mark.parametrize("name", bench.names())
def test_a_bench_is_a_command_and_tables(name: str) -> None:
    found = bench.load(name)
    assert isinstance(found.command, click.Command)
    assert found.TABLES and all(isinstance(table, Table) for table in found.TABLES)
    outcome = CliRunner().invoke(_main.main, [name, "--help"])
    assert outcome.exit_code == 0 and found.command.help


def test_every_record_has_one_table() -> None:
    shown = [table.record for name in bench.names() for table in bench.load(name).TABLES]
    assert len(shown) == len(set(shown))
    assert {record["bench"] for record in RECORDS} <= set(shown)


def test_recorded_commands_are_commands() -> None:
    for record in RECORDS:
        words = record["command"].split()
        words = words[words.index("tools/bench.py") + 1 :]
        assert words[0] in bench.names(), record["command"]
        given = {word for word in words if word.startswith("-")}
        command: Any = bench.load(words[0]).command
        command = command.commands[words[1]] if isinstance(command, click.Group) else command
        assert given <= {option for p in command.params for option in p.opts}, record["command"]


def test_the_entry_works_from_anywhere(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tools" / "bench.py"), "--help"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert all(name in done.stdout for name in (*bench.names(), "table"))


@pytest.mark.parametrize("cells", [["a"], ["a", "b", "c"]])
def test_a_row_has_a_cell_for_every_column(cells: list[str]) -> None:
    with pytest.raises(ValueError, match="has not 2 cells"):
        Table("r", ("one", "two"), "<>", lambda _: [cells]).markdown([{"bench": "r"}])
    with pytest.raises(ValueError, match="2 columns, 1 alignments"):
        Table("r", ("one", "two"), "<", lambda _: [])


def test_a_record_says_whose_kernels_ran(tiny_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_path()
    for value, beginning in (("on", "python"), ("off", "PYSELFSPEC_KERNELS=off python")):
        monkeypatch.setenv("PYSELFSPEC_KERNELS", value)
        command = records.provenance("speed", model, 1)["command"]
        assert command == f"{beginning} tools/bench.py speed {model.name} --threads 1"


def test_a_record_names_the_model_as_others_do(tiny_path: Any) -> None:
    """By the digest that sha256sum prints, and by what profiles and stored costs are found with."""
    record = records.provenance("speed", tiny_path(), 1)
    assert record["model_sha256"] == hashlib.sha256(tiny_path().read_bytes()).hexdigest()
    with Model(tiny_path()) as model:
        assert record["fingerprint"] == model.fingerprint


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("masks", ["--rounds", "3", "--tokens", "1"]),
        ("switch", ["--rounds", "5", "--draft-max", "2"]),
        ("scan", ["-c", "64", "--chunks", "2", "--rounds", "1", "--only", "reuse"]),
        ("neighbour", ["--rounds", "1", "--tokens", "1", "--seconds", "1"]),
    ],
)
def test_a_bench_measures(name: str, options: list[str], demo_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "results.jsonl"
    arguments = [name, str(demo_path), "-t", "1", "--out", str(out), *options]
    outcome = CliRunner().invoke(_main.main, arguments)
    assert outcome.exit_code == 0, outcome.output
    record = json.loads(out.read_text())
    assert record["bench"].split()[0] == name
    assert outcome.stdout.count("\n") >= 3 and f"| {demo_path.name} |" in outcome.stdout


def test_speeds_beside_a_neighbour_are_medians_with_their_spread() -> None:
    us = {"ours": {n: [1000, 9000, 2000] for n in ("0", "1", "2", "8")}}
    record = {"model": "m", "threads": 2, "machine": "p", "us": us}
    [cells] = neighbour.cells(record)
    assert cells == ["m", "2", "p", "ours", *["500 (111 to 1000)"] * 4]


def test_the_neighbour_ends_with_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Kept(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Kept)
    with pytest.raises(KeyError), neighbour.neighbour(1):
        assert started[0].poll() is None
        raise KeyError
    assert started[0].poll() == 0


@pytest.mark.parametrize("model", ["", "not a model"])
def test_a_broken_model_is_one_line(model: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_text(model)
    outcome = CliRunner().invoke(_main.main, ["masks", str(path)])
    assert outcome.exit_code == 1 and outcome.stderr.startswith("Error: ")
    assert outcome.stderr.count("\n") == 1
