"""Plain decoding through the package against the barest loop over llama.cpp's C interface."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from pyselfspec.util.build import LIB_DIR
from tools.records import Record, provenance, rounded

from ._options import keep, model_argument, progress, run_options
from ._table import Table

HERE = Path(__file__).resolve().parent
LLAMA_CPP = HERE.parents[1] / "vendor" / "llama.cpp"


def build_plain_loop(folder: Path) -> Path:
    """Compile the C loop against the installed library and the unpacked headers."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None or not LLAMA_CPP.exists():
        raise click.ClickException(
            "the C loop needs a C compiler and vendor/llama.cpp; install from this checkout first"
        )
    program = folder / "plain_loop"
    includes = [f"-I{LLAMA_CPP / 'include'}", f"-I{LLAMA_CPP / 'ggml' / 'include'}"]
    libraries = [f"-L{LIB_DIR}", f"-Wl,-rpath,{LIB_DIR}", "-lllama", "-lggml", "-lggml-base"]
    options = ["-O2", "-o", str(program), str(HERE / "plain_loop.c")]
    subprocess.run([compiler, *options, *includes, *libraries, "-lm"], check=True)
    return program


def in_own_process(program: list[str], model: Path, n_tokens: int, threads: int) -> float:
    """Run a program; return the number that it prints.

    Each run loads the model anew, since its place in memory counts.
    """
    command = [*program, str(model), str(n_tokens), str(threads)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@click.command()
@model_argument
@run_options
@click.option("--pairs", type=click.IntRange(min=5), default=7)
@click.option("--tokens", type=click.IntRange(min=1), default=48)
def command(model: Path, threads: int, out: Path | None, pairs: int, tokens: int) -> None:
    """Speed of the Python loop relative to the C loop (1 = no overhead)."""
    ours: list[float] = []
    bare: list[float] = []
    python_program = [sys.executable, "-P", str(HERE / "_python_loop.py")]
    with tempfile.TemporaryDirectory() as folder:
        c_program = [str(build_plain_loop(Path(folder)))]
        for _ in progress(range(pairs), "pairs"):
            ours.append(in_own_process(python_program, model, tokens, threads))
            bare.append(in_own_process(c_program, model, tokens, threads))
    record = {"python_us": rounded(ours), "c_us": rounded(bare)}
    keep(provenance("overhead", model, threads) | record, TABLES[0], out)


#
# figures
#


def ratios(record: Record) -> list[float]:
    """Speed of the Python loop over that of the C loop, pair by pair."""
    return [c / p for p, c in zip(record["python_us"], record["c_us"], strict=True)]


def cells(record: Record) -> list[list[str]]:
    over_c = ratios(record)
    return [
        [
            record["model"],
            record["machine"],
            str(record["threads"]),
            f"{statistics.median(record['python_us']) / 1000:.2f}",
            f"{statistics.median(over_c):.3f}",
            f"{min(over_c):.3f} to {max(over_c):.3f}",
        ]
    ]


TABLES = (
    Table(
        "overhead",
        ("model", "machine", "threads", "ms per token", "speed over the C loop", "spread"),
        "<<>>><",
        cells,
    ),
)
