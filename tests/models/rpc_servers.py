"""Servers of pyselfspec rpc-serve on loopback, for tests."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from command_line import PROGRAM, TIMEOUT, environment

from pyselfspec.runtime import rpc

POLL_S = 0.05


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@contextmanager
def serving(n: int) -> Iterator[list[str]]:
    """Servers with one thread each, as "host:port", that end with the block."""
    ports = [free_port() for _ in range(n)]
    processes = [
        subprocess.Popen(
            [*PROGRAM, "rpc-serve", "--port", str(port), "-t", "1"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        for port in ports
    ]
    try:
        for process, port in zip(processes, ports, strict=True):
            _wait(process, f"127.0.0.1:{port}")
        yield [f"127.0.0.1:{port}" for port in ports]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _wait(process: subprocess.Popen[str], server: str) -> None:
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        with suppress(ConnectionError):
            rpc.version(server)
            return
        time.sleep(POLL_S)
    raise AssertionError(f"{server} does not answer")
