"""The bench of everyday tasks: what models are given, what is counted, what the table derives."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result
from fixture_types import TinyPath

from tools.bench import tasks
from tools.bench._main import main
from tools.bench._task_file import Task
from tools.bench.tasks import Answering

TASKS = (
    {"id": "story-1", "task": "story", "turns": ["Once upon a time"]},
    {"id": "story-2", "task": "story", "turns": ["The old man"]},
    {"id": "turns-1", "task": "turns", "turns": ["It was", "Then he", "At last"]},
)


@pytest.fixture
def tasks_file(tmp_path: Path) -> Path:
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(json.dumps(task) + "\n" for task in TASKS))
    return path


def bench(model: Path, tasks_file: Path, *options: str) -> Result:
    arguments = ["tasks", str(model), "--tasks", str(tasks_file), "-t", "1", "-c", "256"]
    return CliRunner().invoke(main, [*arguments, "--tokens", "12", *options])


def test_a_run(demo_path: Path, tasks_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    options = ["--controller", "fixed", "--rounds", "2", "--draft", "layer-skip"]
    outcome = bench(demo_path, tasks_file, *options, "--out", str(out))
    assert outcome.exit_code == 0, outcome.output
    greedy, warm = map(json.loads, out.read_text().splitlines())
    assert (greedy["temp"], warm["temp"]) == (0.0, 0.7)
    assert greedy["command"].endswith("--draft layer-skip --temp 0")
    for record in (greedy, warm):
        assert record["template"] is True
        assert record["runs"].keys() == {"plain", "layer-skip"}
        for way, by_kind in record["runs"].items():
            assert list(by_kind) == ["story", "turns"]
            for kind, n in (("story", 4), ("turns", 6)):  # answers in two rounds
                run = by_kind[kind]
                assert len(run["us"]) == len(run["n_tokens"]) == run["n_same"] == n
                assert all(us > 0 for us in run["us"])
                assert (sum(run["n_accepted_at"]) > 0) is (way != "plain")
                if way == "plain":
                    assert run["n_steps"] == sum(run["n_tokens"])
        kinds = [row[5] for row in tasks.cells(record)]
        assert kinds == ["story", "turns", "all"]


def test_copies_are_told_by_source_and_by_the_chance_that_was_given(
    demo_path: Path, tasks_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    options = ["--tokens", "60", "--temp", "0", "--out", str(out)]
    outcome = bench(demo_path, tasks_file, *options)
    assert outcome.exit_code == 0, outcome.output
    for by_kind in json.loads(out.read_text())["runs"]["auto"].values():
        drafted = [sum(source[0]) for source in by_kind["sources"].values()]
        accepted = [sum(source[1]) for source in by_kind["sources"].values()]
        assert sum(drafted) == sum(by_kind["n_drafted_at"])
        assert sum(accepted) == sum(by_kind["n_accepted_at"]) <= sum(by_kind["n_right"])
        assert all(
            right <= n for right, n in zip(by_kind["n_right"], by_kind["n_said"], strict=True)
        )


def test_chances_are_drawn(demo_path: Path, tasks_file: Path, tmp_path: Path) -> None:
    picture = tmp_path / "chances.svg"
    outcome = bench(demo_path, tasks_file, "--tokens", "60", "--plot", str(picture))
    assert outcome.exit_code == 0, outcome.output
    assert "temperature 0.7" in picture.read_text()


def test_every_step_drafts_as_many_as_told(
    demo_path: Path, tasks_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    options = ["--fixed", "3", "--draft", "layer-skip", "--temp", "0", "--each", "1"]
    assert bench(demo_path, tasks_file, *options, "--out", str(out)).exit_code == 0
    record = json.loads(out.read_text())
    assert "--fixed 3" in record["command"] and "--controller" not in record["command"]
    run = record["runs"]["layer-skip"]["story"]
    assert len(run["n_drafted_at"]) == 3
    assert run["n_drafted_at"][0] >= run["n_steps"] - 1  # but for the last token


def test_no_answer_copies_from_another(demo_path: Path, tasks_file: Path, tmp_path: Path) -> None:
    """The second round has the same prompts; it drafts as the first did."""
    runs = []
    for rounds in ("1", "2"):
        out = tmp_path / f"{rounds}.jsonl"
        options = ["--draft", "ngram", "--controller", "fixed", "--temp", "0", "--tokens", "40"]
        outcome = bench(demo_path, tasks_file, *options, "--rounds", rounds, "--out", str(out))
        assert outcome.exit_code == 0, outcome.output
        runs.append(json.loads(out.read_text())["runs"]["ngram"]["story"])
    once, twice = (sum(run["n_accepted_at"]) for run in runs)
    assert twice <= 2 * once + 8  # chances are learned, texts are not


def test_only_some_tasks(demo_path: Path, tasks_file: Path) -> None:
    outcome = bench(demo_path, tasks_file, "--each", "1", "--task", "story", "--temp", "0")
    assert outcome.exit_code == 0, outcome.output
    assert "| story |" in outcome.stdout and "turns" not in outcome.stdout
    assert "| 1 of 1 |" in outcome.stdout


@pytest.mark.parametrize(
    ("content", "options", "says"),
    [
        ("", (), "has no tasks"),
        ("{}", (), "line 1 is no task"),
        ('{"task": "a", "turns": ["b"]}\nnot JSON', (), "line 2 is no task"),
        ('{"task": "a", "turns": ["b"]}', ("--task", "c"), "has no 'c'; it has: a"),
    ],
)
def test_what_is_no_task(
    content: str, options: tuple[str, ...], says: str, demo_path: Path, tmp_path: Path
) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_text(content)
    outcome = bench(demo_path, path, *options)
    assert outcome.exit_code == 2 and says in outcome.stderr


#
# what models are given
#


class Speaking:
    """Answers with a number, and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, Any]] = []

    def __call__(self, way: str, prompt: Any, seed: int) -> Any:
        self.asked.append((way, prompt))
        stats = SimpleNamespace(total_us=2, prefill_us=1, n_generated=1, n_steps=1)
        stats.n_drafted_at = stats.n_accepted_at = []
        stats.sources = {}
        text = f"{way} answer"
        return SimpleNamespace(text=text, tokens=[len(way)], stats=stats, steps=[])


