"""Decoding beside another program that keeps every core busy, as a build or a second model does.

Threads that wait for one another by spinning hold the cores that those they wait for would need.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import click

from pyselfspec.util.build import LIB_DIR
from pyselfspec.util.machine import usable_cores
from tools.records import Record, provenance

from ._options import keep, model_argument, progress, run_options, stock_option
from ._table import Table
from ._timed_text import PLAIN, STOCK

HERE = Path(__file__).resolve().parent
SPINS = "GOMP_SPINCOUNT"
SETTINGS = (SPINS, "OMP_WAIT_POLICY")
LIBGOMP_SPINS = "300000"  # what libgomp does where nothing is set
DRAFTS = "auto"
QUIET, BUSY = "quiet", "busy"


@dataclass(frozen=True, slots=True)
class Way:
    """A program's way of decoding, in an environment where the user has set nothing else."""

    name: str
    text: str  # of _timed_text.py
    libraries: Path = LIB_DIR
    environment: Mapping[str, str] = field(default_factory=dict)


def ways(stock: Path | None, spins: Sequence[int]) -> list[Way]:
    return [
        *([] if stock is None else [Way("stock", STOCK, stock)]),
        Way("pyselfspec, plain, libgomp's default", PLAIN, environment={SPINS: LIBGOMP_SPINS}),
        *(Way(f"pyselfspec, plain, {n} rounds", PLAIN, environment={SPINS: str(n)}) for n in spins),
        Way("pyselfspec, plain", PLAIN),
        Way("pyselfspec, drafts", DRAFTS),
    ]


def us_per_token(way: Way, model: Path, threads: int, n_tokens: int, seconds: float) -> int:
    env = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    env |= {"LLAMA_CPP_LIB_PATH": str(way.libraries), **way.environment}
    program = [sys.executable, "-P", str(HERE / "_timed_text.py"), str(model), str(threads)]
    program += [str(n_tokens), str(seconds), way.text]
    run = subprocess.run(program, check=True, stdout=subprocess.PIPE, text=True, env=env)
    return round(float(run.stdout))


@contextmanager
def neighbour(n_threads: int) -> Iterator[None]:
    """Another process, for the time of a block."""
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
@click.option(
    "--spins",
    type=click.IntRange(min=0),
    multiple=True,
    help="Also with so many rounds before a thread sleeps; may be given several times.",
)
@click.option("--tokens", type=click.IntRange(min=1), default=64)
@click.option("--seconds", type=click.FloatRange(min=0), default=10.0, help="At most, for a text.")
@stock_option
def command(
    model: Path,
    threads: int,
    out: Path | None,
    rounds: int,
    spins: tuple[int, ...],
    tokens: int,
    seconds: float,
    stock: Path | None,
) -> None:
    """Decoding alone and beside a process that is busy on every core."""
    cores, compared = usable_cores(), ways(stock, spins)
    us: dict[str, dict[str, list[int]]] = {way.name: {QUIET: [], BUSY: []} for way in compared}
    load = os.getloadavg()[0]
    for _ in progress(range(rounds), "rounds"):
        for kind in (QUIET, BUSY):
            with neighbour(cores) if kind == BUSY else nullcontext():
                for way in compared:
                    us[way.name][kind].append(us_per_token(way, model, threads, tokens, seconds))
    record: Record = {"cores": cores, "load_before": round(load, 2), "us": us}
    given = f" --tokens {tokens} --seconds {seconds:g}" + "".join(f" --spins {n}" for n in spins)
    keep(provenance("neighbour", model, threads, given) | record, TABLES[0], out)


#
# figures
#


def slower(record: Record, way: str) -> float:
    """How many times as long a token takes beside the neighbour, medians."""
    us = record["us"][way]
    times: float = statistics.median(us[BUSY]) / statistics.median(us[QUIET])
    return times


def fair(record: Record) -> float:
    """How many times as long it would take with a fair share of the cores, which the neighbour has
    as many threads on as there are."""
    cores: int = record["cores"]
    threads: int = record["threads"]
    return max(1.0, (threads + cores) / cores)


def cells(record: Record) -> list[list[str]]:
    return [
        [
            record["model"],
            way,
            f"{record['load_before']:.1f}",
            f"{statistics.median(us[QUIET]) / 1000:.1f}",
            f"{statistics.median(us[BUSY]) / 1000:.1f}",
            f"{min(us[BUSY]) / 1000:.1f} to {max(us[BUSY]) / 1000:.1f}",
            f"{slower(record, way):.2f}",
            f"{slower(record, way) / fair(record):.2f}",
        ]
        for way, us in record["us"].items()
    ]


TABLES = (
    Table(
        "neighbour",
        (
            "model",
            "program",
            "load before",
            "alone, ms",
            "with a busy process, ms",
            "spread",
            "busy over alone",
            "over a fair share",
        ),
        "<<>>><>>",
        cells,
    ),
)
