"""Everyday tasks beside llama.cpp's own ways of copying: its server with every n-gram mode, and
llama-lookup, unpatched; ours in turn with them.

Every mode has its own server. All are idle but the one that is asked.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click

from pyselfspec import Completion, Model, controllers
from pyselfspec.bench.types import PLAIN
from pyselfspec.cli._signals import as_ctrl_c
from pyselfspec.speculate.config import AUTO
from tools.records import Record, provenance

from ._llama_server import Answer, Client, serving
from ._options import keep, model_argument, progress, repeated, run_options
from ._table import Table
from ._task_file import Task
from ._upstream_programs import folder_argument, program, run
from .peers import ACCEPT, PROMPT
from .tasks import ALL, Answering, Asked, task_options, together

SHORT = "-short"
# Options for short keys and drafts. With stock kernels in Q4_0 a draft of three tokens costs hardly
# more than one of two, and less than one of four: see the table of widths.
MODES = {
    **{
        mode: (f"--spec-{mode}-size-n", "3", f"--spec-{mode}-size-m", "3")
        for mode in ("ngram-simple", "ngram-map-k", "ngram-map-k4v")
    },
    "ngram-mod": (
        *("--spec-ngram-mod-n-match", "3"),
        *("--spec-ngram-mod-n-min", "1", "--spec-ngram-mod-n-max", "3"),
    ),
}
SERVER = ("-np", "1", "--cache-ram", "0", "--no-ui")
SERVER_WAYS: dict[str, tuple[str, ...]] = {
    PLAIN: SERVER,
    **{mode: (*SERVER, "--spec-type", mode) for mode in (*MODES, "ngram-cache")},
    **{mode + SHORT: (*SERVER, "--spec-type", mode, *MODES[mode]) for mode in MODES},
}
# Keys are of 1 to 4 tokens, as in "ngram-cache". Drafts are of 3 by default, there of 8.
LOOKUP_WAYS: dict[str, tuple[str, ...]] = {
    "llama-lookup": (),
    "llama-lookup-8": ("--spec-draft-n-max", "8"),
}
SETTINGS = SERVER_WAYS | LOOKUP_WAYS
THEIRS = tuple(SETTINGS)
OUR_PLAIN, OURS = "pyselfspec, plain", "pyselfspec"

DECODED = re.compile(r"decoded +(\d+) tokens in +([\d.]+) seconds")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One answer. us: of n_tokens tokens, made in n_passes passes."""

    us: int
    n_tokens: int
    n_passes: int
    n_drafted: int
    n_accepted: int
    text: str


@dataclass(slots=True)
class Run:
    """One kind of tasks, answered one way. Lists have one figure per answer."""

    us: list[int] = field(default_factory=list)
    n_tokens: list[int] = field(default_factory=list)
    n_passes: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    n_same: int = 0  # answers equal to those of plain decoding, ours to ours

    def observe(self, made: Outcome, same: bool) -> None:
        self.us.append(made.us)
        self.n_tokens.append(made.n_tokens)
        self.n_passes += made.n_passes
        self.n_drafted += made.n_drafted
        self.n_accepted += made.n_accepted
        self.n_same += same


Runs = dict[str, dict[str, Run]]  # by ways, then by kinds of tasks


def of_server(answer: Answer, text: str) -> Outcome:
    counts = (answer.n_tokens, answer.n_passes, answer.n_drafted, answer.n_accepted)
    return Outcome(answer.us, *counts, text)


