"""Speed of drafting over plain decoding, beside what the measured costs predict.

A mode is ``auto`` (the default controller), ``adaptive``, ``product``, ``N`` (drafts of N tokens
whatever their probability) or ``fork-N`` (the same, but nothing shared between draft and check).
Plain decoding and all modes run in turn in one process, same prompts and seeds.
"""

from __future__ import annotations

import re
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.progress import track

from pyselfspec import Context, LayerMask, Model, Sampler, SamplingParams
from pyselfspec.costs.calibration import Calibration, costs_for, save
from pyselfspec.costs.table import Costs, CostTable
from pyselfspec.costs.timing import measure
from pyselfspec.speculate import controllers
from pyselfspec.speculate.controllers.fixed import Fixed
from pyselfspec.speculate.drafters import layer_skip, off
from pyselfspec.speculate.loop import generate_steps
from pyselfspec.speculate.types import Step
from pyselfspec.util.machine import usable_cores
from records import KERNELS_OFF, Record, append, provenance

PLAIN = "plain"
PROMPTS = (
    "Once upon a time there was a king who had three daughters, and the youngest",
    "The old man opened the door and",
    "It was late in the evening when the ship",
)
N_CTX = 1024
N_COST_ROUND = 1  # timings of every pass per pair


@dataclass(frozen=True, slots=True)
class Mode:
    name: str
    controller: str | None = None  # None: drafts of n tokens
    n: int = 0
    shares: bool = True

    @classmethod
    def parse(cls, name: str) -> Mode:
        if name in controllers.names() and name != "fixed":
            return cls(name, controller=name)
        match = re.fullmatch(r"(fork-)?([1-9][0-9]?)", name)
        if not match:
            raise click.BadParameter(f"{name!r} is no mode; see pydoc tools/speed.py")
        return cls(name, n=int(match[2]), shares=match[1] is None)


@dataclass(slots=True)
class Run:
    """Counts and times of one mode, first steps left out. us: per token, one figure per pair."""

    us: list[float] = field(default_factory=list)
    steps: dict[str, int] = field(default_factory=dict)  # by "guesses,drafted"
    n_tokens: int = 0
    n_accepted: int = 0
    n_rejected: int = 0  # steps with a drafted token that was wrong
    n_texts: int = 0
    n_same: int = 0  # texts equal to those of plain decoding
    peak_kb: int = 0  # of a process that runs this mode alone; 0: not measured

    def observe(self, steps: Sequence[Step], us: float) -> None:
        n_tokens = sum(len(step.tokens) for step in steps)
        self.us.append(us / n_tokens)
        self.n_tokens += n_tokens
        for step in steps:
            kind = f"{step.n_guesses},{step.n_drafted}"
            self.steps[kind] = self.steps.get(kind, 0) + 1
            self.n_accepted += step.n_accepted
            self.n_rejected += step.n_accepted < step.n_drafted

    def to_dict(self) -> Record:
        return asdict(self) | {"us": [round(us) for us in self.us]}


