"""Cycles of the kernels by themselves, for the instructions of this processor or of lesser ones.

The program ``_cycles.cpp`` does the measuring. It is compiled here with the kernels and upstream's
products, so that AVX2 alone can be measured on a machine that has more.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import click

from pyselfspec import BUILD_ID, __version__
from pyselfspec.costs.store import machine
from pyselfspec.util.build import LIB_DIR
from tools.records import FORMAT, Record

from ._options import keep
from ._table import Table

ROOT = Path(__file__).resolve().parents[2]
NATIVE = ROOT / "pyselfspec" / "native"
GGML = ROOT / "vendor" / "llama.cpp" / "ggml"
PROGRAM = Path(__file__).resolve().with_name("_cycles.cpp")
WIDTHS = (1, 2, 4, 8, 16, 32)
# Of native/kernels: what a program needs that multiplies, without the rest of the library.
SOURCES = (
    "floats",
    "blocks",
    "superblocks",
    "codebooks",
    "columns",
    "columns_k",
    "columns_ours",
    "columns_codebooks",
    "columns_nibbles",
    "activations",
)
CACHE, MEMORY = "cache", "memory"
BYTES_AND_RUNS = {CACHE: (200 << 10, 900), MEMORY: (192 << 20, 5)}  # of weights, by where they are

AVX2 = ("-mavx2", "-mfma", "-mf16c", "-mbmi2")
AVX512 = (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")
INSTRUCTIONS = {
    "avx2": AVX2,
    "avx-vnni": (*AVX2, "-mavxvnni"),
    "avx512": AVX512,
    "avx512-vnni": (*AVX512, "-mavx512vnni"),
    "native": ("-march=native", "-mno-amx-tile"),
}


def compiled(folder: Path, flags: Sequence[str]) -> Path:
    """The program, with the options that the library's kernels are built with."""
    cpu = GGML / "src" / "ggml-cpu"
    include = (NATIVE, NATIVE / "kernels", GGML / "include", GGML / "src", cpu)
    common = ["-O3", "-DNDEBUG", *flags, *(f"-I{path}" for path in include), "-c"]
    upstream = [cpu / part for part in ("quants.c", "arch/x86/quants.c")]
    ours = [PROGRAM, *(NATIVE / "kernels" / f"{name}.cpp" for name in SOURCES)]
    cxx = compiler("CXX", "c++")
    objects: list[Path] = []
    for i, source in enumerate([*upstream, *ours]):
        is_c = source.suffix == ".c"
        language = [compiler("CC", "cc"), "-D_GNU_SOURCE"] if is_c else [cxx, "-std=gnu++17"]
        quiet = [] if is_c else ["-fno-tree-ter", "-Wno-uninitialized", "-Wno-maybe-uninitialized"]
        objects.append(folder / f"{i}.o")
        words = [*language, *common, *quiet, str(source), "-o", str(objects[-1])]
        subprocess.run(words, check=True)
    [library, *_] = sorted(LIB_DIR.glob("*ggml-base*"))
    program = folder / "cycles"
    files = map(str, (*objects, library))
    subprocess.run([cxx, *files, f"-Wl,-rpath,{LIB_DIR}", "-o", str(program)], check=True)
    return program


def compiler(variable: str, default: str) -> str:
    name = os.environ.get(variable, default)
    if found := shutil.which(name):
        return found
    raise click.ClickException(f"there is no compiler {name}: set {variable} to one")


def measure(program: Path, row: int, source: str) -> list[list[str]]:
    """For each type: name, layout, weights in 64 bytes, cycles of upstream's, of ours by width."""
    words = [str(program), *map(str, (row, *BYTES_AND_RUNS[source], *WIDTHS))]
    run = subprocess.run(words, check=True, capture_output=True, text=True)
    return [line.split() for line in run.stdout.splitlines()]


@click.command()
@click.option("--row", type=click.IntRange(min=32), default=2048, help="Values in a row.")
@click.option("--instructions", type=click.Choice(list(INSTRUCTIONS)), default="native")
@click.option("--from", "source", type=click.Choice([CACHE, MEMORY]), default=CACHE)
@click.option("--out", type=click.Path(path_type=Path), help="Append the result here.")
def command(row: int, instructions: str, source: str, out: Path | None) -> None:
    """Cycles for 64 bytes of weights from the second-level cache or from memory, 1 to 32 tokens,
    beside upstream's for one."""
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(compiled(Path(folder), INSTRUCTIONS[instructions]), row, source)
    given = f"--row {row} --instructions {instructions} --from {source}"
    record: Record = {
        "bench": "cycles",
        "format": FORMAT,
        "version": __version__,
        "build": BUILD_ID,
        "machine": machine(),
        "command": f"python tools/bench.py cycles {given}",
        "date": time.strftime("%Y-%m-%d"),
        "row": row,
        "instructions": instructions,
        "from": source,
        "cycles": measured,
    }
    keep(record, TABLES[0], out)


#
# figures
#


def cells(record: Record) -> list[list[str]]:
    rows = []
    for name, layout, per_line, *cycles in record["cycles"]:
        weights = f"{name}, in columns" if layout == "columns" else name
        shown = ["" if each == "-" else f"{float(each):.1f}" for each in cycles]
        setup = [record["instructions"], record.get("from", CACHE), str(record["row"])]
        rows.append([*setup, weights, per_line, *shown])
    return rows


TABLES = (
    Table(
        "cycles",
        (
            "instructions",
            "from",
            "row",
            "weights",
            "in 64 bytes",
            "upstream, 1",
            *(f"{w}" for w in WIDTHS),
        ),
        "<<><>" + ">" * (len(WIDTHS) + 1),
        cells,
    ),
)
