"""A server under many clients of all kinds: python -m tools.soak MODEL --requests 2000

Before it begins, every request is answered once, alone. Then clients ask for the same answers at
every door, whole and as streams, read slowly, go away in the middle, and send what is malformed,
refused or too large. At last the server gets SIGTERM in the middle of work. At the end: whether
every answer was the one alone and every status the right one, how memory, files and threads went,
how long the end took, and what the log has.

Several models, each given as NAME=MODEL, are asked through the router. With less memory than they
take together, they are loaded and unloaded all the time:

    python tools/models/tiny_gguf.py llama toy.gguf
    python -m tools.soak demo=demo toy=toy.gguf -o --max-memory -o 0.024
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import httpx

from tools.soak_requests import N_JOBS, Job, Maker, told

N_HEAVY = 3
MAX_BODY_MIB = 0.05
SLOW_S = 0.002  # between two lines that a slow client reads
N_RECEIVE = 4096  # bytes that its socket takes in advance
GRACE_S = 1
END_S = GRACE_S + 3  # in which the server must have ended
SETTLED_AT = 500  # requests, from where memory must be flat
GROWTH = 1.05
PATH = "/v1/completions"
MALFORMED = (b"{", b"[]", b"\xff", b'{"prompt": 1}', b"[" * 5000, b'{"prompt": "x", "n": 99}')
Answer = tuple[int, dict[str, str]]  # status, and what it says


@contextmanager
def serving(
    models: Sequence[str], options: Sequence[str], log: Path
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The server's process and its address. log: for what it writes."""
    named = [f"--model={each}" for each in models] if len(models) > 1 else models
    command = [sys.executable, "-m", "pyselfspec", "serve", *named, "--port", "0", "--json"]
    with (
        log.open("w") as stderr,
        subprocess.Popen(
            [*command, *options], stdout=subprocess.PIPE, stderr=stderr, text=True
        ) as process,
    ):
        assert process.stdout is not None
        try:
            yield process, json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(each) for task in tasks for each in (task / "children").read_text().split()]


@dataclass
class Seen:
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    usage: dict[str, Usage] = field(default_factory=dict)  # by the number of requests


@dataclass(frozen=True)
class Usage:
    """Memory, files and threads of a process, and of its children where `with_children`."""

    rss_kib: int
    n_files: int
    n_threads: int

    @classmethod
    def of(cls, pid: int, *, with_children: bool = True) -> Usage:
        proc = Path(f"/proc/{pid}")
        lines = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
        rss, n_threads = (int(lines[name].split()[0]) for name in ("VmRSS", "Threads"))
        n_files = len(list((proc / "fd").iterdir()))
        for child in children(pid) if with_children else ():
            more = cls.of(child)
            rss, n_files = rss + more.rss_kib, n_files + more.n_files
            n_threads += more.n_threads
        return cls(rss, n_files, n_threads)


