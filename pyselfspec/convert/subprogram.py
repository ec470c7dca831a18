"""Runs a Python program in a child process and reads its stderr.

For long work inside foreign code: it can be stopped at any moment, and a crash does not end this
process.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from collections import deque
from collections.abc import Generator, Sequence
from pathlib import Path

from ..runtime.ffi import load

HIDING = {"PYTHONSAFEPATH", "NO_LOCAL_GGUF"}  # would hide a program's own modules from it
WINDOWS_ERROR = 0xC0000000  # the least status that is an error, such as an access violation
N_KEPT = 100  # last lines of the log, where the reason of a failure is
# The last line of a traceback, or what llama.cpp's programs log as an error.
_ERROR = re.compile(
    r"(^[\w.]+(Error|Exception)|^ERROR:[\w.-]+|failed to quantize)(:\s*|$)", re.MULTILINE
)
_BAR = re.compile(r"\d+%\|")  # of tqdm


class Failed(Exception):
    """The program ended with a status other than 0. reason: its error message, one line."""

    def __init__(self, status: int, lines: Sequence[str]) -> None:
        self.reason = _reason(lines)
        ended = _ended_by(status)
        self.reason = f"{ended} ended it, {self.reason}" if ended else self.reason
        super().__init__(self.reason)


def _ended_by(status: int) -> str:
    """Return what ended a program early: a signal, or an error that Windows gives as its status;
    "" if nothing did."""
    if status >= WINDOWS_ERROR:
        return f"error 0x{status:08X} of Windows"
    if status >= 0:
        return ""
    try:
        return signal.Signals(-status).name
    except ValueError:  # not one of those with a name
        return f"signal {-status}"


def run(*arguments: str | Path) -> Generator[str, None, None]:
    """Start Python with these arguments and yield the lines of its log; every state of a progress
    bar is a line. Closing the iterator kills the program.

    Raises Failed.
    """
    # The program finds modules where this process does.
    environment = {name: text for name, text in os.environ.items() if name not in HIDING}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    last: deque[str] = deque(maxlen=N_KEPT)
    with subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        env=environment,
    ) as process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if load.is_verbose():
                    sys.stderr.write(line)
                last.append(line.rstrip())
                yield line
            process.wait()
        finally:
            process.kill()
    if process.returncode:
        raise Failed(process.returncode, last)


def _reason(lines: Sequence[str]) -> str:
    """Return the reason in a log: the text after its last error, or its last line."""
    text = [line for line in lines if line and not _BAR.search(line)]
    reason = _ERROR.split("\n".join(text))[-1] or "".join(text[-1:])
    return textwrap.shorten(reason, 300) or "it gives no reason"
