"""A fresh Python without compiler, cmake or git, in which the wheel is installed and run."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
import venv
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from shutil import which
from typing import Any

import click

from .probe import N_PREDICT, PROMPT
from .targets import TARGETS, the_wheel

PROBE = Path(__file__).with_name("probe.py")
QEMU = "qemu-x86_64"
SECONDS = 20  # that an installation may take


@dataclass(frozen=True)
class Environment:
    """How to start a Python: the command, and the variables that it needs."""

    command: tuple[str | Path, ...]
    variables: Mapping[str, str] = field(default_factory=dict)

    def on(self, emulator: str, processor: str) -> Environment:
        """This environment under a program that emulates a processor."""
        program = which(emulator) or emulator
        return Environment((program, "-cpu", processor, *self.command), self.variables)


@contextmanager
def installed(folder: Path) -> Iterator[Environment]:
    """An environment that was installed from the folder, without index or compiler."""
    wheel = the_wheel(folder, TARGETS["x86_64"])
    with tempfile.TemporaryDirectory() as temporary:
        venv.create(temporary, with_pip=True)
        programs = Path(temporary, "bin")
        begun = time.monotonic()
        command: list[str | Path] = [
            programs / "python",
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-index",
        ]
        command += ["--find-links", folder, wheel]
        subprocess.run(command, check=True, env=bare(PATH=str(programs)))
        say_seconds(wheel, time.monotonic() - begun)
        yield Environment((programs / "python",), {"PATH": str(programs), "HOME": temporary})


def bare(**variables: str) -> dict[str, str]:
    """Variables of this process, except names of a compiler, its options, and our settings."""
    dropped = ("CC", "CXX", "CMAKE_ARGS", "PYTHONPATH", "VIRTUAL_ENV")
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in dropped and not name.startswith("PYSELFSPEC_")
    }
    return kept | variables


def say_seconds(wheel: Path, seconds: float) -> None:
    size = wheel.stat().st_size / 1e6
    click.echo(f"{wheel.name}, {size:.1f} MB: installed in {seconds:.0f} s, without an index")
    click.echo("compiler, cmake and git are not on PATH")
    if seconds > SECONDS:
        click.echo(f"this is longer than {SECONDS} s: is the machine busy?")


def generate(environment: Environment, timeout: float = 120) -> None:
    """Generate a text on the command line of an environment that holds nothing else."""
    command = [*environment.command, "-m", "pyselfspec", "generate", "demo"]
    begun = time.monotonic()
    run = subprocess.run(
        [*command, "-p", PROMPT, "-n", str(N_PREDICT)],
        env=dict(environment.variables),
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    if run.returncode or not run.stdout.strip():
        raise click.ClickException(f"generate: status {run.returncode}: {run.stderr.strip()}")
    click.echo(f"the first text after {time.monotonic() - begun:.0f} s")


def probed(environment: Environment, *args: str | Path, variant: str = "") -> Any:
    """Run a command of probe.py; return its result, or its error message as a string."""
    run = subprocess.run(
        [*environment.command, "-P", PROBE, *args],  # the installed package, not the checkout
        env=bare(**environment.variables, PYSELFSPEC_CPU=variant),
        capture_output=True,
        text=True,
    )
    if run.returncode == 0:
        return json.loads(run.stdout)
    lines = [line for line in run.stderr.splitlines() if not line.startswith("qemu-")]
    return f"status {run.returncode}: {lines[-1] if lines else 'no message'}"
