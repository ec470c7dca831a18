"""Calls the Python interface with arguments that are often right and often wrong.

    python tools/random_calls.py [--seconds 60] [--seed 1] [FILE.gguf or FOLDER ...]

Files are models, draft heads, LoRA adapters and projectors; without any, toy models are written.
Every call has to succeed or to raise an error of the package. At intervals a greedy text from a
used context has to be that of a fresh one. Runs follow each other, each in a process of its own
with the next seed; a run that fails is shown with its seed and its last calls.
"""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

sys.path.append(str(Path(__file__).resolve().parents[1]))

import pyselfspec
from pyselfspec.errors import SelfSpecError, SelfSpecWarning
from pyselfspec.gguf import heads
from pyselfspec.gguf.header import read_header
from tools.models import hybrids, random_gguf, tiny_gguf

SECONDS = 60.0  # of all runs
N_CALLS = 400  # of a run
MEMORY = 8 << 30  # bytes of a run
N_SHOWN = 25  # last calls of a run that failed
TIMEOUT = 600.0  # seconds of a run
MAX_LINE = 200  # characters of a call


@dataclass(frozen=True)
class Files:
    """Files by what they hold."""

    models: tuple[Path, ...]
    heads: tuple[Path, ...] = ()
    adapters: tuple[Path, ...] = ()
    projectors: tuple[Path, ...] = ()

    @classmethod
    def of(cls, paths: Sequence[Path]) -> Files:
        """Sort files and the files of folders."""
        found: dict[str, list[Path]] = {"": [], "head": [], "adapter": [], "clip": []}
        for path in paths:
            for file in sorted(path.glob("*.gguf")) if path.is_dir() else [path]:
                metadata = read_header(file).metadata
                architecture = str(metadata.get("general.architecture"))
                kind = str(metadata.get("general.type", ""))
                if heads.is_head(architecture):
                    kind = "head"
                elif architecture == "clip":
                    kind = "clip"
                found[kind if kind in found else ""].append(file)
        return cls(*map(tuple, found.values()))


class Calls:
    """The calls of a run, each printed before it is made, so that a signal loses none."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()

    def make(self, text: str, call: Callable[[], Any]) -> Any:
        """Make a call and return its result, None after an error of the package."""
        os.write(1, f"{text[:MAX_LINE]}\n".encode())
        try:
            result = call()
        except SelfSpecError as error:
            self.outcomes[type(error).__name__] += 1
            if not str(error) or "\n" in str(error).strip():
                raise AssertionError(f"an error of one line: {error}") from error
            return None
        self.outcomes["succeeded"] += 1
        return result


def run(seed: int, n_calls: int, files: Files) -> int:
    """Make the calls of a run in this process. Returns the exit status."""
    from tools.calls import actions, parts
    from tools.calls.world import World

    weights = actions.ACTIONS | parts.ACTIONS
    warnings.simplefilter("ignore", SelfSpecWarning)
    if "LD_PRELOAD" not in os.environ:  # sanitizers take terabytes without using them
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    calls = Calls()
    try:
        with World(random.Random(seed), calls, files) as world:
            for _ in range(n_calls):
                if all(each.closed for each in world.contexts):
                    actions.open_model(world)
                    actions.open_context(world)
                world.rng.choices(tuple(weights), tuple(weights.values()))[0](world)
    except Exception:
        traceback.print_exc()
        return 3
    ends = " ".join(f"{name}={n}" for name, n in sorted(calls.outcomes.items()))
    os.write(1, f"END {ends}\n".encode())
    return 0


def child(seed: int, n_calls: int, paths: Sequence[Path]) -> tuple[Counter[str], str]:
    """Make a run in a process of its own. Return how its calls ended, and the fault, "" if none."""
    command = [sys.executable, __file__, "--one", "--seed", str(seed), "--calls", str(n_calls)]
    package = str(Path(pyselfspec.__file__).parents[1])  # the one of this process
    paths_of_child = (package, os.environ.get("PYTHONPATH"))
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths_of_child))}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        arguments = [*command, *map(str, paths)]
        try:
            status: int | str = subprocess.run(
                arguments, env=env, stdout=out, stderr=err, timeout=TIMEOUT
            ).returncode
        except subprocess.TimeoutExpired:
            status = f"no end after {TIMEOUT:.0f} s"
        out.seek(0)
        err.seek(0)
        lines = out.read().decode(errors="replace").splitlines()
        said = err.read().decode(errors="replace")
    if status == 0 and lines and lines[-1].startswith("END"):
        counts = (part.split("=") for part in lines[-1].split()[1:])
        return Counter({name: int(n) for name, n in counts}), ""
    last = "\n".join(f"    {line}" for line in lines[-N_SHOWN:])
    return Counter(), f"seed {seed}: status {status}, last calls:\n{last}\n{said[-6000:]}"


def toy_models(folder: Path) -> list[Path]:
    """Write models of several families."""
    made = [
        tiny_gguf.write(folder / f"{arch}.gguf", arch, qtype=qtype)
        for arch, qtype in (("llama", "Q8_0"), ("gemma3", "F32"), ("qwen2moe", "Q4_0"))
    ]
    return made + [random_gguf.write_tiny(folder / f"{arch}.gguf", arch) for arch in hybrids.TINY]


def repeat(seed: int, seconds: float, n_calls: int, paths: Sequence[Path]) -> bool:
    """Make runs until the time is over, at least one. Returns whether none failed."""
    outcomes: Counter[str] = Counter()
    n_runs, n_faults, start = 0, 0, time.monotonic()
    while not n_runs or time.monotonic() - start < seconds:
        ends, fault = child(seed + n_runs, n_calls, paths)
        outcomes += ends
        n_runs += 1
        if fault:
            n_faults += 1
            click.echo(fault)
    ends_of_all = ", ".join(f"{name}: {n}" for name, n in sorted(outcomes.items()))
    took = time.monotonic() - start
    click.echo(
        f"{n_runs} runs from seed {seed} in {took:.0f} s, {outcomes.total()} calls; {ends_of_all}; "
        f"{n_faults} faults"
    )
    return not n_faults


@click.command(help=__doc__)
@click.argument("paths", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--seconds", type=float, default=SECONDS, show_default=True)
@click.option("--seed", type=int, help="Of the first run; default: a random one.")
@click.option("--calls", "n_calls", default=N_CALLS, show_default=True, help="Of each run.")
@click.option("--one", is_flag=True, help="A single run, in this process.")
def main(
    paths: tuple[Path, ...], seconds: float, seed: int | None, n_calls: int, one: bool
) -> None:
    if seed is None:
        seed = random.randrange(1 << 30)
    click.echo(f"seed {seed}")
    with tempfile.TemporaryDirectory() as folder:
        given = list(paths) or toy_models(Path(folder))
        if one:
            sys.stdout.flush()
            sys.exit(run(seed, n_calls, Files.of(given)))
        if not repeat(seed, seconds, n_calls, given):
            sys.exit(1)


if __name__ == "__main__":
    main()
