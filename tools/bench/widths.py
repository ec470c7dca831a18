"""Passes over one to 32 tokens, with a stock build of llama.cpp and with ours in turn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import click

from pyselfspec.runtime.kv_types import CACHE_TYPE, CACHE_TYPES
from pyselfspec.util.build import LIB_DIR
from tools.records import Record, has_avx2_only, provenance

from ._options import keep, model_argument, run_options
from ._pass_times import N_PAST, N_PROMPT, PROMPT, WIDTHS
from ._table import Table

Times = dict[str, list[int]]  # microseconds by width, and under PROMPT
PROGRAM = Path(__file__).resolve().with_name("_pass_times.py")


def alternate(
    builds: dict[str, Path],
    n_rounds: int,
    arguments: Sequence[str],
    program: Path = PROGRAM,
    environments: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
) -> dict[str, Times]:
    """Run the program with each build in each round; return its outputs by the names of the builds.

    arguments: of the program; _pass_times.py prints the fastest pass of each width. environments:
    variables to set, by the names of builds.
    """
    times: dict[str, Times] = {name: {} for name in builds}
    for _ in range(n_rounds):
        for name, libraries in builds.items():
            env = {"LLAMA_CPP_LIB_PATH": str(libraries), **environments.get(name, {})}
            for width, us in _in_own_process(program, arguments, env).items():
                times[name].setdefault(width, []).append(round(us))
    return times


def _in_own_process(
    program: Path, arguments: Sequence[str], env: Mapping[str, str]
) -> dict[str, float]:
    command = [sys.executable, "-P", str(program), *arguments]
    run = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **env}
    )
    times: dict[str, float] = json.loads(run.stdout)
    return times


@click.command()
@model_argument
@run_options
@click.option("--rounds", type=click.IntRange(min=2), default=3)
@click.option(
    "--stock",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    envvar="PYSELFSPEC_STOCK_LIB",
    required=True,
    show_envvar=True,
    help="Library folder of an unpatched build.",
)
@click.option(
    "--context",
    type=click.IntRange(min=1),
    default=N_PAST,
    help=f"Tokens before those that are timed: up to {N_PROMPT}, or a multiple of it.",
)
@click.option("--cache-type", type=click.Choice(list(CACHE_TYPES)), default=CACHE_TYPE)
def command(
    model: Path,
    threads: int,
    out: Path | None,
    rounds: int,
    stock: Path,
    context: int,
    cache_type: str,
) -> None:
    """Passes over 1 to 32 tokens, relative to a stock build's pass over one."""
    if context > N_PROMPT and context % N_PROMPT:
        raise click.BadParameter(f"{context} is no multiple of {N_PROMPT}", param_hint="--context")
    arguments = [str(model), *map(str, (threads, context, CACHE_TYPES[cache_type]))]
    times = alternate({"stock": stock, "pyselfspec": LIB_DIR}, rounds, arguments)
    record: Record = {"context": context, "cache_type": cache_type}
    given = f" --context {context} --cache-type {cache_type}"
    keep(provenance("widths", model, threads, given) | record | {"us": times}, TABLES[0], out)


#
# figures
#


def over_stock(record: Record, build: str) -> list[str]:
    """The fastest of every width over stock's of width 1, "" where it was not timed; last the
    prompt over stock's prompt."""
    stock, times = record["us"]["stock"], record["us"][build]
    fastest = {width: min(us) / min(stock["1"]) for width, us in times.items()}
    fastest[PROMPT] = min(times[PROMPT]) / min(stock[PROMPT])
    columns = [*map(str, WIDTHS), PROMPT]
    return [f"{fastest[name]:.2f}" if name in fastest else "" for name in columns]


def cells(record: Record) -> list[list[str]]:
    model = record["model"]
    if record.get("context", N_PAST) != N_PAST:
        model += f", {record['context']} tokens before, K and V {record['cache_type'].upper()}"
    return [
        [
            f"{model}, one thread" if record["threads"] == 1 else model,
            f"{build}, AVX2" if has_avx2_only(record) else build,
            f"{min(times['1']) / 1000:.1f}",
            *over_stock(record, build),
        ]
        for build, times in record["us"].items()
    ]


TABLES = (
    Table(
        "widths",
        ("model", "build", "ms", *(f"t({width})" for width in WIDTHS), PROMPT),
        "<<>" + ">" * (len(WIDTHS) + 1),
        cells,
    ),
)
