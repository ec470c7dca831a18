"""Speed of drafting over plain decoding on everyday tasks, the model writing its own answers.

Prompts have the model's chat template; a model without one gets the plain text of the first turn.
Answers to earlier turns are those of plain decoding.

Every answer is as the first of a session: nothing is copied from earlier ones, which would know a
prompt that comes twice. Costs and chances are learned from answer to answer, as always.
"""

from __future__ import annotations

import hashlib
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import click
import numpy as np

from pyselfspec import Context, Fixed, Model, controllers, drafters
from pyselfspec.bench import measuring
from pyselfspec.bench.figures import added
from pyselfspec.bench.measuring import RecordedCompletion
from pyselfspec.bench.setup import template_of
from pyselfspec.bench.types import PLAIN
from pyselfspec.bench.variants import Variant
from pyselfspec.speculate.config import AUTO
from pyselfspec.templates.messages import ASSISTANT, USER, Message
from pyselfspec.templates.template import ChatTemplate
from tools.records import Record, processor, provenance

from ._options import (
    file_path,
    keep,
    kinds_option,
    model_argument,
    progress,
    repeated,
    run_options,
)
from ._table import Table
from ._task_file import Task, read_tasks

N_BIN = 10  # of chances from 0 to 1
POSITIONS = (0, 1, 3)  # in a draft
ALL = "all"  # the row over all kinds of tasks


Command = Callable[..., None]


def task_options(command: Command) -> Command:
    """Which tasks, and how they are answered: the fields of `Asked`, and --temp."""
    for option in (
        click.option("--plain-text", is_flag=True, help="Without the chat template."),
        click.option("-c", "--ctx-size", "n_ctx", type=click.IntRange(min=64), default=4096),
        click.option(
            "--tokens", type=click.IntRange(min=2), default=160, help="At most, per answer."
        ),
        click.option(
            "--each", "n_each", type=click.IntRange(min=1), help="Only the first of each kind."
        ),
        kinds_option,
        click.option(
            "--temp",
            "temps",
            type=click.FloatRange(min=0),
            multiple=True,
            default=(0.0, 0.7),
            help="Temperature; may be given several times.",
        ),
        click.option("--tasks", "file", type=file_path(), required=True, help="JSON lines."),
    ):
        command = option(command)
    return command


@dataclass(frozen=True, slots=True)
class Asked:
    """The values of the options above. n_each: None for all tasks of a kind."""

    file: Path
    kinds: tuple[str, ...]
    n_each: int | None
    tokens: int
    n_ctx: int
    plain_text: bool

    def tasks(self) -> list[Task]:
        return read_tasks(self.file, self.kinds, self.n_each)

    def template(self, model: Model) -> ChatTemplate | None:
        """None for plain text."""
        return None if self.plain_text else template_of(model)

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.file.read_bytes()).hexdigest()

    def __str__(self) -> str:
        """Return the options as on the command line."""
        given = f" --tasks {self.file.name} --tokens {self.tokens} -c {self.n_ctx}"
        given += repeated("--task", self.kinds)
        given += "" if self.n_each is None else f" --each {self.n_each}"
        return given + " --plain-text" * self.plain_text


def without_folders(way: str) -> str:
    """A name of drafters, files without where they are."""
    return re.sub(r":[^+]*/", ":", way)


#
# measuring
#


@dataclass(slots=True)
class Run:
    """Counts and times of one kind of tasks, decoded one way. Lists have one figure per answer."""

    us: list[int] = field(default_factory=list)  # without the prompt
    n_tokens: list[int] = field(default_factory=list)
    n_steps: int = 0
    n_drafted_at: list[int] = field(default_factory=list)  # by position in the draft
    n_accepted_at: list[int] = field(default_factory=list)
    sources: dict[str, list[list[int]]] = field(default_factory=dict)  # the same two by drafter
    n_said: list[int] = field(default_factory=lambda: [0] * N_BIN)  # tokens by the chance given
    n_right: list[int] = field(default_factory=lambda: [0] * N_BIN)  # of these
    n_same: int = 0  # answers equal to those of plain decoding

    def observe(self, made: RecordedCompletion) -> None:
        stats = made.stats
        self.us.append(stats.total_us - stats.prefill_us)
        self.n_tokens.append(stats.n_generated)
        self.n_steps += stats.n_steps
        self.n_drafted_at = added(self.n_drafted_at, stats.n_drafted_at)
        self.n_accepted_at = added(self.n_accepted_at, stats.n_accepted_at)
        for name, source in stats.sources.items():
            drafted, accepted = self.sources.get(name, ([], []))
            self.sources[name] = [
                added(drafted, source.n_drafted_at),
                added(accepted, source.n_accepted_at),
            ]
        for token, right in (outcome for step in made.steps for outcome in step.outcomes):
            if token.p is not None:
                at = min(N_BIN - 1, int(N_BIN * token.p))
                self.n_said[at] += 1
                self.n_right[at] += right


