"""Speed of drafting over plain decoding on edits of real files, in the forms that coding agents
use: search/replace blocks, whole files, unified diffs.

The files are small modules of this repository, each with one edit; every edit is asked for in every
form, with an example of the form before it. Answers are free, as in the bench of tasks.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from pyselfspec import Model
from pyselfspec.bench.setup import template_of
from pyselfspec.bench.types import PLAIN
from pyselfspec.speculate.config import AUTO
from tools.records import Record, provenance

from ._options import keep, model_argument, repeated, run_options
from ._table import Table
from ._task_file import Task
from .tasks import TABLES as TASK_TABLES
from .tasks import Answering, Run, cells, without_folders

ROOT = Path(__file__).resolve().parents[2]
SEARCH, WHOLE, DIFF = "search/replace", "whole file", "unified diff"


@dataclass(frozen=True, slots=True)
class Edit:
    """An edit of a file: every ``old`` becomes ``new``."""

    path: str
    old: str
    new: str


EDITS = (
    Edit("pyselfspec/util/image_size.py", "data", "content"),
    Edit("pyselfspec/util/closable.py", "close", "shut_down"),
    Edit("pyselfspec/util/libraries.py", "folder", "directory"),
    Edit("pyselfspec/speculate/verify.py", "draft", "proposal"),
    Edit("pyselfspec/speculate/controllers/fixed.py", "n_max", "length"),
    Edit("pyselfspec/answers/markers.py", "model", "loaded_model"),
    Edit("pyselfspec/runtime/short_list.py", "ids", "token_ids"),
    Edit("pyselfspec/gguf/fingerprint.py", "file", "gguf_file"),
)
EXAMPLE = Edit("greet.py", "name", "person")
EXAMPLE_TEXT = 'def greet(name):\n    """Greet someone."""\n    return f"Hello, {name}!"\n'


def answer_of(form: str, edit: Edit, text: str) -> str:
    """Return the right answer in a form: what the example shows."""
    changed = text.replace(edit.old, edit.new)
    if form == WHOLE:
        return f"{edit.path}\n```python\n{changed}```"
    pairs = list(zip(text.splitlines(True), changed.splitlines(True), strict=True))
    if form == DIFF:
        names = (f"a/{edit.path}", f"b/{edit.path}")
        before, after = ([pair[i] for pair in pairs] for i in (0, 1))
        return f"```diff\n{''.join(difflib.unified_diff(before, after, *names))}```"
    blocks = [
        f"<<<<<<< SEARCH\n{old}=======\n{new}>>>>>>> REPLACE\n" for old, new in pairs if old != new
    ]
    return f"{edit.path}\n```python\n{''.join(blocks)}```"


def prompt_of(form: str, edit: Edit, text: str) -> str:
    """Return what the user says."""

    def asked(edit: Edit, text: str) -> str:
        wish = f"Rename {edit.old} to {edit.new} everywhere. Answer with a {form} only."
        return f"{edit.path}\n```python\n{text}```\n{wish}"

    example = f"{asked(EXAMPLE, EXAMPLE_TEXT)}\n\n{answer_of(form, EXAMPLE, EXAMPLE_TEXT)}"
    return f"{example}\n\n{asked(edit, text)}"


def tasks(root: Path = ROOT) -> Iterator[Task]:
    """Yield the 24 tasks, by form. Raises ClickException for a file without the old name."""
    for form in (SEARCH, WHOLE, DIFF):
        for edit in EDITS:
            text = (root / edit.path).read_text(encoding="utf-8")
            if edit.old not in text:
                raise click.ClickException(f"{edit.path} has no {edit.old!r}; choose another edit")
            yield Task(form, (prompt_of(form, edit, text),))


def as_lines(found: list[Task]) -> str:
    """Return tasks as the JSON lines that the benches tasks and task-peers read."""
    rows = ({"id": f"edit-{i}", "task": t.kind, "turns": t.turns} for i, t in enumerate(found, 1))
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


@click.command()
@model_argument
@run_options
@click.option("--draft", "names", multiple=True, default=(AUTO,), show_default=True)
@click.option("--tokens", type=click.IntRange(min=2), default=400, help="At most, per answer.")
@click.option("-c", "--ctx-size", "n_ctx", type=click.IntRange(min=64), default=4096)
@click.option("--each", "n_each", type=click.IntRange(1, len(EDITS)), default=len(EDITS))
@click.option(
    "--write",
    type=click.Path(path_type=Path),
    help="Only write the tasks, for: bench.py task-peers MODEL FOLDER --tasks FILE.",
)
def command(
    model: Path,
    threads: int,
    out: Path | None,
    names: tuple[str, ...],
    tokens: int,
    n_ctx: int,
    n_each: int,
    write: Path | None,
) -> None:
    """Speed of drafting over plain decoding on 24 edits of real files, form by form. The status is
    1 where a text differs from that of plain decoding."""
    every = list(tasks())
    found = [task for i, task in enumerate(every) if i % len(EDITS) < n_each]
    if write is not None:
        write.write_text(as_lines(found), encoding="utf-8")
        return
    options = f" --tokens {tokens} -c {n_ctx} --each {n_each}{repeated('--draft', names)}"
    with Model(model) as loaded, loaded.context(n_ctx=n_ctx, n_threads=threads) as context:
        answering = Answering(context, template_of(loaded), names, "auto", tokens, 0.0)
        runs = answering.compare(found, rounds=1)
        record: Record = {
            "tasks_sha256": hashlib.sha256(as_lines(found).encode()).hexdigest(),
            "temp": 0.0,
            "runs": {
                without_folders(way): {kind: asdict(run) for kind, run in by_kind.items()}
                for way, by_kind in runs.items()
            },
        }
    keep(provenance("edits", model, threads, options) | record, TABLES[0], out)
    drafted = [run for way, by_kind in runs.items() if way != PLAIN for run in by_kind.values()]
    n_other = sum(map(_n_other, drafted))
    if n_other:
        raise click.ClickException(f"{n_other} texts differ from those of plain decoding")


def _n_other(run: Run) -> int:
    return len(run.us) - run.n_same


TABLES = (Table("edits", TASK_TABLES[0].columns, TASK_TABLES[0].align, cells),)