@dataclass
class Crowd:
    """The clients. alone: the answers of the jobs, when nothing else is asked. pause: no request
    begins while this file exists. is_router: the server's children are models that begin and end
    all the time, and are not measured."""

    url: str
    pid: int
    jobs: Sequence[Job]
    rng: random.Random
    pause: Path | None = None
    is_router: bool = False
    seen: Seen = field(default_factory=Seen)
    alone: list[Answer] = field(default_factory=list)
    n_begun: int = 0
    is_ending: bool = False

    def measure(self, when: str) -> None:
        self.seen.usage[when] = Usage.of(self.pid, with_children=not self.is_router)

    def client(self, n: int, **options: Any) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=n)
        transport = httpx.AsyncHTTPTransport(limits=limits, **options)
        return httpx.AsyncClient(base_url=self.url, timeout=600, transport=transport)

    async def may_begin(self) -> None:
        while self.pause is not None and self.pause.exists():
            await asyncio.sleep(1)

    async def ask_alone(self) -> None:
        async with self.client(1) as http:
            for job in self.jobs:
                await self.may_begin()
                self.alone.append(await whole(http, job))
                status, said = self.alone[-1]
                if status not in ((400, 413) if job.is_bad else (200, 400)):
                    self.seen.wrong.append(f"{job.path}: status {status}, {said}")
                self.seen.counts[f"alone {job.path} {status}"] += 1

    async def ask(self, n_clients: int, n_requests: int) -> None:
        """Send n_requests in all, from n_clients at a time."""
        self.n_begun = 0
        small = [(socket.SOL_SOCKET, socket.SO_RCVBUF, N_RECEIVE)]
        async with (
            self.client(n_clients) as http,
            self.client(n_clients, socket_options=small) as slow,
        ):
            await asyncio.gather(*(self._go_on(http, slow, n_requests) for _ in range(n_clients)))
        await self.settle()

    async def _go_on(self, http: httpx.AsyncClient, slow: httpx.AsyncClient, n: int) -> None:
        ways = [self.whole] * 4 + [self.stream] * 4
        ways += [self.leave, self.cut, self.nonsense, self.look]
        while self.n_begun < n:
            await self.may_begin()
            self.n_begun += 1
            if self.n_begun % 100 == 0:
                self.measure(str(self.n_begun))
            chosen = self.slow if self.n_begun % 20 == 0 else self.rng.choice(ways)
            await chosen(slow if self.n_begun % 20 == 0 else http)
            self.seen.counts[chosen.__name__] += 1

    def check(self, i: int, way: str, answer: Answer) -> None:
        job, (status, said) = self.jobs[i], self.alone[i]
        allowed = [(status, said)]
        if way != "whole" and "model" in job.body and "error" in said:
            allowed.append((200, said))  # the stream began while the model was being loaded
        if answer not in allowed:
            self.seen.wrong.append(
                f"job {i}, {way}, {job.path} {json.dumps(job.body)[:1000]}:\n  {answer}\n  instead "
                f"of {allowed[0]}"
            )

    def pick(self, *, stream: bool) -> int:
        n = len(self.jobs) - N_HEAVY
        return self.rng.choice([i for i in range(n) if self.jobs[i].can_stream or not stream])

    async def whole(self, http: httpx.AsyncClient) -> None:
        i = self.pick(stream=False)
        self.check(i, "whole", await whole(http, self.jobs[i]))

    async def stream(self, http: httpx.AsyncClient) -> None:
        i = self.pick(stream=True)
        self.check(i, "as a stream", await streamed(http, self.jobs[i]))

    async def slow(self, http: httpx.AsyncClient) -> None:
        i = self.rng.randrange(len(self.jobs) - N_HEAVY, len(self.jobs))
        self.check(i, "read slowly", await streamed(http, self.jobs[i], SLOW_S))

    async def leave(self, http: httpx.AsyncClient) -> None:
        """After some lines, or before any."""
        n = self.rng.randint(0, 5)
        job = self.jobs[self.pick(stream=True)]
        limits = dict.fromkeys(("max_tokens", "max_output_tokens", "n_predict"), 200)
        body = job.body | limits | {"stream": True, "options": {"num_predict": 200}}
        with suppress(httpx.TimeoutException):
            timeout = None if n else 0.05
            async with http.stream("POST", job.path, json=body, timeout=timeout) as response:
                async for _ in response.aiter_lines():
                    n -= 1
                    if n < 0:
                        return

    async def cut(self, http: httpx.AsyncClient) -> None:
        """The connection ends in the middle of the head, of the body, or of the answer; or both
        sides stay silent for a while."""
        job = self.jobs[self.pick(stream=False)]
        body = json.dumps(job.body).encode()
        head = f"POST {job.path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
        sent = head.encode() + b"Content-Type: application/json\r\n\r\n" + body
        address = urlsplit(self.url)
        _reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(sent[: self.rng.randrange(len(sent) + len(body))])
        await asyncio.sleep(self.rng.choice([0, 0, 0.01, 0.2]))
        if self.rng.random() < 0.5:
            writer.transport.abort()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async def nonsense(self, http: httpx.AsyncClient) -> None:
        too_large = self.rng.random() < 0.3
        size = round(MAX_BODY_MIB * 2**20 + 1)
        content = b" " * size if too_large else self.rng.choice(MALFORMED)
        headers = {"Content-Type": "application/json"}
        response = await http.post(PATH, content=content, headers=headers)
        if response.status_code != (413 if too_large else 400):
            self.seen.wrong.append(f"{content[:20]!r}: status {response.status_code}")

    async def look(self, http: httpx.AsyncClient) -> None:
        """At the slots and the metrics; or empties a slot, or saves and restores it."""
        i = self.rng.randrange(4)
        ways = ["/slots", "/metrics", "/props", "/v1/models", "/health", "/api/tags"]
        ways += [f"/slots/{i}?action={action}" for action in ("erase", "save", "restore")] * 2
        path = self.rng.choice(ways)
        if "?" not in path:
            response = await http.get(path)
        else:
            response = await http.post(path, json={"filename": f"slot{i}"})
        if response.status_code not in ((200, 400, 404, 409) if "?" in path else (200,)):
            self.seen.wrong.append(f"{path}: status {response.status_code}")
        self.seen.counts[f"{path} {response.status_code}"] += 1

    async def settle(self) -> None:
        """Wait until those who have left are noticed."""
        async with self.client(1) as http:
            for _ in range(100):
                metrics = (await http.get("/metrics")).text
                if "pyselfspec_texts_running 0.0" in metrics or "_running" not in metrics:
                    return
                await asyncio.sleep(0.1)
        self.seen.wrong.append("a slot is still taken")

    async def wait_for_files(self, n: int) -> None:
        """Wait until the server has closed the connections of clients that have gone: until it has
        at most n files, 10 s at most."""
        for _ in range(100):
            if Usage.of(self.pid, with_children=not self.is_router).n_files <= n:
                return
            await asyncio.sleep(0.1)

    async def end(self, process: subprocess.Popen[str], n_clients: int) -> float:
        """Send SIGTERM in the middle of work; return the seconds until the end."""
        async with self.client(n_clients) as http:
            asking = [asyncio.create_task(self._until_the_end(http)) for _ in range(n_clients)]
            await asyncio.sleep(2)
            start, of_server = time.monotonic(), children(self.pid)
            process.send_signal(signal.SIGTERM)
            self.is_ending = True
            code = await asyncio.to_thread(process.wait, 60)
            seconds = time.monotonic() - start
            await asyncio.gather(*asking)
        if code != 0 or seconds > END_S:
            self.seen.wrong.append(f"it ended after {seconds:.1f} s with status {code}")
        if left := [each for each in of_server if Path(f"/proc/{each}").exists()]:
            self.seen.wrong.append(f"its processes {left} have not ended")
        return seconds

    async def _until_the_end(self, http: httpx.AsyncClient) -> None:
        try:
            while True:
                i = self.pick(stream=True)
                answer = await streamed(http, self.jobs[i])
                if self.is_ending and (answer[0] == 503 or "error" in answer[1]):
                    self.seen.counts["told of the end"] += 1
                    return
                self.check(i, "before the end", answer)
                self.seen.counts["finished at the end"] += self.is_ending
        except httpx.TransportError as error:
            self.seen.counts[f"end {type(error).__name__}"] += 1
            if not self.is_ending:
                self.seen.wrong.append(f"before the end: {error!r}")