Runs = dict[str, dict[str, Run]]  # by PLAIN and names of drafters, then by kinds of tasks


@dataclass(frozen=True, slots=True)
class Answering:
    """A model that answers, and how."""

    context: Context
    template: ChatTemplate | None
    names: tuple[str, ...]  # of drafters
    controller: str | Fixed
    n_predict: int
    temp: float

    def answer(self, way: str, prompt: Sequence[int], seed: int) -> RecordedCompletion:
        asking = measuring.Runner(self.context, self.n_predict, self.temp, self.controller)
        return asking.answer(Variant.named(way), prompt, seed)

    def prompts(self, task: Task) -> Iterator[tuple[list[int], list[str]]]:
        """The prompt of every turn. The answer to it is to be added to the list that comes with
        it. Without a template, the text of the first turn."""
        answers: list[str] = []
        if self.template is None:
            yield self.context.model.tokenize(task.turns[0]), answers
            return
        for i in range(len(task.turns)):
            said = zip_longest(task.turns[: i + 1], answers)
            messages = [
                Message(role, text)
                for pair in said
                for role, text in zip((USER, ASSISTANT), pair, strict=True)
                if text is not None
            ]
            yield self.template.tokens(messages), answers

    def compare(self, tasks: Sequence[Task], rounds: int) -> Runs:
        """All ways on every turn, one after the other, every second time in reverse."""
        ways = [PLAIN, *self.names]
        runs: Runs = {way: {task.kind: Run() for task in tasks} for way in ways}
        for way in ways:  # graphs, pages, caches
            self.answer(way, next(self.prompts(tasks[0]))[0], 0)
        jobs = [(task, seed) for seed in range(rounds) for task in tasks]
        for task, seed in progress(jobs, f"tasks, temperature {self.temp:g}"):
            for prompt, answers in self.prompts(task):
                made = {way: self.answer(way, prompt, seed) for way in ways}
                ways.reverse()
                for way, completion in made.items():
                    runs[way][task.kind].observe(completion)
                    same = completion.tokens == made[PLAIN].tokens
                    runs[way][task.kind].n_same += same
                answers.append(made[PLAIN].text)
        return runs


@click.command()
@model_argument
@run_options
@task_options
@click.option(
    "--draft",
    "names",
    multiple=True,
    default=(AUTO,),
    show_default=True,
    help="As for generate: " + ", ".join((AUTO, *drafters.all_names())) + "; may be given several "
    "times.",
)
@click.option(
    "--controller", type=click.Choice(controllers.all_names()), default=controllers.DEFAULT
)
@click.option(
    "--fixed",
    "n_fixed",
    type=click.IntRange(min=1),
    help="Draft so many tokens in every step, however likely they are, instead of what a "
    "controller says: to see how often each is right.",
)
@click.option("--rounds", type=click.IntRange(min=1), default=1, help="Seeds for every task.")
@click.option(
    "--plot",
    "plot_file",
    type=click.Path(path_type=Path),
    help="Draw expected chances beside what happened into this file (.png, .svg).",
)
def command(
    model: Path,
    threads: int,
    out: Path | None,
    names: tuple[str, ...],
    controller: str,
    n_fixed: int | None,
    temps: tuple[float, ...],
    rounds: int,
    plot_file: Path | None,
    **given: Any,
) -> None:
    """Speed of drafting over plain decoding on everyday tasks, kind by kind."""
    asked = Asked(**given)
    tasks = asked.tasks()
    how = f"--fixed {n_fixed}" if n_fixed else f"--controller {controller}"
    options = f" {how} --rounds {rounds}{asked}{repeated('--draft', map(without_folders, names))}"
    with Model(model) as loaded, loaded.context(n_ctx=asked.n_ctx, n_threads=threads) as context:
        template = asked.template(loaded)
        records: list[Record] = []
        for temp in temps:
            controlled = Fixed(n_fixed, p_min=0) if n_fixed else controller
            answering = Answering(context, template, names, controlled, asked.tokens, temp)
            runs = answering.compare(tasks, rounds)
            record: Record = {
                "tasks_sha256": asked.sha256,
                "temp": temp,
                "template": template is not None,
                "runs": {
                    without_folders(way): {kind: asdict(run) for kind, run in by_kind.items()}
                    for way, by_kind in runs.items()
                },
            }
            head = provenance("tasks", model, threads, f"{options} --temp {temp:g}")
            records.append(head | record)
            keep(records[-1], TABLES[0], out)
    if plot_file is not None:
        from ._chances import save

        save(
            plot_file,
            records,
            [together(r["runs"][without_folders(names[0])].values()) for r in records],
        )


