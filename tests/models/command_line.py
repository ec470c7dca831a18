"""Runs the command line for tests: in this process, or in its own where the process could end."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import click
from click.shell_completion import ShellComplete
from click.testing import CliRunner

import pyselfspec
from pyselfspec.cli import main

TIMEOUT = 120  # seconds; nothing here takes more than a few
# -P: the folder pytest was started in may hold a checkout, which is not what is tested.
PROGRAM = (sys.executable, "-P", "-m", "pyselfspec")
ONE_THREAD = ("-t", "1")

CommandPath = tuple[tuple[str, ...], click.Command]


def commands(group: click.Group = main, above: tuple[str, ...] = ()) -> Iterator[CommandPath]:
    """Yield every command below a group that is none itself, with the words that start it."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, f"{name} is listed"
        if isinstance(command, click.Group):
            yield from commands(command, (*above, name))
        else:
            yield (*above, name), command


@dataclass(frozen=True)
class Outcome:
    """Exit status and output of a run of the command line."""

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
    """Return this process's environment, without what would change the command line, and with the
    package under test in front."""
    kept = {k: v for k, v in os.environ.items() if k != "PYSELFSPEC_MODEL"}
    package = Path(pyselfspec.__file__).parents[1]
    paths = [str(package), *filter(None, [kept.get("PYTHONPATH")])]
    return kept | {"GGML_NO_BACKTRACE": "1", "PYTHONPATH": os.pathsep.join(paths)}


def run(*args: str | Path, stdin: bytes = b"", **env: str) -> Outcome:
    """Run in this process: quick, for commands that cannot end it."""
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


def completions(args: list[str], incomplete: str) -> list[tuple[str, str]]:
    """Return the values that a shell offers after these arguments, with their types."""
    shell = ShellComplete(main, {}, "pyselfspec", "_PYSELFSPEC_COMPLETE")
    return [(item.value, item.type) for item in shell.get_completions(args, incomplete)]


def on_terminal(*args: str | Path) -> str:
    """Run the command line in a terminal of its own; return all that it shows."""
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


FAILED, USAGE = 1, 2


def check_error(outcome: Outcome, status: int | tuple[int, ...], *words: str) -> None:
    """One line for the user, with these words in it, and nothing that looks like a crash."""
    allowed = status if isinstance(status, tuple) else (status,)
    assert outcome.traceback is None, repr(outcome.traceback)
    assert outcome.status in allowed, outcome
    assert outcome.stdout == ""
    lines = outcome.stderr.splitlines()
    assert "Traceback" not in outcome.stderr, outcome.stderr
    assert [line for line in lines if line.startswith("Error:")] == lines[-1:], outcome.stderr
    assert outcome.status == USAGE or len(lines) == 1, outcome.stderr
    missing = [word for word in words if word.lower() not in lines[-1].lower()]
    assert not missing, f"{missing} not in {lines[-1]!r}"
