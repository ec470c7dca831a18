"""pyselfspec demo: the model it makes, the race, and what the command shows."""

import json
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from pyselfspec import GREEDY, Completion, Model
from pyselfspec.cli import demo, main
from pyselfspec.util.paths import DEMO

SMALLEST = "40M"


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache directory for this file, so that the model is made once."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo.paths, "cache", lambda name: folder / name)
        yield folder


@dataclass
class Runner:
    """Stands in for a completion: steps of given microseconds."""

    steps: list[int]
    stats: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(total_us=0))

    def __iter__(self):
        for us in self.steps:
            self.stats.total_us += us
            yield ""


def test_the_one_that_used_less_time_goes_next():
    slow, fast = Runner([10, 10]), Runner([4, 4, 4, 4])
    moves = ["slow" if moved is slow else "fast" for moved in demo.race((slow, fast))]
    assert moves == ["slow", "fast", "fast", "fast", "slow", "fast"]


def test_a_race_ends_when_all_have_ended():
    assert [
        len(list(demo.race(list(map(Runner, steps))))) for steps in ([], [[]], [[1], [2, 3]])
    ] == [0, 0, 3]


def test_the_model_is_made_once_and_writes_the_same_text(cache, new_context):
    path = demo.wide_path(2)
    assert path.parent == cache
    sizes = list(demo.make_wide(path, 2))
    done, total = sizes[-1]
    assert 0 < done <= total <= path.stat().st_size
    assert list(demo.make_wide(path, 2)) == []
    texts = []
    for file in (DEMO, path):
        with Model(file) as model:
            # no near-tie after these words, since rounding differs
            completion = Completion(
                new_context(model), "When the sun", n_predict=24, sampling=GREEDY
            )
            texts.append("".join(completion))
    assert texts[0] == texts[1]


def test_a_model_that_is_cut_off_is_made_again(cache):
    """Nobody downloaded it, so nobody is told to download it again."""
    path = demo.wide_path(2)
    list(demo.make_wide(path, 2))
    whole = path.read_bytes()
    for broken in (whole[: len(whole) // 2], b"", b"something else"):
        path.write_bytes(broken)
        assert list(demo.make_wide(path, 2))
        assert path.read_bytes() == whole


def test_an_interrupted_model_leaves_nothing(cache):
    path = demo.wide_path(4)
    steps = demo.make_wide(path, 4)
    next(steps)
    steps.close()
    assert not path.exists()
    assert not list(cache.glob(".unfinished*"))


def test_another_bundled_model_has_another_file(cache, monkeypatch, tmp_path):
    other = tmp_path / "other.gguf"
    other.write_bytes(b"other")
    before = demo.wide_path(2)
    monkeypatch.setattr(demo, "DEMO", other)
    assert demo.wide_path(2) != before


def test_the_command_reports_both_runs_as_json(cache):
    arguments = ["demo", "--size", SMALLEST, "-n", "24", "-t", "1", "--json"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["identical"]
    assert found["n_generated"] == found["plain"]["n_generated"] == 24
    assert found["plain"]["draft"] == "off" != found["draft"]
    speeds = [run["tokens_per_second"] for run in (found, found["plain"])]
    assert found["speedup"] == pytest.approx(speeds[0] / speeds[1])


def test_the_command_shows_the_text_and_what_was_measured(cache):
    arguments = ["demo", "--size", SMALLEST, "-n", "60", "-t", "1", "-p", "Once upon a time"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("Once upon a time")
    assert "same text" in result.stdout
    assert "x plain decoding (measured" in result.stdout


def test_the_task_of_the_command_is_json_that_does_not_repeat_itself(cache):
    arguments = ["demo", "--size", SMALLEST, "-n", "300", "-t", "1"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    _, _, shown = result.stdout.partition("\n\n")
    records = [json.loads(line) for line in shown.splitlines() if line.endswith("}")]
    assert len(records) >= 5
    assert all(each.keys() == {"first_name", "lives_in", "age", "best_friend"} for each in records)
    assert len({str(each) for each in records}) == len(records)
    assert "same text" in result.stdout


def test_a_cache_that_cannot_be_written_is_one_line(monkeypatch, tmp_path):
    blocker = tmp_path / "file"
    blocker.write_text("")
    monkeypatch.setattr(demo.paths, "cache", lambda name: blocker / "sub" / name)
    result = CliRunner().invoke(main, ["demo", "--size", SMALLEST])
    assert result.exit_code == 1
    assert result.output.startswith("Error: ")
    assert len(result.output.strip().splitlines()) == 1
