"""Answers per second of a server with several clients: ours without and with drafts, beside
llama.cpp's, unpatched; each with the same model, threads and slots, asked in turn.

Nothing is remembered from one round to the next but what drafts learn: every prompt is asked once.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import click
import httpx

from pyselfspec.cli._signals import as_ctrl_c
from tools.records import Record, processor, provenance

from ._llama_server import HOST
from ._llama_server import serving as llama_serving
from ._options import file_path, keep, kinds_option, model_argument, repeated, run_options
from ._table import Table
from ._task_file import Task, read_tasks
from ._upstream_programs import folder_argument, program

THEIRS, PLAIN, DRAFTED = "llama-server", "pyselfspec, plain", "pyselfspec"
N_CLIENTS = (1, 2, 4, 8, 16)
Runs = dict[str, dict[str, list[list[int]]]]  # by clients and ways: tokens and us of each round


@contextmanager
def our_server(options: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Its address, and the microseconds until it answered."""
    start = time.perf_counter_ns()
    command = [sys.executable, "-m", "pyselfspec", "serve", "--port", "0", "--json", *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        try:
            url = json.loads(process.stdout.readline())["url"]
            yield url, (time.perf_counter_ns() - start) // 1000
        finally:
            process.terminate()


def prompts_of(tasks: Sequence[Task], n: int) -> list[str]:
    """n different prompts, of the first turns of tasks: the second time around with a number before
    them, so that none is known."""
    turns = [task.turns[0] for task in tasks]
    return [
        turns[i % len(turns)] if i < len(turns) else f"{i // len(turns)}. {turns[i % len(turns)]}"
        for i in range(n)
    ]


def ask(client: httpx.Client, url: str, prompt: str, settings: Mapping[str, float]) -> int:
    """Tokens of the answer."""
    body = {"messages": [{"role": "user", "content": prompt}], **settings}
    response = client.post(f"{url}/v1/chat/completions", json=body)
    if response.status_code != 200:
        raise click.ClickException(f"{url}: {response.text[:300]}")
    return int(response.json()["usage"]["completion_tokens"])


def throughput(
    url: str, prompts: Sequence[str], n_clients: int, settings: Mapping[str, float]
) -> tuple[int, int]:
    """Tokens of all answers, and the microseconds that they took."""
    client = httpx.Client(timeout=600, verify=False, trust_env=False)
    with client, ThreadPoolExecutor(n_clients) as pool:
        start = time.perf_counter_ns()
        n = sum(pool.map(lambda prompt: ask(client, url, prompt, settings), prompts))
        return n, (time.perf_counter_ns() - start) // 1000


@click.command()
@folder_argument
@model_argument
@run_options
@click.option("--tasks", "file", type=file_path(), required=True)
@kinds_option
@click.option("--rounds", type=click.IntRange(min=1), default=3)
@click.option("--tokens", type=click.IntRange(min=2), default=96, help="At most, per answer.")
@click.option("--answers", type=click.IntRange(min=1), default=2, help="Per client and round.")
@click.option("--temp", type=click.FloatRange(min=0), default=0.0)
@click.option(
    "--clients",
    type=click.IntRange(1, max(N_CLIENTS)),
    multiple=True,
    default=N_CLIENTS,
    help="At once; may be given several times.",
)
def command(
    folder: Path,
    model: Path,
    threads: int,
    out: Path | None,
    file: Path,
    kinds: tuple[str, ...],
    rounds: int,
    tokens: int,
    answers: int,
    temp: float,
    clients: tuple[int, ...],
) -> None:
    """Throughput for several clients, beside llama-server."""
    n_ctx, n_slots = 16384, max(N_CLIENTS)
    settings = {"max_tokens": tokens, "temperature": temp, "seed": 1}
    ours = [str(model), "-t", str(threads), "-c", str(n_ctx), "--slots", str(n_slots)]
    common = ["-m", str(model), "-t", str(threads), "-c", str(n_ctx), "-np", str(n_slots)]
    theirs: list[str | Path] = [
        program(folder, "llama-server"),
        *common,
        "--cache-ram",
        "0",
        "--no-ui",
        "-kvu",
    ]
    prompts = iter(prompts_of(read_tasks(file, kinds, None), rounds * answers * sum(clients)))
    runs: Runs = {str(n): {way: [] for way in (THEIRS, PLAIN, DRAFTED)} for n in clients}
    with ExitStack() as stack:
        stack.enter_context(as_ctrl_c())  # servers are stopped then, too
        client = stack.enter_context(llama_serving(theirs))
        plain, _ = stack.enter_context(our_server([*ours, "--draft", "off"]))
        drafted, start_us = stack.enter_context(our_server(ours))
        urls = {THEIRS: f"http://{HOST}:{client.port}", PLAIN: plain, DRAFTED: drafted}
        for url in urls.values():
            throughput(url, ["Hello there, who are you?"], 1, settings | {"max_tokens": 16})
        for turn in range(rounds):
            for n in clients:
                chosen = [next(prompts) for _ in range(n * answers)]
                for way in sorted(urls, reverse=bool(turn % 2)):
                    runs[str(n)][way].append(list(throughput(urls[way], chosen, n, settings)))
    options = f" --tasks {file.name} --rounds {rounds} --tokens {tokens} --answers {answers}"
    options += f" --temp {temp:g}{repeated('--clients', clients)}{repeated('--task', kinds)}"
    head = provenance("serving", model, threads, options, command="serving FOLDER")
    keep(
        head | {"temperature": temp, "kinds": kinds, "start_us": start_us, "runs": runs},
        TABLES[0],
        out,
    )


def speed(rounds: Sequence[Sequence[int]]) -> float:
    """Tokens per second, the median of the rounds."""
    return median(n * 1e6 / us for n, us in rounds)


def ratios(runs: Mapping[str, Any], way: str, other: str) -> list[float]:
    """Speed of one way over that of another one, in each round."""
    pairs = zip(runs[way], runs[other], strict=True)
    return [(n / us) / (o_n / o_us) for (n, us), (o_n, o_us) in pairs]


def cells(record: Record) -> list[list[str]]:
    rows = []
    for clients, runs in record["runs"].items():
        gains = ratios(runs, DRAFTED, PLAIN)
        rows.append(
            [
                record["model"],
                processor(record),
                str(record["threads"]),
                f"{record.get('temperature', 0):g}",
                ", ".join(record.get("kinds", ())) or "all",
                clients,
                *(f"{speed(runs[way]):.0f}" for way in (THEIRS, PLAIN, DRAFTED)),
                *(f"{median(ratios(runs, way, THEIRS)):.2f}" for way in (PLAIN, DRAFTED)),
                f"{median(gains):.2f}",
                f"{min(gains):.2f} to {max(gains):.2f}",
            ]
        )
    return rows


TABLES = (
    Table(
        "serving",
        (
            "model",
            "processor",
            "threads",
            "temperature",
            "tasks",
            "clients",
            "llama-server, tokens/s",
            "plain, tokens/s",
            "with drafts, tokens/s",
            "plain over it",
            "with drafts over it",
            "drafts over plain",
            "spread",
        ),
        "<<>><" + ">" * 8,
        cells,
    ),
)