def test_later_turns_follow_the_plain_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    spoken = Speaking()
    monkeypatch.setattr(Answering, "answer", spoken)
    template: Any = SimpleNamespace(tokens=lambda messages: [(m.role, m.text) for m in messages])
    answering = Answering(None, template, ("a", "b"), "fixed", 9, 0.0)  # type: ignore[arg-type]
    runs = answering.compare([Task("k", ("one", "two"))], rounds=1)
    first = [("user", "one")]
    second = [*first, ("assistant", "plain answer"), ("user", "two")]
    warm_up, asked = spoken.asked[:3], spoken.asked[3:]
    assert warm_up == [(way, first) for way in ("plain", "a", "b")]
    assert asked[:3] == [(way, first) for way in ("plain", "a", "b")]
    assert asked[3:] == [(way, second) for way in ("b", "a", "plain")]
    assert [runs[way]["k"].n_same for way in ("plain", "a", "b")] == [2, 0, 0]


def test_without_a_template_there_is_one_turn_of_plain_text(
    tiny_path: TinyPath, tasks_file: Path
) -> None:
    outcome = bench(tiny_path(), tasks_file, "--temp", "0", "--draft", "layer-skip")
    assert outcome.exit_code == 0, outcome.output
    [turns] = [line for line in outcome.stdout.splitlines() if "| turns |" in line]
    assert turns.endswith("of 1 |")


#
# figures
#


def run(**changes: Any) -> dict[str, Any]:
    """Two answers, of 10 and 20 tokens."""
    fields = {
        "us": [100, 400],
        "n_tokens": [10, 20],
        "n_steps": 12,
        "n_drafted_at": [12, 8],
        "n_accepted_at": [12, 6],
        "n_same": 2,
    }
    return fields | changes


PLAIN = run(us=[150, 450], n_steps=30, n_drafted_at=[], n_accepted_at=[])


def test_records_do_not_tell_where_files_are() -> None:
    names = ["auto", "ngram+model:/home/me/a.gguf", "model:b/c.gguf+jacobi", "model:d.gguf"]
    shown = ["auto", "ngram+model:a.gguf", "model:c.gguf+jacobi", "model:d.gguf"]
    assert list(map(tasks.without_folders, names)) == shown


def test_figures() -> None:
    found = tasks.figures(run(), PLAIN)
    assert found.speed == pytest.approx(600 / 500)
    assert found.speeds == pytest.approx([1.5, 450 / 400])
    assert found.tokens_per_pass == 30 / 12
    assert found.acceptance == 18 / 20
    assert tasks.figures(PLAIN, PLAIN).acceptance is None