async def whole(http: httpx.AsyncClient, job: Job) -> Answer:
    response = await http.post(job.path, json=job.body)
    return response.status_code, told([response.json()])


async def streamed(http: httpx.AsyncClient, job: Job, pause_s: float = 0) -> Answer:
    """pause_s: between two lines."""
    events = []
    async with http.stream("POST", job.path, json=job.body | {"stream": True}) as response:
        try:
            async for line in response.aiter_lines():
                line = line.removeprefix("data: ").strip()
                if line.startswith("{"):
                    events.append(json.loads(line))
                if pause_s:
                    await asyncio.sleep(pause_s)
        except httpx.TransportError as error:
            return response.status_code, told(events) | {"cut": repr(error)}
    return response.status_code, told(events)


async def soak(
    crowd: Crowd, process: subprocess.Popen[str], n_clients: int, n_requests: int
) -> float:
    """Return the seconds that the end took."""
    usage = crowd.seen.usage
    await crowd.ask_alone()
    await crowd.ask(n_clients, 2 * n_clients)  # for as many threads as there will be
    crowd.measure("start")
    await crowd.ask(n_clients, n_requests)
    await crowd.wait_for_files(usage["start"].n_files)
    crowd.measure("end")
    start, end = usage["start"], usage["end"]
    if end.n_files > start.n_files or end.n_threads > start.n_threads:
        crowd.seen.wrong.append(f"{start} at the start, {end} at the end")
    settled = usage.get(str(SETTLED_AT), start)
    if end.rss_kib > GROWTH * settled.rss_kib:
        crowd.seen.wrong.append(f"memory grew from {settled.rss_kib} to {end.rss_kib} KiB")
    await crowd.may_begin()
    return await crowd.end(process, n_clients)


def jobs(names: Sequence[str | None], seed: int) -> list[Job]:
    makers = [Maker(random.Random(seed + i), name) for i, name in enumerate(names)]
    found = [makers[i * len(makers) // N_JOBS].job() for i in range(N_JOBS)]
    return found + [makers[0].heavy() for _ in range(N_HEAVY)]


@click.command()
@click.argument("models", nargs=-1)
@click.option("--requests", default=2000, show_default=True)
@click.option("--clients", default=64, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--pause", type=click.Path(path_type=Path), help="No request while it exists.")
@click.option("--option", "-o", "options", multiple=True, help="For the server, as one word.")
def command(
    models: tuple[str, ...],
    requests: int,
    clients: int,
    seed: int,
    pause: Path | None,
    options: tuple[str, ...],
) -> None:
    models = models or ("demo",)
    names = [each.partition("=")[0] for each in models] if len(models) > 1 else [None]
    with tempfile.TemporaryDirectory() as folder:
        given = ["--max-body", str(MAX_BODY_MIB), "--grace", str(GRACE_S), "--queue", "1000"]
        given += ["--slot-save-path", folder, "--chat-template", "chatml", "-t", "2", *options]
        log = Path(folder, "log.txt")
        with serving(models, given, log) as (process, url):
            rng, is_router = random.Random(seed), len(models) > 1
            crowd = Crowd(url, process.pid, jobs(names, seed), rng, pause, is_router)
            start = time.monotonic()
            end_s = asyncio.run(soak(crowd, process, clients, requests))
            seconds = time.monotonic() - start
        said = log.read_text()
    seen = crowd.seen
    if any(word in said for word in ("Traceback", "ERROR", "Fatal")):
        seen.wrong.append(f"the log:\n{said[-3000:]}")
    for name, usage in seen.usage.items():
        click.echo(f"{name}: {usage}")
    click.echo(json.dumps({"seed": seed, "counts": dict(sorted(seen.counts.items()))}, indent=1))
    click.echo(f"{seconds:.0f} s in all, {end_s:.1f} s from SIGTERM to the end")
    for fault in seen.wrong[:20]:
        click.echo(fault, err=True)
    if seen.wrong:
        raise click.ClickException(f"{len(seen.wrong)} answers were wrong")


if __name__ == "__main__":
    command()
