"""Speed of drafting over plain decoding, beside what the measured costs predict."""

from __future__ import annotations

import statistics
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import click

from pyselfspec import Model
from pyselfspec.bench.pass_times import time_passes
from pyselfspec.costs.speedup import best_length
from pyselfspec.costs.table import Costs
from pyselfspec.speculate.drafters import layer_skip
from tools.records import KERNELS_OFF, Record, provenance

from ._modes import N_CTX, PLAIN, Mode, Setup, mask_for, shares, tokens_of, typical
from ._options import exit_option, file_path, keep, run_options
from ._table import Table

PEAK_MEMORY = Path(__file__).resolve().with_name("_peak_memory.py")


def peak_kb(model: Path, threads: int, exit_layer: int | None, mode: str) -> int:
    """Peak memory of a process that generates in one mode."""
    exit_option = [] if exit_layer is None else ["--exit-layer", str(exit_layer)]
    program = [sys.executable, "-P", str(PEAK_MEMORY), str(model), mode]
    program += ["--threads", str(threads), *exit_option]
    run = subprocess.run(program, check=True, capture_output=True, text=True)
    return int(run.stdout)


@click.command()
@click.argument("models", nargs=-1, required=True, metavar="MODEL...", type=file_path())
@run_options
@click.option(
    "--mode",
    "modes",
    multiple=True,
    default=("auto", "4", "unshared-4"),
    help="A controller, N (drafts of N tokens), or unshared-N; may be given several times.",
)
@exit_option
@click.option("--prompts", type=file_path(), help="One per line.")
@click.option("--pairs", type=click.IntRange(min=5), default=6)
@click.option("--tokens", type=click.IntRange(min=16), default=256)
@click.option("--temp", type=click.FloatRange(min=0), default=0.0)
@click.option("--memory/--no-memory", default=True, help="Peak memory, in a process per mode.")
def command(
    models: tuple[Path, ...],
    threads: int,
    out: Path | None,
    modes: tuple[str, ...],
    exit_layer: int | None,
    prompts: Path | None,
    pairs: int,
    tokens: int,
    temp: float,
    memory: bool,
) -> None:
    """Speed of each draft mode over plain decoding."""
    parsed = [Mode.parse(name) for name in modes]
    for path in models:
        with Model(path) as model, model.context(n_ctx=N_CTX, n_threads=threads) as context:
            mask = mask_for(model, exit_layer)
            timed = time_passes(context, layer_skip.LayerSkipDrafter(context, mask), lambda _: None)
            texts = tokens_of(model, prompts)
            setup = Setup(context, mask, timed.costs, tokens, temp)
            runs, tables = setup.compare(parsed, texts, pairs)
            n_past = round(statistics.mean(len(text) for text in texts)) + tokens // 2
            costs = typical([table.at(n_past) for table in tables])
        for name, run in runs.items() if memory else ():
            run.peak_kb = peak_kb(path, threads, exit_layer, name)
        record: Record = {
            "mask": mask.to_dict(),
            "temp": temp,
            "costs": asdict(costs),
            "runs": {name: run.to_dict() for name, run in runs.items()},
        }
        given = f" --tokens {tokens} --temp {temp:g}" + "".join(f" --mode {name}" for name in modes)
        given += "" if exit_layer is None else f" --exit-layer {exit_layer}"
        keep(provenance("speed", path, threads, given) | record, TABLES[0], out)


#
# figures
#


@dataclass(frozen=True, slots=True)
class Figures:
    """Results of one mode.

    speeds: over plain decoding, one per pair. predicted: from the costs and the steps that were
    made. ceiling: the best that a fixed length could do at this acceptance and these costs.
    memory: over plain decoding. None: not measured, or nothing to say.
    """

    acceptance: float | None
    speeds: list[float]
    predicted: float
    ceiling: float | None
    tokens_per_pass: float
    memory: float | None


def figures(name: str, run: Record, plain: Record, costs: Costs) -> Figures:
    n_judged = run["n_accepted"] + run["n_rejected"]
    acceptance = run["n_accepted"] / n_judged if n_judged else None
    return Figures(
        acceptance,
        [slow / fast for slow, fast in zip(plain["us"], run["us"], strict=True)],
        predicted(run, costs, name),
        None if acceptance is None or not shares(name) else best_length(costs, acceptance)[0],
        run["n_tokens"] / sum(run["steps"].values()),
        run["peak_kb"] / plain["peak_kb"] - 1 if plain["peak_kb"] else None,
    )


def predicted(run: Record, costs: Costs, name: str) -> float:
    """Speed over plain decoding if every pass had cost what was measured."""
    if not shares(name):
        costs = replace(costs, verify_us=costs.full_us, last_us=0.0)
    us = 0.0
    for step, n in run["steps"].items():
        n_proposed, n_drafted = map(int, step.split(","))
        us += n * costs.step_us(n_proposed, n_drafted)
    return int(run["n_tokens"]) * costs.plain_us / us


def cells(record: Record) -> list[list[str]]:
    """One row per mode."""
    costs, runs = Costs(**record["costs"]), record["runs"]
    model = record["model"]
    if record["command"].startswith(KERNELS_OFF):
        model += " (upstream's kernels)"
    rows = []
    for name, run in runs.items():
        if name != PLAIN:
            found = figures(name, run, runs[PLAIN], costs)
            same = f"{run['n_same']} of {run['n_texts']}"
            rows.append([model, name, *_cells(found), same, _or_dash(found.memory, "+.1%")])
    return rows


def _cells(found: Figures) -> list[str]:
    return [
        _or_dash(found.acceptance, ".2f"),
        f"{statistics.median(found.speeds):.3f}",
        f"{min(found.speeds):.3f} to {max(found.speeds):.3f}",
        f"{found.predicted:.3f}",
        _or_dash(found.ceiling, ".2f"),
        f"{found.tokens_per_pass:.2f}",
    ]


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


TABLES = (
    Table(
        "speed",
        (
            "model",
            "mode",
            "acceptance",
            "speed over plain",
            "spread",
            "predicted",
            "ceiling",
            "tokens per pass",
            "same texts",
            "memory",
        ),
        "<<>><>>>>>",
        cells,
    ),
)
