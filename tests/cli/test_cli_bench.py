"""pyselfspec bench, end to end on small models."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from bench_results import from_csv, from_json_lines
from command_line import run, run_alone
from rich.cells import cell_len
from rich.console import Console

from pyselfspec.bench import formats, pass_times, upstream
from pyselfspec.bench.tables import Table, speeds
from pyselfspec.cli import bench as command

PROMPTS = ("-p", "Once upon a time", "-p", "The old king")
SMALL = ("-t", "1", "-c", "256", "-n", "12", "--temp", "0", *PROMPTS)


def bench(*args: str | Path, **env: str) -> Any:
    return run("bench", "demo", *SMALL, *args, **env)


def test_everything_at_once(tmp_path: Path) -> None:
    out, report = tmp_path / "out.jsonl", tmp_path / "report.html"
    done = bench("-r", "2", "--json", "--no-widths", "--results", out, "--report", report)
    data = done.json
    variants = [variant["name"] for variant in data["setup"]["variants"]]
    assert variants == ["llama.cpp", "plain", "auto", "ngram", "layer-skip"]
    assert data["setup"]["template"] is True and data["setup"]["mask"] is not None
    assert len(data["runs"]) == 2 * 2 * 5
    for row in data["rows"]:
        assert row["n_same"] == (None if row["variant"] == "llama.cpp" else row["n_answers"])
        assert row["n_answers"] == 4
        assert row["tokens_per_second"]["least"] <= row["tokens_per_second"]["most"]
        assert (row["speed"] is None) is (row["variant"] == "plain")
    by_variant = {row["variant"]: row for row in data["rows"]}
    assert by_variant["plain"]["tokens_per_pass"] == 1
    assert by_variant["ngram"]["by_source"].keys() <= {"ngram"}
    for each in data["runs"]:
        assert each["n_tokens"] == 12 and each["us"] > 0 and each["prompt_us"] > 0
        texts = [text for step in each["steps"] for text in step["texts"]]
        assert len(texts) == (12 if each["round"] == 0 else 0)
    kept = from_json_lines(out.read_text())
    assert json.loads(formats.to_json(kept)) == data
    page = report.read_text()
    assert 'class="lane"' in page and str(report) in done.stderr and "Once" not in done.stderr


def test_a_file_goes_on_with_more_rounds_and_other_formats_show_the_same(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    options = ("--draft", "ngram", "--results", out)
    first = bench(*options, "-r", "1", "--format", "jsonl")
    assert first.status == 0, first
    assert from_json_lines(first.stdout) == from_json_lines(out.read_text())
    assert len(from_json_lines(first.stdout).runs) == 6
    lines = out.read_bytes()
    second = bench(*options, "-r", "2", "--format", "csv")
    assert out.read_bytes().startswith(lines) and "already has 6 runs" in second.stderr
    assert [each["round"] for each in from_csv(second.stdout)] == [0] * 6 + [1] * 6
    third = bench(*options, "-r", "2")  # no terminal: Markdown; nothing is left to measure
    assert out.read_bytes().count(b"\n") == 13
    assert third.stdout == formats.markdown(from_json_lines(out.read_text()))
    other = bench(*options, "-r", "2", "--temp", "0.5")
    assert other.status == 1
    assert "another temperature" in other.stderr and "--results" in other.stderr
    more = bench(*options, "-r", "2", "--draft", "layer-skip")
    given = "llama.cpp, plain, ngram"
    assert f"another choice of variants ({given}, not {given}, layer-skip)" in more.stderr


def test_widths_are_timed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pass_times, "N_ROUND", 1)
    out = tmp_path / "out.jsonl"
    options = ("--draft", "ngram", "-r", "1", "--json", "--widths", "--results", out)
    widths = bench(*options).json["widths"]
    assert [len(level["full_us"]) for level in widths["costs"]["levels"]] == [16, 16]
    assert bench(*options).json["widths"] == widths


def test_what_was_measured_before_ctrl_c_is_shown_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = command.measure

    def cut_off(*args: Any) -> Any:
        for n, each in enumerate(measure(*args)):
            if n == 7:  # in the middle of the first round's second prompt, or the second round
                raise KeyboardInterrupt
            yield each

    monkeypatch.setattr(command, "measure", cut_off)
    out = tmp_path / "out.jsonl"
    done = bench("--draft", "ngram", "-r", "3", "--results", out, "--json")
    assert done.status == 130 and "stopped" in done.stderr
    assert len(from_json_lines(out.read_text()).runs) == 7
    rows = json.loads(done.stdout)["rows"]
    assert [row["n_rounds"] for row in rows] == [1, 1, 1]


def test_if_the_second_process_cannot_start_all_else_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(upstream.ENVIRONMENT, "PYTHONHOME", "/nowhere")
    done = bench("--draft", "ngram", "-r", "1", "--json")
    assert [row["variant"] for row in done.json["rows"]] == ["plain", "ngram"]
    reason = "the process that uses them ended with status 1"
    assert done.stderr == f"llama.cpp's kernels are not measured: {reason}\n"


def test_answers_copy_nothing_from_earlier_rounds() -> None:
    """The second answer to a prompt could be copied whole."""
    done = bench("--draft", "ngram", "-r", "3", "--json", "--controller", "fixed", "-n", "40")
    runs = [each for each in done.json["runs"] if each["variant"] == "ngram"]
    accepted = [
        sum(sum(each["n_accepted_at"]) for each in runs if each["round"] == i) for i in range(3)
    ]
    assert accepted[2] <= accepted[0] + 8  # chances are learned, texts are not


def test_files_of_prompts(tmp_path: Path) -> None:
    text, lines = tmp_path / "a.txt", tmp_path / "b.jsonl"
    text.write_text("It was a dark night", encoding="utf-8")
    lines.write_text('{"prompt": "Hello", "task": "greeting"}\n')
    options = ("-t", "1", "-n", "4", "-r", "1", "--draft", "ngram", "--json", "--plain-text")
    data = run("bench", "demo", "-f", text, "--prompts", lines, *options).json
    assert {each["task"] for each in data["rows"]} == {"own", "greeting", "all"}
    assert data["setup"]["prompts"] == f"{text}, {lines}" and data["setup"]["template"] is False


@pytest.mark.parametrize(
    ("args", "status", "says"),
    [
        (("-r", "0"), 2, "'0' is not an integer of at least 1"),
        (("-n", "0"), 2, "give at least 1, or -1 for no limit"),
        (("--draft", "nothing"), 2, "'nothing' is none of"),
        (("--draft", "off"), 2, "plain decoding is always measured"),
        (("--draft", "ngram", "--draft", "ngram"), 1, "given twice"),
        (("--draft", "model"), 1, "needs a file"),
        (("--draft", "ngram", "--exit-layer", "2"), 1, "no variant takes a mask"),
        (("-p", ""), 1, "the prompt is empty"),
        (("--prompts", "missing.jsonl"), 1, "missing.jsonl"),
        (("--report", "a.png"), 2, "'a.png' is not an HTML file; give a name that ends with .html"),
        (("--report", "no/such/a.html"), 1, "no folder"),
        (("--format", "csv", "--json"), 2, "--json prints JSON"),
        (("-p", "word " * 300), 1, "give a larger n_ctx (-c) or a shorter prompt"),
    ],
)
def test_bad_input_is_one_line(
    args: tuple[str, ...], status: int, says: str, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    done = bench(*args)
    assert (done.status, done.traceback) == (status, None), done
    assert says in done.stderr and not done.stdout


def test_unreadable_prompts_are_named_with_their_line(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('"a"\n{"prompt": }\n')
    done = bench("--prompts", path)
    assert done.status == 1 and f"{path}, line 2: not JSON" in done.stderr
    assert done.stderr.count("\n") == 1
    path.write_text("")
    assert f"{path} has no prompts" in bench("--prompts", path).stderr


def test_nothing_is_printed_but_the_results() -> None:
    """The progress bar is for terminals, and a pipe gets Markdown."""
    args = ("bench", "demo", "-t", "1", "-n", "4", "-r", "1", "-p", "Once", "--draft", "ngram")
    done = run_alone(*args)
    assert done.status == 0 and not done.stderr, done
    assert done.stdout.startswith("**speed**")


def test_a_table_cuts_nothing_off_in_a_terminal_of_usual_width() -> None:
    cells = ("lookahead", "letter", "69.8", "52.7", "38.4 to 55.1", "1.15", "1.25", "100%")
    row = (*cells, "100% 67% 67%", "12 of 12")
    written, none = StringIO(), speeds([])
    console = Console(width=80, file=written)
    console.print(command._table(Table("speed", none.columns, none.align, [row])))
    shown = written.getvalue()
    assert "…" not in shown and max(map(cell_len, shown.splitlines())) <= 80
    for word in ("lookahead", "letter", "69.8", "52.7", "1.15", "1.25", "100%"):
        assert word in shown