@dataclass(frozen=True, slots=True)
class Bench:
    """One model with one mask."""

    context: Context
    mask: LayerMask
    table: CostTable  # what controllers know
    n_tokens: int
    temp: float

    def generate(
        self, mode: Mode | None, prompt: Sequence[int], seed: int
    ) -> tuple[list[int], list[Step], float]:
        """Tokens of a text that nothing ends, its steps but the first, and their microseconds."""
        controller: Any = Fixed()
        drafter: Any = off.Drafter(self.context, self.mask)
        if mode is not None:
            drafter = layer_skip.Drafter(self.context, self.mask, share=mode.shares)
            if mode.controller is None:
                controller = Fixed(mode.n, p_min=0.0)
            else:
                controller = controllers.load(mode.controller)(self.table)
        sampling = SamplingParams(temperature=self.temp, seed=seed)
        with Sampler(self.context.model, sampling) as sampler:
            steps = generate_steps(
                self.context,
                prompt,
                drafter=drafter,
                controller=controller,
                sampler=sampler,
                n_predict=self.n_tokens,
                ends=lambda _: False,
            )
            first = next(steps)  # after the prompt
            start = time.perf_counter_ns()
            rest = list(steps)
            us = (time.perf_counter_ns() - start) / 1000
        return [token for step in (first, *rest) for token in step.tokens], rest, us

    def compare(
        self, modes: Sequence[Mode], prompts: Sequence[Sequence[int]], pairs: int
    ) -> tuple[dict[str, Run], list[CostTable]]:
        """Costs, plain decoding, and each mode in turn: a pair per prompt and seed, at least
        ``pairs``. Costs each time, since a machine's memory and cores do not speed up and slow down
        together."""
        runs = {name: Run() for name in (PLAIN, *(mode.name for mode in modes))}
        for mode in (None, *modes):  # graphs, pages, caches
            self.generate(mode, prompts[0], seed=0)
        jobs = [(prompt, seed) for seed in range(-(-pairs // len(prompts))) for prompt in prompts]
        tables = []
        for prompt, seed in track(jobs, "pairs", disable=not sys.stderr.isatty()):
            made = measure(self.context, self.mask, lambda _: None, N_COST_ROUND)
            tables.append(made.table)
            plain, steps, us = self.generate(None, prompt, seed)
            runs[PLAIN].observe(steps, us)
            for mode in modes:
                text, steps, us = self.generate(mode, prompt, seed)
                run = runs[mode.name]
                run.observe(steps, us)
                run.n_texts += 1
                run.n_same += text == plain
        return runs, tables


def calibrated(context: Context, mask: LayerMask) -> Calibration:
    """Costs measured just now: the machine of a stored table may have been busy."""
    made = measure(context, mask, lambda _: None)
    save(made)
    return made


def typical(several: Sequence[Costs]) -> Costs:
    """The median of each cost."""
    median = statistics.median
    return Costs(
        several[0].n_past,
        tuple(map(median, zip(*(costs.full_us for costs in several), strict=True))),
        tuple(map(median, zip(*(costs.check_us for costs in several), strict=True))),
        median(costs.guess_us for costs in several),
        median(costs.last_us for costs in several),
    )


def mask_for(model: Model, exit_layer: int | None) -> LayerMask:
    if exit_layer is not None:
        return LayerMask.early_exit(model.n_layer, exit_layer)
    return model.draft_mask or LayerMask.early_exit(model.n_layer, max(1, model.n_layer // 4))


def tokens_of(model: Model, prompts: Path | None) -> list[list[int]]:
    """Prompts as tokens, random ones for models without a tokenizer."""
    texts = prompts.read_text(encoding="utf-8").splitlines() if prompts else list(PROMPTS)
    texts = [text for text in texts if text.strip()]
    if model.has_vocab:
        return [model.tokenize(text) for text in texts]
    streams = (np.random.default_rng(i) for i in range(len(texts)))
    return [[int(t) for t in rng.integers(0, model.n_vocab, 12)] for rng in streams]


def peak_kb(model: Path, threads: int, exit_layer: int | None, mode: str) -> int:
    """Peak memory of a process that generates in one mode."""
    exit_option = [] if exit_layer is None else ["--exit-layer", str(exit_layer)]
    program = [sys.executable, str(Path(__file__).with_name("bench.py")), "peak", str(model), mode]
    program += ["--threads", str(threads), *exit_option]
    run = subprocess.run(program, check=True, capture_output=True, text=True)
    return int(run.stdout)


@click.command()
@click.argument("model", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("mode")
@click.option("-t", "--threads", type=int, default=usable_cores())
@click.option("--exit-layer", type=click.IntRange(min=1))
def peak(model: Path, mode: str, threads: int, exit_layer: int | None) -> None:
    """Generate 32 tokens in one mode and print the peak memory in kB."""
    with Model(model) as loaded, loaded.context(n_ctx=N_CTX, n_threads=threads) as context:
        mask = mask_for(loaded, exit_layer)
        bench = Bench(context, mask, costs_for(context, mask), 32, 0.0)
        bench.generate(None if mode == PLAIN else Mode.parse(mode), tokens_of(loaded, None)[0], 0)
    click.echo(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


@click.command()
@click.argument(
    "models",
    nargs=-1,
    required=True,
    metavar="MODEL...",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@click.option("-t", "--threads", type=int, default=usable_cores(), show_default=True)
@click.option("--out", type=click.Path(path_type=Path), help="Append the results here.")
@click.option(
    "--mode",
    "modes",
    multiple=True,
    default=("auto", "4", "fork-4"),
    show_default=True,
    help="auto, adaptive, product, N or fork-N; may be given several times.",
)
@click.option(
    "--exit-layer",
    type=click.IntRange(min=1),
    help="Draft with the first blocks.  [default: the model's own mask, else a quarter of them]",
)
@click.option("--prompts", type=click.Path(exists=True, path_type=Path), help="One per line.")
@click.option("--pairs", type=click.IntRange(min=5), default=6, show_default=True)
@click.option("--tokens", type=click.IntRange(min=16), default=256, show_default=True)
@click.option("--temp", type=click.FloatRange(min=0), default=0.0, show_default=True)
@click.option("--memory/--no-memory", default=True, help="Peak memory, in a process per mode.")
def speed(
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
            calibration = calibrated(context, mask)
            texts = tokens_of(model, prompts)
            bench = Bench(context, mask, calibration.table, tokens, temp)
            runs, tables = bench.compare(parsed, texts, pairs)
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
        append(provenance("speed", path, threads, given) | record, out)
        click.echo("\n".join([HEAD, RULE, *rows(record | {"model": path.name})]))


#
# the table
#

HEAD = (
    "| model | mode | acceptance | speed over plain | spread | predicted | ceiling "
    "| tokens per pass | same texts | memory |"
)
RULE = "|---|---|---:|---:|---|---:|---:|---:|---:|---:|"


def rows(record: Record) -> list[str]:
    """One row per mode. Predicted: from the costs and the steps that were made. Ceiling: the best
    that a fixed length could do at this acceptance and these costs."""
    costs = Costs(**record["costs"])
    plain = record["runs"][PLAIN]
    model = record["model"]
    if record.get("command", "").startswith(KERNELS_OFF):
        model += " (upstream's kernels)"
    return [
        _row(model, name, run, plain, costs)
        for name, run in record["runs"].items()
        if name != PLAIN
    ]


def _row(model: str, name: str, run: Record, plain: Record, costs: Costs) -> str:
    ratios = [slow / fast for slow, fast in zip(plain["us"], run["us"], strict=True)]
    n_judged = run["n_accepted"] + run["n_rejected"]
    acceptance = run["n_accepted"] / n_judged if n_judged else None
    ceiling = "-"
    if acceptance is not None and not name.startswith("fork"):
        ceiling = f"{costs.speedup(acceptance)[0]:.2f}"
    return (
        f"| {model} | {name} | {'-' if acceptance is None else f'{acceptance:.2f}'} "
        f"| {statistics.median(ratios):.3f} | {min(ratios):.3f} to {max(ratios):.3f} "
        f"| {predicted(run, costs, name):.3f} | {ceiling} "
        f"| {run['n_tokens'] / sum(run['steps'].values()):.2f} "
        f"| {run['n_same']} of {run['n_texts']} "
        f"| {_memory(run, plain)} |"
    )


def _memory(run: Record, plain: Record) -> str:
    return f"{run['peak_kb'] / plain['peak_kb'] - 1:+.1%}" if plain["peak_kb"] else "-"


def predicted(run: Record, costs: Costs, name: str) -> float:
    """Speed over plain decoding if every pass had cost what the calibration says."""
    if name.startswith("fork"):
        costs = replace(costs, check_us=costs.full_us, last_us=0.0)
    us = 0.0
    for step, n in run["steps"].items():
        n_guesses, n_drafted = map(int, step.split(","))
        us += n * costs.step_us(n_guesses, n_drafted)
    return int(run["n_tokens"]) * costs.plain_us / us
