"""A server under clients of all kinds, for minutes: python -m tools.soak MODEL --minutes 10

Before it begins, every prompt is answered once, alone. Then clients ask for the same answers, whole
and as streams, read slowly, go away in the middle, and send what is malformed, refused or too
large. At the end: whether every answer was the one alone, every status the right one, no slot is
taken, and how the server's memory went.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import httpx

WORDS = (
    "king queen daughter river mountain bread castle stranger horse garden winter promise".split()
)
N_JOBS = 24
MAX_BODY_MIB = 0.05
SLOW_S = 0.02  # between two lines that a slow client reads
PATH = "/v1/completions"
MALFORMED = (b"{", b"[]", b"\xff", b'{"prompt": 1}', b"[" * 5000, b'{"prompt": "x", "n": 99}')


@contextmanager
def serving(model: str, options: list[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The server's process and its address."""
    command = [sys.executable, "-m", "pyselfspec", "serve", model, "--port", "0", "--json"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()


def jobs(seed: int) -> list[dict[str, Any]]:
    """Prompts of all lengths, many with a common beginning; every way to draft."""
    rng = random.Random(seed)
    opening = " ".join(rng.choices(WORDS, k=40))
    found = []
    for i in range(N_JOBS):
        start = opening if i % 2 else ""
        prompt = f"{start} {' '.join(rng.choices(WORDS, k=rng.randint(1, 120)))}"
        found.append(
            {
                "prompt": prompt,
                "seed": i,
                "max_tokens": rng.randint(1, 60),
                "temperature": rng.choice([0, 0.8]),
                "pyselfspec": {"draft": rng.choice(["auto", "ngram", None])},
            }
        )
    return found


@dataclass
class Seen:
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    rss: list[int] = field(default_factory=list)  # KiB, once in a while


@dataclass
class Client:
    """One of those who ask. alone: the answers of the jobs."""

    http: httpx.AsyncClient
    jobs: list[dict[str, Any]]
    alone: list[str]
    seen: Seen
    rng: random.Random

    async def ask_until(self, end: float) -> None:
        ways = (self.whole, self.stream, self.stream, self.slow, self.leave, self.nonsense)
        while time.monotonic() < end:
            way = self.rng.choice(ways)
            await way(self.rng.randrange(len(self.jobs)))
            self.seen.counts[way.__name__] += 1

    def check(self, i: int, text: str) -> None:
        if text != self.alone[i]:
            self.seen.wrong.append(f"job {i}: {text[:60]!r} instead of {self.alone[i][:60]!r}")

    async def whole(self, i: int) -> None:
        response = await self.http.post(PATH, json=self.jobs[i])
        if response.status_code != 200:
            self.seen.wrong.append(f"job {i}: status {response.status_code}")
            return
        self.check(i, response.json()["choices"][0]["text"])

    async def stream(self, i: int) -> None:
        text = ""
        async with self.http.stream("POST", PATH, json=self.jobs[i] | {"stream": True}) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    text += json.loads(line[6:])["choices"][0]["text"]
        self.check(i, text)

    async def slow(self, i: int) -> None:
        """Asks for shown tokens, which makes chunks large, and reads little of them at a time."""
        shown = {**self.jobs[i]["pyselfspec"], "show": True}
        body = self.jobs[i] | {"stream": True, "max_tokens": 400, "pyselfspec": shown}
        async with self.http.stream("POST", PATH, json=body) as response:
            async for _ in response.aiter_lines():
                await asyncio.sleep(SLOW_S)

    async def leave(self, i: int) -> None:
        """After some chunks, or before any."""
        n = self.rng.randint(0, 5)
        body = self.jobs[i] | {"stream": True, "max_tokens": 200}
        try:
            timeout = None if n else 0.05
            async with self.http.stream("POST", PATH, json=body, timeout=timeout) as response:
                async for _ in response.aiter_lines():
                    n -= 1
                    if n < 0:
                        return
        except httpx.TimeoutException:
            pass

    async def nonsense(self, i: int) -> None:
        too_large = self.rng.random() < 0.3
        content = (
            b" " * round(MAX_BODY_MIB * 2**20 + 1) if too_large else self.rng.choice(MALFORMED)
        )
        headers = {"Content-Type": "application/json"}
        response = await self.http.post(PATH, content=content, headers=headers)
        if response.status_code != (413 if too_large else 400):
            self.seen.wrong.append(f"{content[:20]!r}: status {response.status_code}")


def rss(pid: int) -> int:
    """KiB in memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


async def soak(url: str, pid: int, n_clients: int, seconds: float, seed: int) -> Seen:
    asked, seen = jobs(seed), Seen()
    limits = httpx.Limits(max_connections=2 * n_clients)
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as http:
        alone = [(await http.post(PATH, json=job)).json()["choices"][0]["text"] for job in asked]
        end = time.monotonic() + seconds
        clients = [
            Client(http, asked, alone, seen, random.Random(seed + i)).ask_until(end)
            for i in range(n_clients)
        ]
        watching = asyncio.create_task(_watch(pid, seen, seconds))
        await asyncio.gather(*clients)
        watching.cancel()
        for _ in range(100):  # those that have left are noticed by and by
            metrics = (await http.get("/metrics")).text
            if "pyselfspec_texts_running 0.0" in metrics:
                break
        else:
            seen.wrong.append("a slot is still taken")
    return seen


async def _watch(pid: int, seen: Seen, seconds: float) -> None:
    while True:
        seen.rss.append(rss(pid))
        await asyncio.sleep(seconds / 20)


@click.command()
@click.argument("model", default="demo")
@click.option("--minutes", default=10.0, show_default=True)
@click.option("--clients", default=8, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--option", "-o", "options", multiple=True, help="For the server, as one word.")
def command(model: str, minutes: float, clients: int, seed: int, options: tuple[str, ...]) -> None:
    given = ["--max-body", str(MAX_BODY_MIB), "-t", "1", *options]
    with serving(model, given) as (process, url):
        seen = asyncio.run(soak(url, process.pid, clients, 60 * minutes, seed))
    click.echo(json.dumps({"seed": seed, "requests": dict(seen.counts), "rss_kib": seen.rss}))
    for fault in seen.wrong[:20]:
        click.echo(fault, err=True)
    if seen.wrong:
        raise click.ClickException(f"{len(seen.wrong)} answers were wrong")


if __name__ == "__main__":
    command()