#
# figures
#


@dataclass(frozen=True, slots=True)
class Figures:
    """Results of one kind of tasks with one drafter.

    speed: over plain decoding, all answers together. speeds: of every answer. acceptance: accepted
    over drafted tokens, None where nothing was drafted; at: the same by position in the draft.
    """

    speed: float
    speeds: list[float]
    tokens_per_pass: float
    acceptance: float | None
    at: list[float]
    n_same: int


def figures(run: Record, plain: Record) -> Figures:
    ours, theirs = (
        [us / n for us, n in zip(each["us"], each["n_tokens"], strict=True)]
        for each in (run, plain)
    )
    n_drafted = sum(run["n_drafted_at"])
    return Figures(
        _us_per_token(plain) / _us_per_token(run),
        [slow / fast for slow, fast in zip(theirs, ours, strict=True)],
        sum(run["n_tokens"]) / run["n_steps"],
        sum(run["n_accepted_at"]) / n_drafted if n_drafted else None,
        [n / all_of for n, all_of in zip(run["n_accepted_at"], run["n_drafted_at"], strict=False)],
        run["n_same"],
    )


def _us_per_token(run: Record) -> float:
    return float(sum(run["us"]) / sum(run["n_tokens"]))


def together(runs: Iterable[Record]) -> Record:
    """Runs of several kinds as one."""
    all_of: Record = {}
    for run in runs:
        for key, value in run.items():
            if key == "sources":
                continue  # told by kind
            if key.endswith("_at") or key in ("n_said", "n_right"):
                all_of[key] = added(all_of.get(key, []), value)
            else:
                all_of[key] = all_of[key] + value if key in all_of else value
    return all_of


def cells(record: Record) -> list[list[str]]:
    """One row per drafter and kind of tasks, and one over all kinds."""
    plain = record["runs"][PLAIN]
    start = (record["model"], processor(record), str(record["threads"]))
    rows = []
    for name, by_kind in record["runs"].items():
        if name == PLAIN:
            continue
        for kind in (*by_kind, ALL):
            pair = [
                together(runs.values()) if kind == ALL else runs[kind] for runs in (by_kind, plain)
            ]
            shown = _cells(figures(*pair), len(pair[0]["us"]))
            rows.append([*start, name, f"{record['temp']:g}", kind, *shown])
    return rows


def _cells(found: Figures, n_answers: int) -> list[str]:
    low, high = np.quantile(found.speeds, (0.05, 0.95))
    return [
        f"{found.speed:.3f}",
        f"{statistics.median(found.speeds):.3f}",
        f"{low:.3f} to {high:.3f}",
        f"{found.tokens_per_pass:.2f}",
        "-" if found.acceptance is None else f"{found.acceptance:.2f}",
        " ".join(f"{found.at[i]:.2f}" for i in POSITIONS if i < len(found.at)) or "-",
        f"{found.n_same} of {n_answers}",
    ]


TABLES = (
    Table(
        "tasks",
        (
            "model",
            "processor",
            "threads",
            "draft",
            "temperature",
            "task",
            "speed over plain",
            "median",
            "of 9 in 10 answers",
            "tokens per pass",
            "acceptance",
            "of tokens 1, 2, 4",
            "same texts",
        ),
        "<<><><>><>>>>",
        cells,
    ),
)
