"""llama.cpp's own programs, unpatched: how they are run and how much memory they take."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

PROGRAMS = (
    "llama-bench",
    "llama-speculative-simple",
    "llama-lookup",
    "llama-perplexity",
    "llama-server",
)

folder_argument = click.argument(
    "folder", type=click.Path(exists=True, file_okay=False, path_type=Path)
)


def program(folder: Path, name: str) -> Path:
    """Raises click.ClickException where the folder does not have it."""
    found = folder.resolve() / name
    if not found.is_file():
        raise click.ClickException(f"{folder} has no {name}: build it with peers build {folder}")
    return found


def run(program: Sequence[str | Path]) -> tuple[str, int]:
    """Run a program; return its output on both streams and its peak memory in kB."""
    with tempfile.TemporaryFile("w+", errors="replace") as file:  # texts may end within a letter
        process = subprocess.Popen(program, stdout=file, stderr=subprocess.STDOUT)
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            raise
        file.seek(0)
        text = file.read()
    if status != 0:
        raise click.ClickException(f"{program[0]} failed:\n{text[-2000:]}")
    return text, int(usage.ru_maxrss)
