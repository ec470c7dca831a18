"""Runs the command line for tests: in this process, or in its own where the process could end."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from click.testing import CliRunner

from pyselfspec.cli import main

TIMEOUT = 120  # seconds; nothing here takes more than a few
# -P: the folder pytest was started in may hold a checkout, which is not what is tested.
PROGRAM = (sys.executable, "-P", "-m", "pyselfspec")
ONE_THREAD = ("-t", "1")


@dataclass(frozen=True)
class Outcome:
    """What a run of the command line left behind."""

    status: int
    stdout: str
    stderr: str
    traceback: BaseException | None = None

    @property
    def json(self) -> Any:
        """The one object on stdout, which must be strict JSON and on a line of its own."""
        assert self.status == 0, self
        return strict_json(self.stdout)


def strict_json(text: str) -> Any:
    assert text.endswith("\n") and text.count("\n") == 1, text
    return json.loads(text, parse_constant=_no_constant)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def environment() -> dict[str, str]:
    """This process's environment without what would change the command line."""
    kept = {k: v for k, v in os.environ.items() if k != "PYSELFSPEC_MODEL"}
    return kept | {"GGML_NO_BACKTRACE": "1"}


def run(*args: str | Path, stdin: bytes = b"", **env: str) -> Outcome:
    """Run in this process: quick, for whatever cannot end it."""
    variables: dict[str, str | None] = {"PYSELFSPEC_MODEL": None, **env}
    result = CliRunner().invoke(main, [str(a) for a in args], input=stdin, env=variables)
    crash = None if isinstance(result.exception, SystemExit) else result.exception
    return Outcome(result.exit_code, result.stdout, result.stderr, crash)


def run_alone(
    *args: str | bytes | Path,
    stdin: bytes = b"",
    prefix: tuple[str, ...] = (),
    env: dict[str, str] | None = None,
) -> Outcome:
    """Run in a process of its own; its status is negative when a signal ended it.

    prefix: a command that starts the program. env: changes to the environment.
    """
    done = subprocess.run(
        [*prefix, *PROGRAM, *args],
        input=stdin,
        capture_output=True,
        env=environment() | (env or {}),
        timeout=TIMEOUT,
    )
    out, err = (s.decode(errors="replace") for s in (done.stdout, done.stderr))
    return Outcome(done.returncode, out, err)


def on_terminal(*args: str | Path) -> str:
    """What a terminal shows that stdout and stderr of a run of its own go to."""
    screen, terminal = pty.openpty()
    with subprocess.Popen(
        [*PROGRAM, *args],
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=terminal,
        env=environment(),
    ) as process:
        os.close(terminal)
        shown = b""
        with os.fdopen(screen, "rb", buffering=0) as reader, suppress(OSError):  # EIO at its end
            while data := reader.read(1 << 16):
                shown += data
        assert process.wait(TIMEOUT) == 0, shown
    return shown.decode().replace("\r\n", "\n")
