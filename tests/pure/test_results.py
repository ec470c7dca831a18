"""Result files: nothing measured is lost, nothing foreign is taken."""

import json
import os

import needs
import numpy as np
import pytest
from written_files import small_files

from pyselfspec import LayerMask
from pyselfspec.masks.score import Score
from pyselfspec.selection.results import SAME, ResultFile
from pyselfspec.util.jsonl_log import ResultFileError

pytestmark = needs.filelock  # every result file is locked

HEADER = {
    "build": "b1", "fingerprint": "m1", "text_sha256": "t1", "seed": 0, "objective": "agreement",
    "n_ctx": 64, "window": 8,
}  # fmt: skip
MASKS = [LayerMask.skipping(4, attn=[1]), LayerMask.skipping(4, ffn=[0, 2]), LayerMask.full(4)]


def score(seed):
    rng = np.random.default_rng(seed)
    return Score.of(rng.random(5), rng.random(5))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "scan.jsonl"


def fill(path, n=3):
    with ResultFile(path, HEADER) as results:
        results.add_text(0, (5, 6, 7))
        for i in range(n):
            results.add_score(MASKS[i], 0, score(i))


def check(results, n=3):
    for i, mask in enumerate(MASKS):
        assert results.score(mask, 0) == (score(i) if i < n else None)
    assert results.score(MASKS[0], 1) is None
    assert results.text(0) == (5, 6, 7) and results.text(1) is None


def test_what_was_added_is_there_in_the_next_run(path):
    fill(path)
    with ResultFile(path, HEADER) as results:
        check(results)


def test_every_line_is_on_the_disk_before_the_next_measurement(path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(path.read_bytes()))
    fill(path)
    assert [data.count(b"\n") for data in synced] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("n_free", [10, 400])
def test_an_error_of_a_full_disk_names_the_file_which_a_later_run_continues(path, n_free):
    with pytest.raises(OSError) as caught, small_files(n_free):
        fill(path)
    assert caught.value.filename == str(path) and path.stat().st_size == n_free
    fill(path)
    with ResultFile(path, HEADER) as results:
        check(results)


@pytest.mark.parametrize("n_cut", [1, 20, 150])
def test_a_line_cut_in_the_middle_is_dropped_and_the_whole_ones_count(path, n_cut):
    fill(path)
    data = path.read_bytes()
    path.write_bytes(data[:-n_cut])
    with ResultFile(path, HEADER) as results:
        check(results, 2)
        results.add_score(MASKS[2], 0, score(2))
    assert path.read_bytes() == data


def test_a_header_cut_in_the_middle_starts_anew(path):
    fill(path)
    data = path.read_bytes()
    for n in (0, 3, 30):
        path.write_bytes(data[:n])
        with ResultFile(path, HEADER) as results:
            assert results.score(MASKS[0], 0) is None
        assert path.read_bytes() == data[: data.index(b"\n") + 1]


@pytest.mark.parametrize("key", sorted(SAME))
def test_a_file_of_something_else_is_refused_and_kept(path, key):
    fill(path)
    before = path.read_bytes()
    lines = before.decode().splitlines()
    lines[0] = json.dumps(json.loads(lines[0]) | {key: "other"})
    path.write_text("\n".join(lines) + "\n")
    changed = path.read_bytes()
    with pytest.raises(ResultFileError, match=f"results of another {SAME[key]} .*another file"):
        ResultFile(path, HEADER)
    assert path.read_bytes() == changed


@pytest.mark.parametrize(
    "data",
    [b"first\nlast, no newline", b"{}\nlast", b'{"format": 2}\nlast', b"\nlast", b"GGUF\0\n\0\0",
     b"hello", b"hello\n", b'{"a": 1}\n', b"\xff\xfe\n"],
)  # fmt: skip
def test_a_foreign_file_keeps_its_last_line_and_gets_no_lock_beside_it(tmp_path, data):
    readme = tmp_path / "README.md"
    readme.write_bytes(data)
    with pytest.raises(ResultFileError, match=r"(file of results|another format).*give another"):
        ResultFile(readme, HEADER)
    assert readme.read_bytes() == data
    assert [path.name for path in tmp_path.iterdir()] == ["README.md"]


def test_another_models_unfinished_line_stays(path):
    fill(path)
    data = path.read_bytes()[:-20]
    path.write_bytes(data)
    with pytest.raises(ResultFileError, match="results of another model"):
        ResultFile(path, HEADER | {"fingerprint": "m2"})
    assert path.read_bytes() == data


@pytest.mark.parametrize(
    "line",
    [b"", b"{}", b"7", b"null", b'{"chunk": 0, "mask": {}}', b'{"chunk": "x", "tokens": []}'],
)
def test_a_line_that_is_no_result_is_named(path, line):
    fill(path)
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([*lines[:3], line, *lines[3:]]) + b"\n")
    with pytest.raises(ResultFileError, match="line 4 is no result"):
        ResultFile(path, HEADER)


def test_a_second_process_is_refused(path, run_python):
    fill(path)
    code = (
        "import sys, json, pathlib\n"
        "from pyselfspec.selection.results import ResultFile\n"
        "ResultFile(pathlib.Path(sys.argv[1]), json.loads(sys.argv[2]))"
    )
    with ResultFile(path, HEADER) as results:
        second = run_python(code, path, json.dumps(HEADER))
        assert second.returncode == 1
        assert "in use by another process" in second.stderr.splitlines()[-1]
        check(results)
    assert run_python(code, path, json.dumps(HEADER)).returncode == 0


def test_a_refused_file_is_not_left_locked(path):
    fill(path)
    with pytest.raises(ResultFileError):
        ResultFile(path, HEADER | {"n_ctx": 128})
    assert [each.name for each in path.parent.glob("*scan*")] == [path.name]
    with ResultFile(path, HEADER) as results:
        check(results)


def test_folders_are_refused(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(ResultFileError, match="no plain file"):
        ResultFile(tmp_path / "folder", HEADER)


def test_totals_count_chunks_without_gaps(path):
    with ResultFile(path, HEADER) as results:
        for mask, chunk in ((MASKS[0], 1), (MASKS[0], 0), (MASKS[1], 0), (MASKS[1], 2)):
            results.add_score(mask, chunk, score(chunk))
        totals = results.totals()
    assert totals[MASKS[0]] == (2, score(0) + score(1))
    assert totals[MASKS[1]] == (1, score(0))
