"""pyselfspec layers calibrate: what it measures and keeps, and what generate makes of it."""

from __future__ import annotations

import importlib
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from command_line import ONE_THREAD, run, run_alone
from fixture_types import TinyPath
from simulation import table
from tiny_hybrids import write_hybrid

from pyselfspec import DEMO, LayerMask
from pyselfspec.costs.store import Calibration, StoredCosts
from pyselfspec.costs.table import N_WIDTH, Costs, CostTable
from pyselfspec.speculate import calibrate as calibration_run

EXIT = ("--exit-layer", "2")
HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None


@pytest.fixture(autouse=True)
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(calibration_run, "N_ROUND", 1)


def calibrate(path: Path, *args: str | Path) -> Any:
    outcome = run("layers", "calibrate", path, *ONE_THREAD, "-c", "256", *args)
    assert outcome.traceback is None, repr(outcome.traceback)
    return outcome


def test_json_is_what_is_kept(tiny_path: TinyPath) -> None:
    report = calibrate(tiny_path(), *EXIT, "--json").json
    kept = Path(report.pop("file"))
    assert kept.is_file()
    mask = LayerMask.early_exit(4, 2)
    assert report["format"] == StoredCosts.FORMAT
    assert report["key"]["drafter"] == {
        "drafter": "layer-skip",
        "mask": mask.to_dict(),
        "shares": True,
    }
    assert report["key"]["n_threads"] == 1
    for level in report["table"]["levels"]:
        assert len(level["full_us"]) == N_WIDTH
    data = json.loads(kept.read_text())
    (calibration,) = data["calibrations"]
    parts = {name: calibration.pop(name) for name in ("n_ctx", "drafter")}
    assert {"format": data["format"], "key": data["key"] | parts} | calibration == report


