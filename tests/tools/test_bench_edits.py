"""The edits of the bench: real files, right examples, the same texts with and without drafts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import patch_ng
import pytest
from click.testing import CliRunner

from tools.bench import edits
from tools.bench._main import main
from tools.bench._task_file import read_tasks

ROOT = Path(__file__).resolve().parents[2]


def applied(form: str, answer: str, text: str, folder: Path, path: str) -> str:
    """The file after an answer, as an agent would apply it."""
    body = answer.partition("```")[2].partition("\n")[2].rpartition("```")[0]
    if form == edits.WHOLE:
        return body
    if form == edits.SEARCH:
        pattern = r"<<<<<<< SEARCH\n(.*?)=======\n(.*?)>>>>>>> REPLACE\n"
        for old, new in re.findall(pattern, body, re.DOTALL):
            assert old in text
            text = text.replace(old, new, 1)
        return text
    file = folder / path
    file.parent.mkdir(parents=True)
    file.write_text(text, encoding="utf-8")
    assert patch_ng.fromstring(body.encode()).apply(1, root=folder)
    return file.read_text(encoding="utf-8")


@pytest.mark.parametrize("form", [edits.SEARCH, edits.WHOLE, edits.DIFF])
@pytest.mark.parametrize("edit", edits.EDITS, ids=lambda edit: Path(edit.path).stem)
def test_right_answers_give_the_edited_file(form: str, edit: edits.Edit, tmp_path: Path) -> None:
    text = (ROOT / edit.path).read_text(encoding="utf-8")
    answer = edits.answer_of(form, edit, text)
    changed = applied(form, answer, text, tmp_path, edit.path)
    assert changed == text.replace(edit.old, edit.new) != text


def test_there_are_24_tasks_that_the_other_benches_read(demo_path: Path, tmp_path: Path) -> None:
    file = tmp_path / "edits.jsonl"
    result = CliRunner().invoke(main, ["edits", str(demo_path), "--write", str(file)])
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    assert len(lines) == len({line["turns"][0] for line in lines}) == 24
    read = read_tasks(file, (), None)
    assert [(each.kind, each.turns) for each in read] == [
        (each.kind, each.turns) for each in edits.tasks()
    ]


def test_texts_are_the_same(demo_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    given = ["--tokens", "12", "--each", "1", "-t", "1", "--draft", "ngram", "--out", str(out)]
    result = CliRunner().invoke(main, ["edits", str(demo_path), *given])
    assert result.exit_code == 0, result.output
    record = json.loads(out.read_text("utf-8"))
    assert record["bench"] == "edits"
    for runs in record["runs"].values():
        assert [sum(run["n_same"] for run in runs.values())] == [3]
    assert [row[-1] for row in edits.cells(record)] == ["1 of 1"] * 3 + ["3 of 3"]
