"""Measure what a user would run instead: llama.cpp's own programs, unpatched, from the pinned
source.

Plain decoding with llama-bench; two models with llama-speculative-simple, the draft model being the
first blocks of the same file; n-gram speculation with llama-lookup.
"""

from __future__ import annotations

import json
import re
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from pyselfspec.convert.relayer import relayer
from pyselfspec.convert.stream import read_model
from pyselfspec.gguf import file as gguf_file
from tools import upstream
from tools.records import Record, provenance

from ._options import keep, model_argument, progress, run_options
from ._table import Table
from ._upstream_programs import PROGRAMS, folder_argument, run

PROMPT = "Once upon a time there was a king who had three daughters, and the youngest"
DRAFT_MAX = 4
SPEED = re.compile(r"decoded +\d+ tokens in .* speed: +([\d.]+) t/s")
ACCEPT = re.compile(r"n_drafted += (\d+).*?n_accept += (\d+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Outcome:
    """tokens_per_second: one figure per run."""

    tokens_per_second: list[float]
    n_drafted: int
    n_accepted: int
    peak_kb: int


def plain(
    folder: Path, model: Path, threads: int, n_tokens: int, repeats: int, *options: str
) -> Outcome:
    """Plain decoding. options: of llama-bench, in addition."""
    program: list[str | Path] = [
        folder / "llama-bench",
        "-m",
        model,
        "-p",
        "0",
        "-n",
        str(n_tokens),
    ]
    text, peak = run([*program, "-t", str(threads), "-r", str(repeats), "-o", "jsonl", *options])
    line = next(line for line in text.splitlines() if line.startswith("{"))
    return Outcome(json.loads(line)["samples_ts"], 0, 0, peak)


def speculative(program: Sequence[str | Path], repeats: int) -> Outcome:
    """Runs of a program that reports its speed and how much of its drafts was accepted."""
    speeds, n_drafted, n_accepted, peaks = [], 0, 0, []
    for _ in progress(range(repeats), str(program[0])):
        text, peak = run(program)
        speed, accept = SPEED.search(text), ACCEPT.search(text)
        if speed is None or accept is None:
            raise click.ClickException(f"{program[0]} reports no speed:\n{text[-2000:]}")
        speeds.append(float(speed[1]))
        n_drafted += int(accept[1])
        n_accepted += int(accept[2])
        peaks.append(peak)
    return Outcome(speeds, n_drafted, n_accepted, max(peaks))


def run_all(
    folder: Path, model: Path, threads: int, n_keep: int, n_tokens: int, repeats: int
) -> dict[str, Outcome]:
    common: list[str | Path] = [
        "-m",
        model,
        "-p",
        PROMPT,
        "-n",
        str(n_tokens),
        "-t",
        str(threads),
        "--temp",
        "0",
    ]
    common += ["-c", "1024", "--ignore-eos", "--spec-draft-n-max", str(DRAFT_MAX)]
    with tempfile.TemporaryDirectory() as temporary:
        first = Path(temporary, "first.gguf")
        relayer(read_model(model), range(n_keep)).write(first)
        draft: list[str | Path] = ["--spec-type", "draft-simple", "-md", first]
        draft += ["--spec-draft-threads", str(threads)]
        return {
            "llama-bench": plain(folder, model, threads, n_tokens, repeats),
            f"llama-speculative-simple, first {n_keep} blocks": speculative(
                [folder / "llama-speculative-simple", *common, *draft], repeats
            ),
            "llama-lookup": speculative([folder / "llama-lookup", *common], repeats),
        }


@click.group()
def command() -> None:
    """Speed of llama.cpp's own programs, unpatched."""


@command.command()
@click.argument("folder", type=click.Path(path_type=Path))
def build(folder: Path) -> None:
    """Build the programs into FOLDER, in minutes."""
    upstream.build(folder, PROGRAMS, ("TOOLS", "EXAMPLES", "SERVER"))


@command.command("run")
@folder_argument
@model_argument
@run_options
@click.option("--exit-layer", type=click.IntRange(min=1), help="[default: a quarter of the blocks]")
@click.option("--tokens", type=click.IntRange(min=16), default=96)
@click.option("--repeats", type=click.IntRange(min=1), default=5)
def run_command(
    folder: Path,
    model: Path,
    threads: int,
    out: Path | None,
    exit_layer: int | None,
    tokens: int,
    repeats: int,
) -> None:
    """Run them all on MODEL."""
    n_keep = exit_layer or max(1, gguf_file.check(model).n_layer // 4)
    outcomes = run_all(folder.resolve(), model, threads, n_keep, tokens, repeats)
    record: Record = {"peers": {name: asdict(outcome) for name, outcome in outcomes.items()}}
    keep(provenance("peers", model, threads, command="peers run FOLDER") | record, TABLES[0], out)


def cells(record: Record) -> list[list[str]]:
    """One row per program; memory over that of llama-bench."""
    plain = record["peers"]["llama-bench"]
    plain_speed = statistics.median(plain["tokens_per_second"])
    rows = []
    for name, peer in record["peers"].items():
        speeds = peer["tokens_per_second"]
        ratios = [speed / plain_speed for speed in speeds]
        rows.append(
            [
                record["model"],
                name,
                f"{statistics.median(speeds):.1f}",
                f"{statistics.median(speeds) / plain_speed:.2f}",
                f"{min(ratios):.2f} to {max(ratios):.2f}",
                f"{peer['n_accepted'] / peer['n_drafted']:.2f}" if peer["n_drafted"] else "-",
                f"{peer['peak_kb'] / plain['peak_kb'] - 1:+.1%}",
            ]
        )
    return rows


TABLES = (
    Table(
        "peers",
        (
            "model",
            "program",
            "tokens per second",
            "over llama-bench",
            "spread",
            "accepted",
            "memory",
        ),
        "<<>><>>",
        cells,
    ),
)
