"""Answers of ``pyselfspec.Llama`` beside ``llama_cpp.Llama``, as people call them.

Every way has a process of its own, with the model loaded once; the ways take turns, task by task.
Each task is asked once, since later answers may copy from earlier ones. Times are those of the
whole call, the prompt included.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from pyselfspec.util.build import LIB_DIR
from tools.records import Record, provenance

from ._options import (
    file_path,
    keep,
    kinds_option,
    model_argument,
    progress,
    repeated,
    run_options,
    stock_option,
)
from ._table import Table
from ._task_file import read_tasks

HERE = Path(__file__).resolve().parent
OURS, SAME, STOCK = "pyselfspec", "llama_cpp", "stock"


@dataclass(frozen=True, slots=True)
class Worker:
    process: subprocess.Popen[str]

    def answer(self, prompt: str, n_tokens: int) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps({"prompt": prompt, "n_tokens": n_tokens}) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise click.ClickException("the process that answers has ended")
        found: dict[str, Any] = json.loads(line)
        return found


@contextmanager
def worker(way: str, library: Path, model: Path, threads: int) -> Iterator[Worker]:
    env = os.environ | {"LLAMA_CPP_LIB_PATH": str(library)}
    program = [sys.executable, "-P", str(HERE / "_drop_in_worker.py")]
    program += [str(model), str(threads), way]
    pipe = subprocess.PIPE
    with subprocess.Popen(program, stdin=pipe, stdout=pipe, text=True, env=env) as process:
        yield Worker(process)


@click.command()
@model_argument
@run_options
@click.option("--tasks", type=file_path(), required=True, help="JSON lines, see the bench tasks.")
@kinds_option
@click.option("--each", type=click.IntRange(min=1), help="Tasks of a kind.  [default: all]")
@click.option("--tokens", type=click.IntRange(min=1), default=96)
@stock_option
def command(
    model: Path,
    threads: int,
    out: Path | None,
    tasks: Path,
    kinds: tuple[str, ...],
    each: int | None,
    tokens: int,
    stock: Path | None,
) -> None:
    """Speed of pyselfspec.Llama over llama_cpp.Llama, on this library and on a stock one."""
    libraries = {OURS: LIB_DIR, SAME: LIB_DIR} | ({} if stock is None else {STOCK: stock.resolve()})
    answers: dict[str, dict[str, list[Any]]] = {}
    with ExitStack() as stack:
        workers = {
            way: stack.enter_context(worker(way, library, model, threads))
            for way, library in libraries.items()
        }
        for each_worker in workers.values():
            each_worker.answer("Hello", 8)  # graphs are built, pages are read
        for i, task in enumerate(progress(read_tasks(tasks, kinds, each), "tasks")):
            order = list(workers) if i % 2 else list(workers)[::-1]
            for way in order:
                found = workers[way].answer(task.turns[0], tokens)
                answers.setdefault(task.kind, {}).setdefault(way, []).append(found)
    given = f" --tasks {tasks.name} --tokens {tokens}{repeated('--task', kinds)}"
    given += f" --each {each}" if each else ""
    record: Record = {"load": round(os.getloadavg()[0], 2), "kinds": _summed(answers)}
    keep(provenance("drop_in", model, threads, given, command="drop-in") | record, TABLES[0], out)


def _summed(answers: dict[str, dict[str, list[Any]]]) -> dict[str, Any]:
    """By kind and way, one figure per answer; how many texts were the same on one library."""
    kinds: dict[str, Any] = {}
    for kind, ways in answers.items():
        pairs = zip(ways[OURS], ways[SAME], strict=True)
        kinds[kind] = {
            "n_same": sum(a["text"] == b["text"] for a, b in pairs),
            "ways": {
                way: {key: [a[key] for a in found] for key in ("n_tokens", "wall_ms", "cpu_ms")}
                for way, found in ways.items()
            },
        }
    return kinds


#
# figures
#


def per_token(way: dict[str, list[float]], clock: str) -> float:
    """Milliseconds per token, the median over answers."""
    pairs = zip(way[clock], way["n_tokens"], strict=True)
    return statistics.median(ms / max(1, n) for ms, n in pairs)


def _speed(ways: dict[str, Any], other: str, clock: str) -> str:
    if other not in ways:
        return "-"
    return f"{per_token(ways[other], clock) / per_token(ways[OURS], clock):.2f}"


def cells(record: Record) -> list[list[str]]:
    return [
        [
            record["model"],
            str(record["threads"]),
            kind,
            f"{found['n_same']}/{len(found['ways'][OURS]['n_tokens'])}",
            *(
                _speed(found["ways"], other, clock)
                for other in (STOCK, SAME)
                for clock in ("wall_ms", "cpu_ms")
            ),
        ]
        for kind, found in record["kinds"].items()
    ]


TABLES = (
    Table(
        "drop_in",
        (
            "model",
            "threads",
            "tasks",
            "same texts",
            "over stock",
            "CPU time",
            "over llama_cpp here",
            "CPU time",
        ),
        "<><>>>>>",
        cells,
    ),
)