def of_lookup(program: Sequence[str | Path], prompt: str) -> Outcome:
    """An answer of llama-lookup, which may go on behind its limit, to the end of a draft. The first
    token comes with the prompt, as in servers."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
        file.write(prompt + "\n")  # it takes one away
        file.flush()
        printed, _peak = run([*program, "-f", file.name])
    decoded, accept = DECODED.search(printed), ACCEPT.search(printed)
    if decoded is None or accept is None:
        raise click.ClickException(f"{program[0]} reports no speed:\n{printed[-2000:]}")
    n_tokens, n_drafted, n_accepted = int(decoded[1]) - 1, int(accept[1]), int(accept[2])
    us = round(float(decoded[2]) * 1e6)
    text = printed.partition(prompt)[2]
    return Outcome(us, n_tokens, n_tokens - n_accepted, n_drafted, n_accepted, text)


def of_ours(made: Completion) -> Outcome:
    stats = made.stats
    us = stats.total_us - stats.prefill_us  # the first token's pass is in it, unlike theirs
    drafts = (sum(stats.n_drafted_at), sum(stats.n_accepted_at))
    return Outcome(us, stats.n_generated, stats.n_steps, *drafts, made.text)


def is_same(way: str, made: Outcome, plain: Outcome) -> bool:
    if way in LOOKUP_WAYS:  # more than the answer is printed
        return made.text.startswith(plain.text)
    return made.text == plain.text


#
# measuring
#


@dataclass(frozen=True, slots=True)
class Everybody:
    """The systems that answer. servers: by the names of variants, PLAIN among them. lookups:
    programs with their options."""

    ours: Answering
    servers: Mapping[str, Client]
    lookups: Mapping[str, Sequence[str | Path]]

    @property
    def ways(self) -> list[str]:
        return [*self.servers, *self.lookups, OUR_PLAIN, OURS]

    def answer(self, way: str, prompt: Sequence[int], seed: int) -> Outcome:
        ask = self.ours
        if way in self.servers:
            client = self.servers[way]
            answer = client.complete(prompt, ask.n_predict, ask.temp, seed)
            return of_server(answer, client.text(answer.tokens))
        if way in self.lookups:
            text = self.servers[PLAIN].text(prompt)
            return of_lookup([*self.lookups[way], "--seed", str(seed)], text)
        return of_ours(ask.answer(PLAIN if way == OUR_PLAIN else AUTO, prompt, seed))

    def compare(self, tasks: Sequence[Task], seed: int = 0) -> Runs:
        """All ways on every turn, one after the other, every second time in reverse."""
        ways = self.ways
        runs: Runs = {way: {task.kind: Run() for task in tasks} for way in ways}
        warm_up = self.ours.context.model.tokenize(PROMPT)  # no task: answers are remembered
        for way in ways:
            self.answer(way, warm_up, seed)
        for task in progress(tasks, f"tasks, temperature {self.ours.temp:g}"):
            for prompt, answers in self.ours.prompts(task):
                made = {way: self.answer(way, prompt, seed) for way in ways}
                ways.reverse()
                for way, outcome in made.items():
                    plain = made[OUR_PLAIN if way in (OURS, OUR_PLAIN) else PLAIN]
                    runs[way][task.kind].observe(outcome, is_same(way, outcome, plain))
                answers.append(made[OUR_PLAIN].text)
        return runs


@contextmanager
def everybody(
    folder: Path, model: Path, threads: int, asked: Asked, temp: float, names: Sequence[str]
) -> Iterator[Everybody]:
    """With nothing remembered yet, neither by servers nor by us. names: of their ways."""
    server, looking_up = program(folder, "llama-server"), program(folder, "llama-lookup")
    common = ["-m", str(model), "-t", str(threads), "-c", str(asked.n_ctx)]
    with ExitStack() as stack:
        stack.enter_context(as_ctrl_c())  # servers are stopped then, too
        loaded = stack.enter_context(Model(model))
        context = stack.enter_context(loaded.context(n_ctx=asked.n_ctx, n_threads=threads))
        template, controller = asked.template(loaded), controllers.DEFAULT
        yield Everybody(
            Answering(context, template, (AUTO,), controller, asked.tokens, temp),
            {
                name: stack.enter_context(serving([server, *common, *options]))
                for name, options in SERVER_WAYS.items()
                if name in (PLAIN, *names)
            },
            {
                name: [looking_up, *common, *options, *_limits(asked.tokens, temp)]
                for name, options in LOOKUP_WAYS.items()
                if name in names
            },
        )


def _limits(n_tokens: int, temp: float) -> list[str]:
    """For llama-lookup; its prompts are texts with all tokens written out."""
    as_it_is = ["--no-escape", "--override-kv", "tokenizer.ggml.add_bos_token=bool:false"]
    return ["-n", str(n_tokens), "--temp", f"{temp:g}", *as_it_is]


@click.command()
@folder_argument
@model_argument
@run_options
@task_options
@click.option(
    "--way",
    "names",
    type=click.Choice([way for way in THEIRS if way != PLAIN]),
    multiple=True,
    default=[way for way in THEIRS if way != PLAIN],
    help="Of llama.cpp, besides plain decoding; may be given several times.",
)
def command(
    folder: Path,
    model: Path,
    threads: int,
    out: Path | None,
    temps: tuple[float, ...],
    names: tuple[str, ...],
    **given: Any,
) -> None:
    """Everyday tasks by llama.cpp's own n-gram modes, and by ours.

    FOLDER is what ``peers build`` has made. Every mode has a server of its own, with the model in
    its memory, for as long as the bench runs.
    """
    asked = Asked(**given)
    tasks = asked.tasks()
    for temp in temps:
        with everybody(folder, model, threads, asked, temp, names) as all_of_them:
            runs = all_of_them.compare(tasks)
            template = all_of_them.ours.template is not None
        record: Record = {
            "tasks_sha256": asked.sha256,
            "temp": temp,
            "template": template,
            "options": {way: SETTINGS[way] for way in runs if way in SETTINGS},
            "runs": {
                way: {kind: asdict(run) for kind, run in by_kind.items()}
                for way, by_kind in runs.items()
            },
        }
        options = f"{asked}{repeated('--way', names)} --temp {temp:g}"
        head = provenance("task peers", model, threads, options, command="task-peers FOLDER")
        keep(head | record, TABLES[0], out)


#
# figures
#


def tokens_per_second(run: Record) -> float | None:
    us = sum(run["us"])
    return sum(run["n_tokens"]) * 1e6 / us if us else None


def best(by_way: Mapping[str, Record]) -> tuple[str, float] | None:
    """The fastest of their ways, plain decoding among them, and ours over it."""
    speeds = {way: tokens_per_second(by_way[way]) for way in THEIRS if way in by_way}
    known = {way: speed for way, speed in speeds.items() if speed is not None}
    ours = tokens_per_second(by_way[OURS])
    if not known or ours is None:
        return None
    way = max(known, key=known.__getitem__)
    return way, ours / known[way]


COLUMNS = (
    (PLAIN,),
    *((mode, mode + SHORT) for mode in MODES),
    ("ngram-cache",),
    tuple(LOOKUP_WAYS),
    (OUR_PLAIN,),
    (OURS,),
)


def cells(record: Record) -> list[list[str]]:
    """Tokens per second by kinds of tasks and over all, then what else is known over all."""
    runs = record["runs"]
    head = [record["model"], f"{record['temp']:g}"]
    by_kind = {kind: {way: runs[way][kind] for way in runs} for kind in runs[PLAIN]}
    overall = {way: together(runs[way].values()) for way in runs}
    rows = []
    for kind, by_way in (*by_kind.items(), (ALL, overall)):
        found = best(by_way)
        last = ["-", "-"] if found is None else [found[0], f"{found[1]:.2f}"]
        rows.append([*head, kind, *_row(by_way, _speed), *last])
    for name, shown in (
        ("tokens per pass", _tokens_per_pass),
        ("acceptance", _acceptance),
        ("same texts", _same),
    ):
        rows.append([*head, f"{ALL}, {name}", *_row(overall, shown), "", ""])
    return rows


def _row(by_way: Mapping[str, Record], shown: Callable[[Record], str]) -> list[str]:
    return [
        " / ".join(shown(by_way[way]) if way in by_way else "-" for way in ways) for ways in COLUMNS
    ]


def _speed(run: Record) -> str:
    speed = tokens_per_second(run)
    return "-" if speed is None else f"{speed:.1f}"


def _tokens_per_pass(run: Record) -> str:
    return f"{sum(run['n_tokens']) / run['n_passes']:.2f}" if run["n_passes"] else "-"


def _acceptance(run: Record) -> str:
    return f"{run['n_accepted'] / run['n_drafted']:.2f}" if run["n_drafted"] else "-"


def _same(run: Record) -> str:
    return f"{run['n_same']} of {len(run['us'])}"


TABLES = (
    Table(
        "task peers",
        (
            "model",
            "temperature",
            "task",
            "llama.cpp, plain",
            *(f"{mode}, default / short" for mode in MODES),
            "ngram-cache",
            "llama-lookup, 3 / 8",
            "pyselfspec, plain",
            "pyselfspec",
            "best of llama.cpp",
            "pyselfspec over best",
        ),
        "<><" + ">" * len(COLUMNS) + "<>",
        cells,
    ),
)
