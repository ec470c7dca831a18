"""Plain decoding and prompts beside unpatched llama.cpp with flash attention, beside the same with
llama.cpp's kernels in our build, and beside the speed at which this machine's memory is read.

Stock's tokens are those of llama-bench; its prompts are read by the same program as ours.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
from pathlib import Path

import click

from pyselfspec.bench.upstream import ENVIRONMENT
from pyselfspec.gguf import file as gguf_file
from pyselfspec.runtime.kv_types import CACHE_TYPES
from pyselfspec.util.build import LIB_DIR
from tools.records import Record, processor, provenance

from . import peers, prompts
from ._options import keep, model_argument, progress, run_options
from ._table import Table
from ._timed_text import PLAIN
from ._upstream_programs import folder_argument
from .cycles import compiler
from .neighbour import Way, us_per_token
from .widths import alternate

READ = Path(__file__).resolve().with_name("_read_speed.cpp")
STOCK, OURS = "llama-bench", "pyselfspec"
UPSTREAM = "llama.cpp's kernels"  # in our build, as in `pyselfspec bench`
CACHE_TYPE = str(CACHE_TYPES["f16"])
SECONDS = 20.0  # at most for the tokens of a round


def compiled_reader(folder: Path) -> Path:
    """The program that measures the speed of memory."""
    made = folder / "read_speed"
    words = [compiler("CXX", "c++"), "-std=c++17", "-O3", "-march=native", "-pthread"]
    subprocess.run([*words, str(READ), "-o", str(made)], check=True)
    return made


def measured(
    stock: Path, model: Path, threads: int, rounds: int, n_tokens: int, n_prompt: int
) -> Record:
    """Microseconds per token and of the prompt by program, and bytes read per second, each with a
    value per round; programs take turns."""
    arguments = [str(model), str(threads), str(n_prompt), CACHE_TYPE]
    builds = {STOCK: stock, UPSTREAM: LIB_DIR, OURS: LIB_DIR}
    environments = {UPSTREAM: ENVIRONMENT}
    ways = [
        Way(UPSTREAM, PLAIN, threads, environment=ENVIRONMENT),
        Way(OURS, PLAIN, threads),
    ]
    token: dict[str, list[int]] = {name: [] for name in builds}
    prompt: dict[str, list[int]] = {name: [] for name in builds}
    read: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        reader = compiled_reader(Path(folder))
        for _ in progress(range(rounds), "rounds"):
            bench = peers.plain(stock, model, threads, n_tokens, 1, "-fa", "1")
            token[STOCK].append(round(1e6 / bench.tokens_per_second[0]))
            for way in ways:
                token[way.name].append(us_per_token(way, model, n_tokens, SECONDS))
            times = alternate(builds, 1, arguments, prompts.PROGRAM, environments)
            for name, us in times.items():
                prompt[name] += us[CACHE_TYPE]
            words = [str(reader), str(threads)]
            read.append(round(float(subprocess.check_output(words, text=True))))
    return {"us": {"token": token, "prompt": prompt}, "read": read}


@click.command()
@folder_argument
@model_argument
@run_options
@click.option("--rounds", type=click.IntRange(min=1), default=3)
@click.option("--tokens", type=click.IntRange(min=1), default=64)
@click.option("--prompt", type=click.IntRange(min=1), default=512)
def command(
    folder: Path, model: Path, threads: int, out: Path | None, rounds: int, tokens: int, prompt: int
) -> None:
    """Plain decoding and prompts over unpatched llama.cpp, which `peers build FOLDER` builds."""
    result = measured(folder.resolve(), model, threads, rounds, tokens, prompt)
    record: Record = {
        "tokens": tokens,
        "prompt": prompt,
        "bytes": gguf_file.check(model).weight_bytes(),
    }
    given = f" --rounds {rounds} --tokens {tokens} --prompt {prompt}"
    start = provenance("plain-peers", model, threads, given, command="plain-peers FOLDER")
    keep(start | record | result, TABLES[0], out)


#
# figures
#


def _ratio(us: dict[str, list[int]], slow: str, fast: str) -> str:
    """How many times as fast, by medians; - where older records have no times."""
    if fast not in us:
        return "-"
    return f"{statistics.median(us[slow]) / statistics.median(us[fast]):.2f}"


def cells(record: Record) -> list[list[str]]:
    token, prompt = record["us"]["token"], record["us"]["prompt"]
    ms = {name: statistics.median(us) / 1000 for name, us in token.items()}
    ratios = [stock / ours for stock, ours in zip(token[STOCK], token[OURS], strict=True)]
    bytes_per_second = record["bytes"] / ms[OURS] * 1000
    memory = statistics.median(record["read"])
    return [
        [
            processor(record),
            record["model"],
            str(record["threads"]),
            f"{1000 / ms[STOCK]:.1f}",
            f"{1000 / ms[OURS]:.1f}",
            _ratio(token, STOCK, OURS),
            f"{min(ratios):.2f} to {max(ratios):.2f}",
            str(record["prompt"]),
            _ratio(prompt, STOCK, OURS),
            f"{memory / 1e9:.1f}",
            f"{bytes_per_second / memory:.2f}",
            _ratio(token, STOCK, UPSTREAM),
            _ratio(prompt, STOCK, UPSTREAM),
        ]
    ]


TABLES = (
    Table(
        "plain-peers",
        (
            "processor",
            "model",
            "threads",
            "llama.cpp, tokens/s",
            "pyselfspec",
            "ratio",
            "spread",
            "prompt, tokens",
            "prompt, ratio",
            "memory, GB/s",
            "share of it",
            "llama.cpp's kernels here",
            "prompt with them",
        ),
        "<<>>>><>>>>>>",
        cells,
    ),
)