def test_a_cache_that_cannot_be_written_is_found_out_before_the_work(
    tiny_path: TinyPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    module = importlib.import_module("pyselfspec.cli.layers.calibrate")
    monkeypatch.setattr(module, "measured", lambda *_: pytest.fail("measured in vain"))
    outcome = calibrate(tiny_path(), *EXIT)
    assert outcome.status == 1 and "file" in outcome.stderr and outcome.stderr.count("\n") == 1


def test_a_table_that_cannot_be_kept_is_printed(
    tiny_path: TinyPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_key: Any, _calibration: Any) -> None:
        raise OSError(28, "No space left on device", "calibration")

    module = importlib.import_module("pyselfspec.cli.layers.calibrate")
    earlier = Calibration(256, {}, table(), 1)
    monkeypatch.setattr(StoredCosts, "calibration", lambda *_: earlier)
    monkeypatch.setattr(module.store, "save_calibration", full)
    outcome = calibrate(tiny_path(), *EXIT)
    assert outcome.status == 1 and "No space left" in outcome.stderr
    assert "best length" in outcome.stdout


@pytest.mark.parametrize("n_levels", [0, 1])
def test_ctrl_c_keeps_what_was_measured(
    tiny_path: TinyPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_levels: int
) -> None:
    rounds, left = calibration_run._rounds, n_levels

    def interrupted(*args: Any) -> Any:
        nonlocal left
        if left == 0:
            raise KeyboardInterrupt
        left -= 1
        return rounds(*args)

    monkeypatch.setattr(calibration_run, "_rounds", interrupted)
    outcome = calibrate(tiny_path(), *EXIT)
    assert outcome.status == 130 and outcome.stdout == ""
    assert outcome.stderr.startswith("stopped; ") and outcome.stderr.count("\n") == 1
    kept = [json.loads(path.read_text()) for path in tmp_path.rglob("*.json")]
    tables = [each["table"] for stored in kept for each in stored["calibrations"]]
    assert [len(table["levels"]) for table in tables] == [1] * n_levels


def test_text_for_people(tiny_path: TinyPath) -> None:
    outcome = calibrate(tiny_path(), *EXIT)
    assert outcome.status == 0
    assert outcome.stderr.startswith("saved to ") and outcome.stderr.count("\n") == 1
    assert "ms per token" in outcome.stdout and "best length" in outcome.stdout
    assert outcome.stdout.count("full pass") == outcome.stdout.count("verification pass") == 2
    assert outcome.stdout.count("draft token by weight bytes") == 1


@pytest.mark.parametrize(
    ("lengths", "verdict"),
    [
        ((0, 0, 0, 0, 0, 0), "do not pay here, even if 95% "),
        ((0, 0, 0, 0, 0, 3), "pay here if 95% or more "),
        ((1, 2, 3, 4, 5, 6), "pay here if 50% or more "),
    ],
)
def test_what_the_table_means_is_said(lengths: tuple[int, ...], verdict: str) -> None:
    module = importlib.import_module("pyselfspec.cli.layers.calibrate")
    assert f"drafts {verdict}of their tokens" in module._verdict(lengths)


def test_without_a_mask_it_is_the_one_generate_takes() -> None:
    mask = calibrate(DEMO, "--json").json["key"]["drafter"]["mask"]
    report = run("generate", "demo", "-p", "the", "-n", "1", "--json", *ONE_THREAD).json
    assert report["mask"] == mask == run("models", "info", "demo", "--json").json["draft_mask"]


def test_an_ordinary_model_has_its_full_passes_timed(tiny_path: TinyPath) -> None:
    """Copies cost nothing but those."""
    path = tiny_path()
    report = calibrate(path, "--json").json
    assert report["key"]["drafter"] == {"drafter": "ngram"}
    for level in report["table"]["levels"]:
        assert level["full_us"] == level["verify_us"] and level["token_us"] == 0
    shown = calibrate(path).stdout
    assert "full pass, 1 to 16 tokens" in shown and "draft token" not in shown


@pytest.mark.parametrize("args", [("--mask", "-", "--skip-ffn", "1"), ("--exit-layer", "9")])
def test_bad_masks(args: tuple[str, ...], tiny_path: TinyPath) -> None:
    outcome = calibrate(tiny_path(), *args)
    assert outcome.status in (1, 2) and "Traceback" not in outcome.stderr


def test_a_recurrent_memory_is_timed_between_checkpoints(tmp_path: Path) -> None:
    outcome = calibrate(write_hybrid(tmp_path / "lfm2.gguf", "lfm2"), "--json")
    assert outcome.status == 0, outcome.stderr
    assert all(level["full_us"][0] > 0 for level in outcome.json["table"]["levels"])


@pytest.mark.skipif(HAS_MATPLOTLIB, reason="matplotlib is installed")
def test_plot_without_matplotlib_says_what_to_install(tiny_path: TinyPath, tmp_path: Path) -> None:
    outcome = calibrate(tiny_path(), "--plot", tmp_path / "c.png")
    assert outcome.status == 1
    assert "pyselfspec[plot]" in outcome.stderr
    assert list(tmp_path.iterdir()) == []  # said before anything was measured


@pytest.mark.skipif(not HAS_MATPLOTLIB, reason="needs matplotlib")
@pytest.mark.parametrize("name", ["c.png", "c.svg"])
def test_plot(name: str, tiny_path: TinyPath, tmp_path: Path) -> None:
    file = tmp_path / name
    assert calibrate(tiny_path(), *EXIT, "--plot", file).status == 0
    assert file.stat().st_size > 5000


@pytest.mark.skipif(not HAS_MATPLOTLIB, reason="needs matplotlib")
def test_a_plot_names_all_its_lines_and_the_model() -> None:
    from pyselfspec.plots import costs

    full = tuple(100.0 + i for i in range(N_WIDTH))
    table = CostTable((Costs(0, full, full, 30.0, 0.0),))
    figure = costs.draw(table, table, "a model.gguf")
    assert figure.get_suptitle() == "a model.gguf"
    _left, right, lengths = figure.axes
    legend = right.get_legend()
    assert legend is not None
    names = [text.get_text() for text in legend.get_texts()]
    lines = [*right.get_lines(), *lengths.get_lines()]
    assert names == [line.get_label() for line in lines] and len(names) == 2
    most = max(lengths.get_lines()[0].get_ydata())
    assert most < lengths.get_ylim()[1] <= most + 1


@pytest.mark.skipif(not HAS_MATPLOTLIB, reason="needs matplotlib")
@pytest.mark.parametrize(
    ("name", "reason"), [("c.txt", "a picture is a"), ("nowhere/c.png", "is no folder")]
)
def test_plot_into_what_is_no_picture(
    name: str, reason: str, tiny_path: TinyPath, tmp_path: Path
) -> None:
    outcome = calibrate(tiny_path(), "--plot", tmp_path / name)
    assert outcome.status == 1 and reason in outcome.stderr


def test_generate_warns_once_of_a_broken_table(tiny_path: TinyPath, tmp_path: Path) -> None:
    report = calibrate(tiny_path(), *EXIT, "--json").json
    Path(report["file"]).write_text("{")
    args = ("-p", "the", "-n", "4", "-c", "256", *ONE_THREAD, *EXIT)
    outcome = run_alone("generate", tiny_path(), *args, env={"XDG_CACHE_HOME": str(tmp_path)})
    assert outcome.status == 0
    assert outcome.stderr.count("Warning: ") == 1
    assert "is ignored" in outcome.stderr
