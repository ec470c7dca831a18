"""Count the bytes that travel to the servers of --rpc and back, by drafter.

    pyselfspec rpc-serve --port 50052 -t 1 &
    pyselfspec rpc-serve --port 50053 -t 1 &
    python tools/bench.py rpc demo 127.0.0.1:50052,127.0.0.1:50053

Every server is reached through a proxy on loopback that counts bytes, and how often the direction
changes: each such change is a wait for the network.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click

from pyselfspec import GREEDY, Completion, Context, Fixed, LayerMask, Model
from pyselfspec.runtime import rpc
from tools.records import Record, provenance

from ._options import keep, model_argument, run_options
from ._table import Table

PIECE = 1 << 16
PROMPT = "The old woman opened the door, and"


@dataclass
class Traffic:
    """Bytes that a server was sent and has sent, and how often it began to answer."""

    n_sent: int = 0
    n_received: int = 0
    n_answers: int = 0
    _answering: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, n_bytes: int, *, answer: bool) -> None:
        with self._lock:
            if answer:
                self.n_received += n_bytes
                self.n_answers += not self._answering
            else:
                self.n_sent += n_bytes
            self._answering = answer

    def counts(self) -> tuple[int, int, int]:
        with self._lock:
            return self.n_sent, self.n_received, self.n_answers


@contextmanager
def counted(server: str) -> Iterator[tuple[str, Traffic]]:
    """Another name of a server, through which bytes are counted."""
    traffic = Traffic()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_accept, args=(listener, server, traffic), daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}", traffic
        listener.shutdown(socket.SHUT_RDWR)


def _accept(listener: socket.socket, server: str, traffic: Traffic) -> None:
    while True:
        try:
            client, _ = listener.accept()
        except OSError:  # closed
            return
        there = socket.create_connection(rpc.parse(server))
        for side in (client, there):
            side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for one, other, answer in ((client, there, False), (there, client, True)):
            threading.Thread(target=_pump, args=(one, other, traffic, answer), daemon=True).start()


def _pump(one: socket.socket, other: socket.socket, traffic: Traffic, answer: bool) -> None:
    try:
        while piece := one.recv(PIECE):
            traffic.add(len(piece), answer=answer)
            other.sendall(piece)
    except OSError:  # the other side has gone
        pass
    for side in (one, other):
        try:
            side.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass


@dataclass(frozen=True)
class Row:
    """One text. Sums over all servers."""

    draft: str
    n_tokens: int
    n_steps: int
    n_sent: int
    n_received: int
    n_answers: int
    seconds: float


def measured(
    context: Context, name: str, traffic: Sequence[Traffic], n: int, options: Mapping[str, Any]
) -> Row:
    """Generate n tokens; what travels for the prompt does not count."""
    completion = Completion(context, PROMPT, n_predict=n, sampling=GREEDY, **options)
    pieces = iter(completion)
    next(pieces)
    before, begun = _sums(traffic), time.perf_counter()
    n_before, steps_before = len(completion.tokens), completion.stats.n_steps
    for _ in pieces:
        pass
    seconds = time.perf_counter() - begun
    sent, received, answers = (now - then for now, then in zip(_sums(traffic), before, strict=True))
    n_tokens = len(completion.tokens) - n_before
    n_steps = completion.stats.n_steps - steps_before
    context.sequence().drop()
    return Row(name, n_tokens, n_steps, sent, received, answers, seconds)


def _sums(traffic: Sequence[Traffic]) -> tuple[int, ...]:
    return tuple(map(sum, zip(*(each.counts() for each in traffic), strict=True)))


def ways(n_layer: int) -> dict[str, dict[str, Any]]:
    fixed = Fixed(4, p_min=0.0)
    early = LayerMask.early_exit(n_layer, n_layer // 3)
    return {
        "off": {"draft": None},
        "ngram, 4 tokens": {"draft": "ngram", "controller": fixed},
        "layer-skip, 4 tokens": {"draft": "layer-skip", "mask": early, "controller": fixed},
    }


@click.command()
@model_argument
@click.argument("servers", metavar="HOST:PORT,...")
@run_options
@click.option("--tokens", type=click.IntRange(min=2), default=128)
def command(model: Path, threads: int, out: Path | None, servers: str, tokens: int) -> None:
    """Count the bytes that travel while a model on servers generates a text, by drafter."""
    with ExitStack() as stack:
        proxies = [stack.enter_context(counted(server)) for server in servers.split(",")]
        names, traffic = [name for name, _ in proxies], [each for _, each in proxies]
        loaded = stack.enter_context(Model(model, rpc=names))
        n_loaded = _sums(traffic)[0]
        context = stack.enter_context(loaded.context(n_ctx=512, n_threads=threads))
        rows = [
            measured(context, name, traffic, tokens, options)
            for name, options in ways(loaded.n_layer).items()
        ]
    record = {
        "n_servers": len(proxies),
        "n_loaded": n_loaded,
        "rows": [asdict(row) for row in rows],
    }
    given = f" SERVERS --tokens {tokens}"
    keep(provenance("rpc", model, threads, given) | record, TABLES[0], out)


def cells(record: Record) -> list[list[str]]:
    """For each token, over all servers."""
    return [
        [
            record["model"],
            str(record["n_servers"]),
            f"{record['n_loaded'] / 1e6:.1f}",
            row["draft"],
            f"{row['n_tokens'] / row['n_steps']:.2f}",
            f"{row['n_sent'] / row['n_tokens'] / 1e3:.1f}",
            f"{row['n_received'] / row['n_tokens'] / 1e3:.1f}",
            f"{row['n_answers'] / row['n_tokens']:.2f}",
        ]
        for row in record["rows"]
    ]


TABLES = (
    Table(
        "rpc",
        (
            "model",
            "servers",
            "MB to load",
            "draft",
            "tokens per step",
            "kB sent per token",
            "kB back",
            "waits",
        ),
        "<>><>>>>",
        cells,
    ),
)
