"""Decoding alone and beside a program that keeps cores busy, as a build or a game does.

Threads that wait for one another stall all together when one of them has to wait for its core.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click

from pyselfspec.util.build import LIB_DIR
from tools.records import Record, provenance

from ._options import keep, model_argument, progress, run_options, stock_option
from ._table import Table
from ._timed_text import PLAIN, STOCK

HERE = Path(__file__).resolve().parent
SETTINGS = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
DRAFTS = "auto"
BUSY = (0, 1, 2, 8)  # threads of the other program


@dataclass(frozen=True, slots=True)
class Way:
    """A program's way of decoding."""

    name: str
    text: str  # of _timed_text.py
    threads: int
    libraries: Path = LIB_DIR
    environment: Mapping[str, str] = field(default_factory=dict)


def ways(threads: int, stock: Path | None) -> list[Way]:
    few = [Way("pyselfspec, plain, a thread fewer", PLAIN, threads - 1)] if threads > 1 else []
    return [
        *([] if stock is None else [Way("stock", STOCK, threads, stock)]),
        Way("pyselfspec, plain", PLAIN, threads),
        *few,
        Way("pyselfspec, drafts", DRAFTS, threads),
    ]


def us_per_token(way: Way, model: Path, n_tokens: int, seconds: float) -> int:
    env = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    env |= {"LLAMA_CPP_LIB_PATH": str(way.libraries), **way.environment}
    program = [sys.executable, "-P", str(HERE / "_timed_text.py"), str(model), str(way.threads)]
    program += [str(n_tokens), str(seconds), way.text]
    run = subprocess.run(program, check=True, stdout=subprocess.PIPE, text=True, env=env)
    return round(float(run.stdout))


@contextmanager
def neighbour(n_threads: int) -> Iterator[None]:
    """Run another process with n_threads busy threads, or none, for the time of a block."""
    if n_threads == 0:
        yield
        return
    program = [sys.executable, "-P", str(HERE / "_busy.py"), str(n_threads)]
    pipe = subprocess.PIPE
    with subprocess.Popen(program, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield


@click.command()
@model_argument
@run_options
@click.option("--rounds", type=click.IntRange(min=1), default=3)
@click.option("--tokens", type=click.IntRange(min=1), default=256)
@click.option("--seconds", type=click.FloatRange(min=0), default=10.0, help="At most, for a text.")
@stock_option
def command(
    model: Path,
    threads: int,
    out: Path | None,
    rounds: int,
    tokens: int,
    seconds: float,
    stock: Path | None,
) -> None:
    """Decoding alone and beside a process that keeps cores busy."""
    compared = ways(threads, stock)
    us: dict[str, dict[str, list[int]]] = {way.name: {str(n): [] for n in BUSY} for way in compared}
    for _ in progress(range(rounds), "rounds"):
        for n_busy in BUSY:
            with neighbour(n_busy):
                for way in compared:
                    us[way.name][str(n_busy)].append(us_per_token(way, model, tokens, seconds))
    given = f" --tokens {tokens} --seconds {seconds:g}"
    keep(provenance("neighbour", model, threads, given) | {"us": us}, TABLES[0], out)


#
# figures
#


def cell(us: Sequence[int]) -> str:
    """Tokens per second, the median and its spread."""
    median, slow, fast = (1e6 / value for value in (statistics.median(us), max(us), min(us)))
    return f"{median:.0f} ({slow:.0f} to {fast:.0f})"


def cells(record: Record) -> list[list[str]]:
    name, threads = record["model"], str(record["threads"])
    return [
        [name, threads, record["machine"], way, *(cell(us[str(n)]) for n in BUSY)]
        for way, us in record["us"].items()
    ]


TABLES = (
    Table(
        "neighbour",
        ("model", "threads", "machine", "program", *("alone", "1 thread", "2", "8")),
        "<><<>>>>",
        cells,
    ),
)
