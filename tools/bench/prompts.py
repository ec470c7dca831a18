"""Reading speed of prompts for each type of K and V, with two builds in turn where one is given."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import click

from pyselfspec.runtime.kv_types import CACHE_TYPES
from pyselfspec.util.build import LIB_DIR
from tools.records import Record, provenance

from ._options import keep, model_argument, run_options, stock_option
from ._table import Table
from .widths import alternate

PROGRAM = Path(__file__).resolve().with_name("_prompt_times.py")
TYPES = ("f16", "q8_0", "q4_0")


@click.command()
@model_argument
@run_options
@click.option("--rounds", type=click.IntRange(min=1), default=3)
@click.option("--tokens", type=click.IntRange(min=1), default=1024)
@stock_option
def command(
    model: Path, threads: int, out: Path | None, rounds: int, tokens: int, stock: Path | None
) -> None:
    """Tokens of a prompt per second, for each type of K and V."""
    builds = ({"stock": stock} if stock else {}) | {"pyselfspec": LIB_DIR}
    names = {str(CACHE_TYPES[name]): name for name in TYPES}
    arguments = [str(model), str(threads), str(tokens), *names]
    times = alternate(builds, rounds, arguments, PROGRAM)
    us = {b: {names[number]: runs for number, runs in of.items()} for b, of in times.items()}
    record: Record = {"tokens": tokens, "us": us}
    given = f" --tokens {tokens}"
    keep(provenance("prompts", model, threads, given) | record, TABLES[0], out)


def cells(record: Record) -> list[list[str]]:
    return [
        [
            record["model"],
            str(record["tokens"]),
            build,
            *(f"{record['tokens'] / median(us[name]) * 1e6:.0f}" for name in TYPES),
        ]
        for build, us in record["us"].items()
    ]


TABLES = (
    Table(
        "prompts",
        ("model", "tokens", "build", *(f"{name}, tokens/s" for name in TYPES)),
        "<><>>>",
        cells,
    ),
)
