"""Renders chat templates, Jinja programs from model files, in another process (sandbox.py), whose
time and memory have limits, so that every rendering ends."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from ..errors import ArgumentError, SelfSpecError

# Templates of published models need a small fraction of each limit.
MAX_SOURCE = 1 << 18  # characters
MAX_S = 5.0  # of processor time of one rendering
MAX_BYTES = 1 << 30  # of the process
PROGRAM = Path(__file__).with_name("sandbox.py")


class RenderingEndedError(SelfSpecError):
    """The program ends, and renders no more templates."""

    def __init__(self) -> None:
        super().__init__("the chat template was stopped, since the program ends")


class Worker:
    """The process, started when it is needed. Thread-safe; renders one template at a time."""

    def __init__(self, max_s: float = MAX_S, max_bytes: int = MAX_BYTES) -> None:
        self._limits = (str(max_s), str(max_bytes))
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._has_ended = False

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request. Raises ArgumentError where a limit ends the process, and
        RenderingEndedError where `end` does."""
        try:
            line = json.dumps(request).encode() + b"\n"
        except (TypeError, ValueError) as error:
            raise ArgumentError(f"variables of chat templates are JSON values: {error}") from None
        with self._lock:
            answer = b"" if self._has_ended else self._answer(line)
            if answer:
                return dict(json.loads(answer))
            self._close()
        if self._has_ended:
            raise RenderingEndedError
        max_s, max_bytes = self._limits
        raise ArgumentError(
            f"the chat template takes more than {max_s} seconds or {int(max_bytes) >> 20} MiB; use "
            "another"
        )

    def _answer(self, line: bytes) -> bytes:
        """Return the line that answers one, empty if the process has ended."""
        if self._process is None or self._process.poll() is not None:
            self._close()
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(PROGRAM), *self._limits],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
            return self._process.stdout.readline()
        except OSError:
            return b""

    def _close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def end(self) -> None:
        """End the process and what it renders; later requests are refused."""
        self._has_ended = True
        process = self._process
        if process is not None:
            process.kill()
        with self._lock:
            self._close()

    def forget(self) -> None:
        """Leave the process to the one that this one was forked from."""
        self._lock, self._process = threading.Lock(), None


shared = Worker()
atexit.register(shared.end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=shared.forget)


class Renderer:
    """A template. now: the clock of ``strftime_now``. worker: renders it.

    Raises ArgumentError for a source with a syntax error, or longer than MAX_SOURCE.
    """

    def __init__(
        self, source: str, *, now: Callable[[], datetime] = datetime.now, worker: Worker = shared
    ) -> None:
        if len(source) > MAX_SOURCE:
            raise ArgumentError(
                f"the chat template has {len(source)} characters; at most {MAX_SOURCE} are allowed"
            )
        self._source = source
        self._now = now
        self._worker = worker
        self._ask(None)

    def text(self, **variables: Any) -> str:
        """Return the rendered text. Raises ArgumentError if the template refuses these variables,
        fails, or exceeds a limit."""
        found = self._ask(variables)
        if "text" in found:
            return str(found["text"])
        kind, error = found["kind"], found["error"]
        said = ": ".join(filter(None, [kind, error]))
        cause = TypeError(error) if kind == "TypeError" else None
        raise ArgumentError(f"the chat template refuses these messages: {said}") from cause

    def _ask(self, variables: dict[str, Any] | None) -> dict[str, Any]:
        """Return the answer of the worker. Raises ArgumentError for a syntax error."""
        request = {"source": self._source, "variables": variables, "now": self._now().isoformat()}
        found = self._worker.ask(request)
        if "line" in found:
            raise ArgumentError(
                f"the chat template is broken in line {found['line']}: {found['error']}"
            )
        return found
