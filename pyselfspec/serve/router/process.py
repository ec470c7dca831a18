"""One model in a process of its own: a server on a free port of the loopback interface."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

from ..protocol.errors import ApiError
from .models import Listed

START_S = 600.0  # to load a model
END_S = 15.0  # to end after SIGTERM
N_LINE = 1 << 16  # bytes


@dataclass(eq=False, slots=True)
class ModelProcess:
    """A running server. port: of the loopback interface."""

    process: Process
    port: int
    log: asyncio.Task[None]

    @property
    def is_alive(self) -> bool:
        return self.process.returncode is None

    @classmethod
    async def start(cls, model: Listed, options: Sequence[str]) -> ModelProcess:
        """Start a server and wait until it accepts requests. options: of the command line.

        Raises ApiError with what the process said last if it ends before.
        """
        command = [sys.executable, "-m", "pyselfspec", "serve", str(model.path), *options]
        command += ["--host", "127.0.0.1", "--port", "0", "--alias", model.name]
        process = await asyncio.create_subprocess_exec(
            *command, "--json", "--with-parent", stdin=PIPE, stdout=PIPE, stderr=PIPE, limit=N_LINE
        )
        said = [""]
        log = asyncio.create_task(_copy_log(process, model.name, said))
        assert process.stdout is not None
        try:
            async with asyncio.timeout(START_S):
                line = await process.stdout.readline()
            port = urlsplit(json.loads(line)["url"]).port
            assert port is not None
        except (TimeoutError, ValueError, KeyError, AssertionError):
            await _end(process)
            await log
            reason = said[0].removeprefix("Error: ") or "it ended without a message"
            raise ApiError(503, f"{model.name} could not be loaded: {reason}") from None
        except BaseException:
            process.kill()
            raise
        return cls(process, port, log)

    async def end(self) -> None:
        """End the process; no request waits for it."""
        await _end(self.process)
        await self.log


async def _end(process: Process) -> None:
    with suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(END_S):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _copy_log(process: Process, name: str, said: list[str]) -> None:
    """Write the lines of a process to stderr with its name, and keep the last one."""
    assert process.stderr is not None
    while True:
        try:
            line = await process.stderr.readline()
        except ValueError:  # longer than N_LINE
            continue
        if not line:
            return
        text = line.decode(errors="replace").rstrip()
        if text:
            said[0] = text
            sys.stderr.write(f"[{name}] {text}\n")
