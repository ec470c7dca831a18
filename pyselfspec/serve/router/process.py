"""One model in a process of its own: a server on a free port of the loopback interface, and the
requests that are forwarded to it."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import h11
from starlette.requests import Request

from ..protocol.errors import ApiError
from .models import Listed

START_S = 600.0  # to load a model
END_S = 15.0  # to end after SIGTERM, beside the time for answers
KILL_S = 5.0  # to end after SIGKILL
N_LINE = 1 << 16  # bytes
N_READ = 1 << 16
# Headers of a connection, not of what it carries.
OWN = frozenset(
    {b"connection", b"keep-alive", b"transfer-encoding", b"content-length", b"host", b"expect"}
)


@dataclass(eq=False, slots=True)
class ModelProcess:
    """A server's process, whose port is known when it is ready. end_s: seconds to end after
    SIGTERM. said: its last line on stderr."""

    name: str
    process: Process
    end_s: float
    port: int = 0
    said: str = ""
    log: asyncio.Task[None] = field(init=False)
    ending: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self.log = asyncio.create_task(self._copy_log())

    @property
    def is_alive(self) -> bool:
        return self.process.returncode is None

    @classmethod
    async def start(cls, model: Listed, options: Sequence[str], grace_s: float) -> ModelProcess:
        """Start a server. options: of the command line. grace_s: seconds that it takes to finish
        answers.

        Must not be cancelled: asyncio would wait for pipes of the process that are never connected.
        """
        command = [sys.executable, "-m", "pyselfspec", "serve", str(model.path), *options]
        command += ["--host", "127.0.0.1", "--port", "0", "--alias", model.name]
        process = await asyncio.create_subprocess_exec(
            *command, "--json", "--with-parent", stdin=PIPE, stdout=PIPE, stderr=PIPE, limit=N_LINE
        )
        return cls(model.name, process, grace_s + END_S)

    async def wait_until_ready(self) -> None:
        """Wait until the process accepts requests. Raises ApiError with what it said last if it
        ends before."""
        assert self.process.stdout is not None
        try:
            async with asyncio.timeout(START_S):
                line = await self.process.stdout.readline()
            port = urlsplit(json.loads(line)["url"]).port
            assert port is not None
        except (TimeoutError, ValueError, KeyError, AssertionError):
            await self.end()
            reason = self.said.removeprefix("Error: ") or "it ended without a message"
            raise ApiError(503, f"{self.name} could not be loaded: {reason}") from None
        self.port = port

    async def end(self) -> None:
        """End the process within end_s + KILL_S seconds. Goes on if it is cancelled."""
        if self.ending is None:
            self.ending = asyncio.create_task(self._end())
        await asyncio.shield(self.ending)

    async def _end(self) -> None:
        for stop, seconds in ((self.process.terminate, self.end_s), (self.process.kill, KILL_S)):
            with suppress(ProcessLookupError):
                stop()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.process.wait()
                    await asyncio.shield(self.log)
                    return

    async def _copy_log(self) -> None:
        """Write the lines of the process to stderr with its name, and keep the last one."""
        assert self.process.stderr is not None
        while True:
            try:
                line = await self.process.stderr.readline()
            except ValueError:  # longer than N_LINE
                continue
            if not line:
                return
            text = line.decode(errors="replace").rstrip()
            if text:
                self.said = text
                with suppress(OSError):  # stderr is closed; the process must go on
                    sys.stderr.write(f"[{self.name}] {text}\n")


class Forwarded:
    """A response of the other server. Use `open`, then `pieces`, and close it in any case.

    Raises OSError where the other server cannot be reached, or ends before its response does.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._http = h11.Connection(h11.CLIENT)
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def open(self, request: Request, body: bytes) -> tuple[int, list[tuple[bytes, bytes]]]:
        """Send a request; return status and headers of the response."""
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        headers = [(k, v) for k, v in request.scope["headers"] if k.lower() not in OWN]
        headers += [(b"host", b"127.0.0.1"), (b"content-length", str(len(body)).encode())]
        target = request.scope["raw_path"]
        if query := request.scope["query_string"]:
            target += b"?" + query
        sent = h11.Request(method=request.method, target=target, headers=headers)
        for part in (sent, h11.Data(data=body), h11.EndOfMessage()):
            self._writer.write(self._http.send(part) or b"")
        await self._writer.drain()
        while not isinstance(event := await self._next(), h11.Response):
            pass
        return event.status_code, [(k, v) for k, v in event.headers if k.lower() not in OWN]

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes."""
        while not isinstance(event := await self._next(), h11.EndOfMessage):
            if isinstance(event, h11.Data):
                yield bytes(event.data)

    async def _next(self) -> object:
        assert self._reader is not None
        try:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                self._http.receive_data(await self._reader.read(N_READ))
        except h11.RemoteProtocolError as error:
            raise ConnectionError(f"the model's server has ended: {error}") from error
        return event

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
