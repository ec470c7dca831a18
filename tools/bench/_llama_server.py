"""llama.cpp's own server, unpatched: started on a port of this machine, asked, and stopped."""

from __future__ import annotations

import json
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import IO, Any

import click

HOST = "127.0.0.1"
START_S, ANSWER_S, STOP_S = 300, 600, 10  # at most


@dataclass(frozen=True, slots=True)
class Answer:
    """us: from the first token on. n_tokens: those behind the first, which were made in this time;
    the first comes with the prompt. tokens: all of them."""

    tokens: tuple[int, ...]
    us: int
    n_tokens: int
    n_drafted: int
    n_accepted: int

    @property
    def n_passes(self) -> int:
        """Each makes one token, and those that were accepted in it."""
        return self.n_tokens - self.n_accepted


def parse(answer: Any) -> Answer:
    """Return the figures in the server's answer. Raises click.ClickException when figures are
    missing."""
    try:
        timings = answer["timings"]
        return Answer(
            tuple(answer["tokens"]),
            round(timings["predicted_ms"] * 1e3),
            max(0, timings["predicted_n"] - 1),
            timings.get("draft_n", 0),  # not there where nothing was drafted
            timings.get("draft_n_accepted", 0),
        )
    except (KeyError, TypeError) as error:
        raise click.ClickException(f"no answer with timings: {error!r}") from None


@dataclass(frozen=True, slots=True)
class Client:
    """Asks the server at this port."""

    port: int

    def get(self, path: str, timeout_s: float = ANSWER_S, body: Any = None) -> Any:
        """With a body it is posted. Raises OSError, HTTPException and ValueError."""
        connection = HTTPConnection(HOST, self.port, timeout=timeout_s)
        try:
            text = None if body is None else json.dumps(body)
            headers = {"Content-Type": "application/json"}
            connection.request("GET" if body is None else "POST", path, text, headers)
            response = connection.getresponse()
            content = response.read().decode(errors="replace")
            if response.status != 200:
                raise HTTPException(f"{path} is answered with {response.status}: {content[:500]}")
            return json.loads(content)
        finally:
            connection.close()

    def post(self, path: str, body: Any) -> Any:
        """Raises click.ClickException where there is no answer."""
        try:
            return self.get(path, body=body)
        except (OSError, HTTPException, ValueError) as error:
            raise click.ClickException(f"the server gives no answer: {error!r}") from error

    def complete(self, prompt: Sequence[int], n_predict: int, temp: float, seed: int) -> Answer:
        body = {"prompt": list(prompt), "n_predict": n_predict, "temperature": temp, "seed": seed}
        return parse(
            self.post("/completion", body | {"cache_prompt": False, "return_tokens": True})
        )

    def text(self, tokens: Sequence[int]) -> str:
        """With special tokens written out."""
        return str(self.post("/detokenize", {"tokens": list(tokens)})["content"])

    @property
    def is_ready(self) -> bool:
        try:
            self.get("/health", 5)
        except (OSError, HTTPException, ValueError):
            return False
        return True


@contextmanager
def serving(program: Sequence[str | Path]) -> Iterator[Client]:
    """A server that is ready to answer, and stopped in the end, whichever way that comes.

    Raises click.ClickException, with the end of what it printed, where it does not start.
    """
    client = Client(_free_port())
    with tempfile.TemporaryFile("w+", errors="replace") as log:
        command = [*program, "--host", HOST, "--port", str(client.port)]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
        try:
            end = time.monotonic() + START_S
            while not client.is_ready:
                if process.poll() is not None or time.monotonic() > end:
                    log.seek(0)
                    raise click.ClickException(f"{program[0]} does not start:\n{_tail(log)}")
                time.sleep(0.05)
            yield client
        finally:
            _stop(process)


def _free_port() -> int:
    with socket.socket() as found:
        found.bind((HOST, 0))
        return int(found.getsockname()[1])


def _tail(log: IO[str]) -> str:
    return log.read()[-2000:]


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
